"""Rates of networks are searched at full length, recorded one by one, and used by what counts."""

import math
from argparse import Namespace

import pytest
import yaml

from experiments.results import load_records
from experiments.state_bytes import figures, readings, recall, run
from txl_lightning import TransformerXLConfig
from txl_lightning.imports import NETWORKS
from txl_lightning.model.config import make_config


@pytest.fixture
def args(tmp_path):
    args = Namespace(fast=False, again=False, out=tmp_path / "results.json", origin={})
    args.settings = {"precision": "bf16-mixed"}
    return args


@pytest.fixture
def trained(monkeypatch):
    """Return the rates that were trained, in turn; 0.024 is the best of Muon, 0.75e-3 of AdamW."""
    rates = []

    def measure(args, net, optimizer, rate):
        rates.append(rate)
        nats = 4 + abs(math.log(rate / {"muon": 24e-3, "adamw": 0.75e-3}[optimizer]))
        nats -= optimizer == "muon"
        curve = {figures.COLUMN: [9.0, nats / 2]}
        fields = {"kind": "rate", "net": net, "optimizer": optimizer, "rate": rate}
        return fields | {"nats": nats, "curve": curve}

    monkeypatch.setattr(run, "measure_rate", measure)
    return rates


@pytest.mark.parametrize(
    ("optimizer", "rates"),
    [("muon", [6e-3, 12e-3, 24e-3, 48e-3]), ("adamw", [3e-3, 6e-3, 1.5e-3, 0.75e-3, 0.375e-3])],
)
def test_rates_are_tried_until_the_best_lies_between_worse_ones(args, trained, optimizer, rates):
    run.tune_rate(args, "lstm", optimizer)
    assert trained == pytest.approx(rates)
    assert len(load_records(args.out)) == len(rates)


@pytest.mark.parametrize("name", run.LONGER)
def test_a_network_with_longer_gradients_has_its_own_rates_and_as_many_tokens_in_an_update(
    args, trained, monkeypatch, name
):
    net, options = run.LONGER[name]
    run.tune_rate(args, net, "muon")
    run.tune_rate(args, name, "adamw")
    assert run.find_best(args, net)["optimizer"] == "muon"
    assert run.find_best(args, name)["optimizer"] == "adamw"
    given = []
    monkeypatch.setattr(run.common, "train", lambda *values: given.append(values[-1]))
    for each in (net, name):
        run.train(args, each, "muon", 0.006, 0)
    assert given[1] == given[0] | options
    rows = yaml.safe_load((run.common.REPOSITORY / given[0]["config"]).read_text())["data"]
    tokens = options["data.batch_size"] * options["data.tgt_len"]
    assert tokens == rows["batch_size"] * rows["tgt_len"]


def test_a_search_that_was_stopped_trains_no_rate_again(args, trained):
    run.common.measure_once(args, "rate lstm muon 0.012", run.measure_rate, "lstm", "muon", 12e-3)
    run.tune_rate(args, "lstm", "muon")
    assert trained == pytest.approx([12e-3, 6e-3, 24e-3, 48e-3])


def test_the_recipe_is_the_best_of_both_optimizers(args, trained):
    for optimizer in run.OPTIMIZERS:
        run.tune_rate(args, "lstm", optimizer)
    best = run.find_best(args, "lstm")
    assert best == {"optimizer": "muon", "rate": pytest.approx(24e-3)}


def test_a_best_rate_at_the_end_of_a_grid_is_not_called_the_best():
    assert figures.describe_best({3e-3: 1.7, 6e-3: 1.6, 12e-3: 1.8}) == "0.006"
    assert figures.describe_best({6e-3: 1.6, 12e-3: 1.8}) == "not known"
    assert figures.describe_best({6e-3: 1.9, 12e-3: 1.8}) == "not known"


