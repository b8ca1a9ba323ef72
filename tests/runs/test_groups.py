"""Groups of runs: their names, and the choice of other settings by validation."""

from itertools import count, permutations
from pathlib import Path

import pytest

from txl_lightning.imports import NETWORKS
from txl_lightning.runs.groups import (
    check_keys,
    choose_runs,
    describe_settings,
    group_runs,
    list_choices,
    list_other_keys,
)
from txl_lightning.runs.listing import Run
from txl_lightning.runs.metrics_table import RunMetrics

NUMBER = count()
LSTM = {"model.net.class_path": NETWORKS["LSTM"], "model.net.n_layer": 2}
WINDOW = {"model.net.mem_len": 128, "model.net.same_length": "mem_len"}
XL = {"model.net.mem_len": 128, "model.net.same_length": False}
LR = "model.optim.lr"


def make_run(settings, nats=2.0, seed=0):
    rows = [] if nats is None else [{"step": 6, "val/nats": nats}]
    settings = {"seed_everything": seed, **settings}
    return Run(Path(f"version_{next(NUMBER)}"), settings, RunMetrics(rows), {})


@pytest.mark.parametrize(
    ("by", "names"),
    [
        (
            "model.net",
            ["LSTM", "TransformerXL (same_length false)", "TransformerXL (same_length mem_len)"],
        ),
        ("model.net.class_path", ["LSTM", "TransformerXL"]),
        ("data.tgt_len", ["64", "512"]),
        ("model.optim", ["name adamw, lr 0.2", "name muon, lr 0.1"]),
        ("model.net.class_path,data.tgt_len", ["LSTM, tgt_len 64", "TransformerXL, tgt_len 512"]),
        ("model.optim.lr,data.batch_size", ["lr 0.1", "lr 0.2"]),
    ],
)
def test_groups_are_named_by_what_differs_in_them(by, names):
    common = {"data.batch_size": 16, "model.optim.weight_decay": 0.1}
    first = {"model.optim.name": "muon", LR: 0.1, "data.tgt_len": 64}
    second = {"model.optim.name": "adamw", LR: 0.2, "data.tgt_len": 512}
    runs = [make_run(common | LSTM | first), make_run(common | WINDOW | second)]
    runs += [make_run(common | XL | second)]
    assert [*group_runs(runs, check_keys(runs, by))] == names


@pytest.mark.parametrize("by", ["model.net.clamp_len", "model.net"])
def test_a_run_without_a_setting_is_in_the_group_of_those_with_null(by):
    key = "model.net.clamp_len"
    runs = [make_run({key: None} | XL), make_run(XL), make_run({key: 20} | XL)]
    groups = group_runs(runs, check_keys(runs, by))
    [name] = [name for name in groups if "null" in name]
    assert groups == {name: runs[:2], name.replace("null", "20"): runs[2:]}
    assert len(list_choices(runs[:2], ["data.tgt_len"])) == 1


@pytest.mark.parametrize(
    ("by", "values", "names"),
    [
        ("model.net.mem_len", [128, 0, 16], ["0", "16", "128"]),
        (LR, [0.012, 1e-05, 0.003], ["1e-05", "0.003", "0.012"]),
        (f"{LR},model.net.n_layer", [0.12, 0.012], ["lr 0.012", "lr 0.12"]),
        ("data.vocab", ["words", 4096, None, "nan"], ["4096", "nan", "null", "words"]),
        ("model.net", [64, 128, 8], [f"TransformerXL (mem_len {n})" for n in (8, 64, 128)]),
    ],
)
def test_groups_are_in_the_order_of_their_values_whichever_run_ended_first(by, values, names):
    key = by.split(",")[0]
    setting = {"model.net": "model.net.mem_len"}.get(key, key)
    for order in permutations(values):
        runs = [make_run({"model.net.n_layer": 2, setting: value}) for value in order]
        assert [*group_runs(runs, check_keys(runs, by))] == names


@pytest.mark.parametrize("key", ["seed_everything", "data.seed", "model.net,data.seed"])
def test_a_seed_is_no_setting_to_compare(key):
    runs = [make_run({"data.seed": n} | LSTM, seed=n) for n in range(2)]
    with pytest.raises(ValueError, match=r"^by: invalid \w+\.?\w+; expected another setting: seed"):
        check_keys(runs, key)


@pytest.mark.parametrize("key", ["model.net.mem", "model.ne", "mem_len", ""])
def test_a_key_that_no_run_has_is_refused(key):
    with pytest.raises(ValueError, match=r"^by: invalid .*expected a setting of these runs"):
        check_keys([make_run(XL)], key)


def test_the_choice_with_the_best_mean_validation_is_taken():
    nats = {0.1: (1.9, 2.5), 0.2: (2.0, 2.1), 0.3: (2.2, 2.2)}
    runs = [make_run({LR: lr}, nats[lr][seed], seed) for lr in nats for seed in range(2)]
    assert [run.settings[LR] for run in choose_runs("a", runs, ["model.net"])] == [0.2, 0.2]


def test_choices_are_compared_on_the_seeds_that_all_of_them_have():
    # The worse rate has a lucky second seed; the better one an unlucky third.
    results = [(0.1, 2.0, 0), (0.2, 2.1, 0), (0.2, 1.0, 1), (0.1, 9.0, 2)]
    runs = [make_run({LR: lr}, nats, seed) for lr, nats, seed in results]
    chosen = choose_runs("a", runs, ["model.net"])
    assert [(run.settings[LR], run.settings["seed_everything"]) for run in chosen] == [
        (0.1, 0),
        (0.1, 2),
    ]


def test_choices_without_a_common_seed_are_refused():
    runs = [make_run({LR: lr}, seed=seed) for lr, seed in ((0.1, 0), (0.1, 1), (0.2, 1), (0.3, 2))]
    message = "^runs: invalid 3 choices of settings of LSTM; expected a seed that all of them have"
    with pytest.raises(ValueError, match=message):
        choose_runs("LSTM", runs, ["model.net"])


@pytest.mark.parametrize("nats", [None, float("nan"), float("inf")])
def test_a_choice_with_a_run_without_validation_is_not_taken(nats):
    results = [(0.1, nats, 0), (0.1, 1.0, 1), (0.2, 5.0, 0), (0.2, 5.0, 1)]
    runs = [make_run({LR: lr}, value, seed) for lr, value, seed in results]
    assert {run.settings[LR] for run in choose_runs("a", runs, ["model.net"])} == {0.2}


def test_all_runs_are_taken_where_no_seed_occurs_twice():
    runs = [make_run({LR: lr}, seed=seed) for seed, lr in enumerate((0.1, 0.2, 0.2))]
    assert choose_runs("a", runs, ["model.net"]) == runs


@pytest.mark.parametrize(
    "key",
    [
        "data.seed",
        "trainer.logger.init_args.save_dir",
        "trainer.default_root_dir",
        "wandb.required",
    ],
)
def test_places_loggers_and_seeds_are_no_choices(key):
    runs = [make_run({key: n} | LSTM, seed=n) for n in range(3)]
    assert len(list_choices(runs, ["model.net"])) == 1
    assert list_other_keys(runs, ["model.net"]) == []


def test_networks_of_two_classes_are_one_choice_with_one_name():
    runs = [make_run({LR: 0.1} | LSTM), make_run({LR: 0.1} | WINDOW), make_run({LR: 0.2} | XL)]
    assert list_other_keys(runs, [LR]) == ["model.net"]
    assert describe_settings(runs, ["model.net"]) == [
        "LSTM",
        "TransformerXL (same_length mem_len)",
        "TransformerXL (same_length false)",
    ]