def test_a_table_shows_what_float32_does_at_the_best_rate(args, trained):
    run.tune_rate(args, "lstm", "muon")
    records = load_records(args.out)
    best = run.find_best(args, "lstm")
    other = {"kind": "precision", "net": "lstm", "curve": {figures.COLUMN: [2]}}
    other["ran_with"] = {"precision": "32-true"}
    _, row = figures.list_precisions(records | {"32-true lstm": other | best})
    assert row == ["LSTM", "bf16-mixed", "1.500", "32-true", "2.000"]


def test_pairs_and_the_second_training_have_float32_beside_texts_in_bfloat16(
    args, trained, monkeypatch
):
    run.tune_rate(args, "lstm", "muon")
    used = []

    def train(args, *_, **chosen):
        used.append((args.precision, args.settings["precision"], chosen.get("rate")))
        raise InterruptedError

    monkeypatch.setattr(run, "train", train)
    monkeypatch.setattr(recall, "choose_rate", train)
    plan = {"precision": "bf16-mixed", "only": ["lstm"], "arms": [recall.FIRST], "seeds": [1]}
    plan |= {"settings": args.settings, "parts": ["pairs"], "tune": False}
    for once in (True, False):
        given = Namespace(**vars(args) | plan | {"once": once})
        monkeypatch.setattr(run.common, "parse_args", lambda *_, given=given, **__: given)
        with pytest.raises(InterruptedError):
            run.main()
    assert used == [("32-true", "32-true", pytest.approx(24e-3)), ("32-true", "32-true", None)]


def count_parameters(arm):
    name = {"class_path": NETWORKS[arm.network]} if arm.network else {}
    net = make_config(name | arm.settings | {"n_token": 258}).build()
    return sum(weights.numel() for weights in net.parameters())


def test_networks_that_learn_pairs_have_equal_parameters_within_1_percent():
    first = count_parameters(recall.ARMS[recall.FIRST])
    for name, arm in recall.ARMS.items():
        assert count_parameters(arm) == pytest.approx(first, rel=0.01), name


def test_every_arm_of_pairs_reads_as_many_tokens_in_an_update(args):
    for name, arm in recall.ARMS.items():
        sizes = recall.choose_sizes(args, arm.rows)
        assert sizes.batch_size * sizes.segment == 1024, name
        assert sizes.segment % arm.segments == 0, name
        unit = arm.settings.get("unit_len", 1)
        assert sizes.segment // arm.segments % unit == 0, name


def test_bytes_of_a_state_are_those_of_its_memory_and_of_a_cache_with_its_tokens():
    config = TransformerXLConfig(n_token=9, n_layer=3, n_head=2, d_model=8, mem_len=16)
    trained = Namespace(net=config.build())
    of_states = 3 * 8 * 4
    # Beside the states, an integer: how many there are.
    assert readings.count_bytes(trained, {}) == 16 * of_states + 8
    assert readings.count_bytes(trained, {"mem_len": 5}) == 5 * of_states + 8
    assert readings.count_bytes(trained, {"cache_len": 7}) == 16 * of_states + 8 + 7 * (8 * 4 + 8)


def test_only_the_transformer_xl_is_read_in_several_ways():
    assert readings.list_ways("lstm", {}) == {figures.TRAINED: {}}
    ways = readings.list_ways("transformer_xl", {"cache_theta": 30.0})
    assert ways[figures.CACHED] == {"cache_len": 2000, "cache_theta": 30.0}
    assert ways["memory of 76"] == {"mem_len": 76}


def make_reading(bits, size):
    texts = dict.fromkeys(figures.TEXTS, bits)
    blocks = {text: [bits - 0.1, bits + 0.1] for text in figures.TEXTS}
    return {"bits_per_byte": texts, "blocks": blocks, "state_bytes": size}


@pytest.fixture
def records():
    """Return records of two seeds: Gated DeltaNet needs 0.2 bits more, and recalls 30 % more."""
    found = {}
    for seed in (1, 2):
        whole = make_reading(1.5 + seed / 10, 200)
        ways = {"as trained": whole, "memory of 76": make_reading(1.6 + seed / 10, 150)}
        passages = {"128": {"control": 5.0, "copy": 4.5}}
        xl = {"kind": "transformer_xl", "readings": ways, "passages": passages}
        other = {"as trained": make_reading(1.8 + seed / 10, 149)}
        gdn = {"kind": "gated_delta_net", "readings": other, "passages": passages}
        for record in (xl, gdn):
            found[f"{record['kind']} {seed}"] = record | {"seed": seed, "parameters": 1000}
        for name, share in (("Transformer-XL, memory of 128", 0.2), ("Gated DeltaNet", 0.5)):
            rows = [{"nearest": 256, "accuracy": share, "asked": 9}]
            pairs = {"kind": f"{figures.PAIRS}{name}", "rows": rows, "state_bytes": 70}
            found[f"pairs {name} {seed}"] = pairs | {"seed": seed, "parameters": 100}
    return found


def test_a_network_that_needs_more_bits_than_one_with_as_many_bytes_is_behind(records):
    by_name = {each.name: each for each in figures.list_contrasts(records)}
    behind = by_name["Python source: Gated DeltaNet against Transformer-XL, equal bytes of state"]
    assert behind.effects == pytest.approx([-0.2, -0.2])
    assert behind.documents == [pytest.approx([-0.2, -0.2])] * 2


def test_a_network_that_recalls_more_pairs_is_ahead(records):
    by_name = {each.name: each for each in figures.list_contrasts(records)}
    name = "Gated DeltaNet against Transformer-XL (memory of 128), 256 to 384 tokens back"
    assert by_name[f"pairs: {name}"].effects == pytest.approx([30, 30])


def test_the_documentation_is_also_compared_without_its_index(records):
    name = "Django's documentation without its index: Gated DeltaNet against Transformer-XL"
    name += ", equal bytes of state"
    assert {each.name: each for each in figures.list_contrasts(records)}[name].effects == []
    # The first of two blocks has three times the bytes of the second one.
    sizes = {"block_bytes": {"django_docs": [6, 2]}, "blocks_before_index": 1}
    found = figures.list_contrasts(records | {"sizes": {"kind": "sizes"} | sizes})
    effects = {each.name: each for each in found}[name].effects
    assert effects == pytest.approx([-0.2 / 1.5] * 2)


def test_tables_list_readings_by_bytes_and_what_a_passage_saves(records):
    _, first, second, third = figures.list_networks(records)
    assert first[0] == "Transformer-XL, memory of 128, read with a memory of 76"
    assert [row[2] for row in (first, second, third)] == ["150", "200", "149"]
    assert figures.list_passages(records)[1][1] == "0.500 ± 0.000 (2)"
    _, shorter, trained, *_ = figures.list_front(records)
    assert shorter[0] == "Transformer-XL, memory of 128, read with a memory of 76"
    assert shorter[2:] == ["1.750 ± 0.071 (2)", ""]
    assert trained[2:] == ["1.650 ± 0.071 (2)", "0.500 ± 0.000 (2)"]


def test_a_training_that_was_repeated_is_beside_the_first_one_and_in_no_other_table(records):
    before = figures.list_tables(records)
    network = records["gated_delta_net 2"]
    records["gated_delta_net 2, again"] = network | {
        "kind": "gated_delta_net, again",
        "readings": {"as trained": make_reading(2.25, 149)},
    }
    rows = [{"nearest": 256, "accuracy": 0.75, "asked": 9}]
    of_pairs = records["pairs Gated DeltaNet 1"] | {"kind": "pairs Gated DeltaNet, again"}
    records["pairs Gated DeltaNet 1, again"] = of_pairs | {"rows": rows}
    *tables, repeats = figures.list_tables(records)
    assert tables == before
    assert repeats[1:] == [
        ["Python source: Gated DeltaNet", "2", "2.0000", "2.2500", "+0.2500"],
        ["Django's code: Gated DeltaNet", "2", "2.0000", "2.2500", "+0.2500"],
        ["Django's documentation: Gated DeltaNet", "2", "2.0000", "2.2500", "+0.2500"],
        [
            "pairs, % of the values 256-384 tokens back: Gated DeltaNet",
            *("1", "50.0000", "75.0000", "+25.0000"),
        ],
    ]
