"""What experiments measure is what a plain forward pass gives for networks with one layer.

With one layer, a token's nats depend only on the tokens that it sees. So a way of reading is known
by how many these are.
"""

import copy
import json
import math
import re
import shutil
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from experiments import common, compressors, pace
from experiments.copying import figures as copying_figures
from experiments.copying import run as copying
from experiments.copying import training
from experiments.copying.rows import ALONE, FAST, MEMORY
from experiments.fragmentation import run as fragmentation
from experiments.gpu import operations
from experiments.how_far_back import passages
from experiments.how_far_back.passages import score_copies
from experiments.longer_memory import run as longer_memory
from experiments.novels import run as novels
from experiments.original import run as original
from experiments.recurrence import run as recurrence
from experiments.speed.cases import Case
from experiments.state_bytes import recall
from experiments.state_bytes import run as state_bytes
from experiments.stop_gradient import figures
from experiments.stop_gradient import run as stop_gradient
from experiments.stop_gradient.arms import ARMS, REFERENCE, SPAN, TIMED, TOKENS, Arm
from experiments.test_time import run as test_time
from experiments.words import lstm
from experiments.words import run as words
from tests.helpers.one_layer import count_seen, draw_text, mean_nats_of_pieces, nats_of
from txl_lightning import __main__ as entry
from txl_lightning import stream_nats
from txl_lightning.data.stream import Stream
from txl_lightning.errors import DataError


@pytest.mark.parametrize(("recurrence", "best"), [(True, 32), (False, 16)])
def test_the_best_length_is_chosen_on_val_and_its_context_is_not_scored(make_net, recurrence, best):
    row = MEMORY if recurrence else ALONE
    net = make_net(n_layer=1, mem_len=16 if recurrence else 0)
    texts = {"val": draw_text(2), "test": draw_text(4)}
    seen = {n: np.where(np.arange(8) == 0, n, n - 8 + np.arange(8)) for n in (8, 16)}
    if recurrence:
        seen = {n: np.full(8, n) for n in (8, 16, 32)}

    def expect(split, seen):
        nats = mean_nats_of_pieces(net, texts[split], 32, seen)
        return pytest.approx(math.exp(nats), rel=1e-9)

    store = SimpleNamespace(ids=texts.__getitem__)
    found = training.measure_best_length(net, store, row, FAST)
    assert found == {
        "attention_len": best,
        "best": expect("test", seen[best]),
        "val": {str(n): expect("val", seen[n]) for n in seen},
    }
    # On the test text, the shortest length is best.
    assert expect("test", seen[8]).expected < found["best"]


@pytest.mark.parametrize("reading", ["memory", "alone", "window", "cached"])
def test_a_position_in_the_segment_is_predicted_from_as_many_tokens_as_it_says(make_net, reading):
    net = make_net(n_layer=1, mem_len=16)
    ids = draw_text(6, 64 * 16)
    nats_GL = fragmentation.score_positions(net, ids, 16, reading)
    seen_L = {"alone": np.arange(1, 17), "memory": np.arange(17, 33), "window": np.full(16, 16)}
    seen_L["cached"] = seen_L["window"]
    seen_N = np.minimum(np.tile(seen_L[reading], 64), np.arange(len(ids)))
    expected_N = nats_of(net, ids, np.arange(1, len(ids)), seen_N[1:])
    np.testing.assert_allclose(nats_GL.ravel()[1:], expected_N, rtol=1e-9)
    assert np.isnan(nats_GL[0, 0])


@pytest.fixture(scope="module")
def finished(tmp_path_factory, sizes):
    """A finished run whose nats of val, of test and of each memory differ."""
    folder = tmp_path_factory.mktemp("random")
    (folder / "text.txt").write_bytes((draw_text(0, 12_000) + 97).astype(np.uint8).tobytes())
    where = {"data.path": folder / "text.txt", "trainer.default_root_dir": folder}
    where |= {"data.data_dir": folder / "data", "data.split": [0.5, 0.25, 0.25]}
    where |= {"model.net.init_std": 0.5, "model.net.norm": "pre"}
    entry.run(["fit", *sizes, *(f"--{name}={value}" for name, value in where.items())])
    return common.load_trained(folder / "version_0", {"data.tgt_len": 8})


@pytest.fixture
def args(monkeypatch, finished, tmp_path):
    """Arguments of experiments, which find the finished run in place of a new one."""
    monkeypatch.setattr(common, "fit", lambda folder, options: replace(finished, options=options))
    records = {"pace adamw": {"step_seconds": {"xl adamw": 0.3, "lstm adamw": 0.1}}}
    kinds = ["rate xl adamw adamw 2", "rate lstm adamw adamw 2"]
    kinds += [f"python_source, rate {name}" for name in ARMS]
    records |= {name: {"rate": 3e-3} for name in kinds}
    work = dict.fromkeys(ARMS, 1.0) | {"memory 2x512": 0.5, "memory 2x64": 1.04}
    for name in TIMED:
        records[f"python_source, {name}"] = {"step_operations": work, "step_seconds": work}
    (tmp_path / "results.json").write_text(json.dumps({"records": records}))
    where = {"runs": tmp_path, "out": tmp_path / "results.json", "minutes": 2.0}
    where |= {"accelerator": "cpu", "device": torch.device("cpu")}
    where |= {"again": False, "settings": {}}
    return Namespace(fast=True, precision="32-true", **where)


@pytest.mark.parametrize(
    ("measure", "values", "of_data"),
    [
        (fragmentation.measure_positions, lambda seed: (seed, "memory"), True),
        (passages.measure, lambda seed: ("passages memory", seed), False),
        (words.measure, lambda seed: ("lstm adamw", 2.0, seed), False),
        (novels.measure, lambda seed: ("memory", seed), True),
        (stop_gradient.measure, lambda seed: ("python_source", "memory 2x64", seed), True),
        (copying.measure, lambda seed: ("memory", seed), True),
        (original.measure, lambda seed: ("ours", seed), False),
    ],
    ids=lambda value: getattr(value, "__module__", ""),
)
def test_a_seed_reaches_the_weights_and_where_it_should_the_data(
    args, monkeypatch, measure, values, of_data
):
    fits = []

    def fit(folder, options):
        fits.append((folder, options))
        raise InterruptedError

    monkeypatch.setattr(common, "fit", fit)
    for seed in (5, 6):
        with pytest.raises(InterruptedError):
            measure(args, *values(seed))
    assert [options["seed_everything"] for _, options in fits] == [5, 6]
    assert [options.get("data.seed") for _, options in fits] == ([5, 6] if of_data else [None] * 2)
    assert fits[0][0] != fits[1][0]


def test_networks_that_know_passages_differ_in_their_memory_alone(args):
    kinds = ("passages memory", "passages alone")
    options = [passages.measure(args, kind, 1)["options"] for kind in kinds]
    assert options[0].get("model.net.mem_len") != 0
    assert options[0] | {"model.net.mem_len": 0} == options[1]


def test_both_networks_of_words_have_equal_minutes_and_differ_in_the_network_alone(args):
    args.fast = False
    kinds = ("xl adamw", "lstm adamw")
    xl, lstm = (words.measure(args, kind, 2.0, 1)["options"] for kind in kinds)
    # 90 % of two minutes, by 0.3 and 0.1 seconds a step.
    assert (xl["trainer.max_steps"], lstm["trainer.max_steps"]) == (360, 1080)
    shared = ("model.net.cutoffs", "model.net.dropout")
    own = ("model.net.", "trainer.max_steps", "trainer.val_check_interval")
    names = {name for name in xl | lstm if name in shared or not name.startswith(own)}
    assert {name for name in names if xl[name] != lstm[name]} == set()


def test_words_are_scored_in_test_with_the_memory_of_training(args, finished):
    found = words.measure(args, "xl adamw", 2.0, 1)["nats"]
    ids = finished.store.ids("test").astype(np.int64)
    row_len = -(-2001 // 16)
    places = np.setdiff1d(np.arange(2001), np.arange(16) * row_len)
    seen = count_seen(places % row_len, 64, 8)
    assert found == pytest.approx(nats_of(finished.net, ids, places, seen).mean(), rel=1e-6)


def test_words_are_tuned_by_validation_in_optimizer_rate_and_dropout(args, finished, monkeypatch):
    records = json.loads(args.out.read_text())["records"]
    rates = {"adamw": {"0.003": 2.0, "0.006": 1.5}, "muon": {"0.003": 1.0, "0.0015": 1.2}}
    for optimizer, val in rates.items():
        rate = float(min(val, key=val.get))
        found = {"optimizer": optimizer, "val": val, "rate": rate}
        records[f"rate lstm tuned {optimizer} 30"] = found
    records["pace tuned"] = {"step_seconds": {"lstm muon": 0.1}}
    args.out.write_text(json.dumps({"records": records}))
    args.fast = False
    fits = []

    def fit(folder, options):
        fits.append(options)
        folder.mkdir()
        nats = abs(options["model.net.dropout"] - 0.2)
        (folder / "metrics.csv").write_text(f"step,val/nats\n1,{nats}\n")
        return replace(finished, folder=folder, options=options)

    monkeypatch.setattr(common, "fit", fit)
    found = words.choose_dropout(args, "lstm tuned", 30.0)
    assert found["settings"] == {"optimizer": "muon", "rate": 0.003, "dropout": 0.2}
    # 90 % of thirty minutes, at 0.1 seconds a step.
    assert {options["trainer.max_steps"] for options in fits} == {16_200}
    assert {options["model.optim.muon_lr"] for options in fits} == {0.006}
    assert {options["seed_everything"] for options in fits} == {words.TUNING_SEED}


def test_an_lstm_of_linear_maps_computes_what_torchs_does(make_net):
    net = lstm.LSTMConfig(n_token=11, width=8, n_layer=2).build()
    theirs = torch.nn.LSTM(8, 8, 2)
    for n in range(2):
        for name, each in (("ih", net.maps[2 * n]), ("hh", net.maps[2 * n + 1])):
            getattr(theirs, f"weight_{name}_l{n}").data.copy_(each.weight)
            getattr(theirs, f"bias_{name}_l{n}").data.copy_(each.bias)
    tokens_BL = torch.randint(11, (3, 5))
    h_BLD, memory = net.encode(tokens_BL)
    out_LBD, (h_NBD, c_NBD) = theirs(net.embedding(tokens_BL.T))
    torch.testing.assert_close(h_BLD, out_LBD.transpose(0, 1))
    torch.testing.assert_close((memory.h_NBD, memory.c_NBD), (h_NBD, c_NBD))


def test_arms_have_equal_tokens_of_an_update_and_differ_in_rows_gradient_and_memory_alone(args):
    args.fast = False
    runs = {name: stop_gradient.measure(args, "python_source", name, 1) for name in ARMS}
    own = ("data.batch_size", "data.tgt_len", "trainer.accumulate_grad_batches")
    own += ("model.net.mem_len", "model.net.same_length", "trainer.limit_val_batches")
    own += ("trainer.val_check_interval",)
    shared = []
    for name, run in runs.items():
        options = run["options"]
        rows, length, segments, mem_len, same_length, n_val, interval = (options[n] for n in own)
        assert rows * length * segments == TOKENS
        assert rows * length * n_val == 102_400
        assert interval == 1464 // 2 * segments
        assert (mem_len, same_length) == ((128, "mem_len") if "memory" in name else (0, None))
        shared.append({n: value for n, value in options.items() if n not in own})
    assert all(options == shared[0] for options in shared)


def test_an_arm_with_other_work_is_trained_again_with_as_much_as_the_reference(args, monkeypatch):
    args.fast = False
    vars(args).update(only=[*stop_gradient.KINDS], seeds=[1], origin={})
    stop_gradient.measure_equalized(args, "python_source")
    records = common.load_records(args.out)
    again = {name.removeprefix("python_source, ") for name in records if ", equal " in name}
    # That of 1.04 times the work has as many steps as it had.
    assert again == {f"memory 2x512, equal {budget} 1" for budget in ("operations", "seconds")}
    options = [each["options"] for name, each in records.items() if ", equal " in name]
    assert [each["trainer.max_steps"] for each in options] == [2928, 2928]


def test_an_effect_of_equal_work_needs_trainings_with_as_much_work_or_as_much_as_it_is():
    # Segments of 64 without memory were not timed.
    seconds = dict.fromkeys((REFERENCE, *TIMED["pace"]), 1.0)
    operations = dict.fromkeys(ARMS, 1.0)
    records = {"novels, pace": {"step_operations": operations, "step_seconds": seconds}}
    for name in ARMS:
        fields = {"kind": f"novels, {name}", "seed": 1, "blocks": {"span": [2.0]}}
        records[f"novels, {name} 1"] = fields | {"bits_per_byte": {"span": 2.0}}
    measured = {each.name for each in figures.list_contrasts(records) if each.effects}
    for name, budgets in (
        ("Transformer-XL of 16 rows against 8", {"", ", equal operations", ", equal seconds"}),
        ("memory against segments of 64 read by a window, 16 rows", {""}),
    ):
        found = {each for each in measured if each.startswith(f"novels: {name}")}
        assert found == {f"novels: {name}{budget}" for budget in budgets}


def test_an_arm_that_was_timed_later_has_as_much_work_as_the_reference_beside_it(args):
    seconds = {REFERENCE: 2.0, "memory 2x512": 4.0}
    records = {"novels, pace": {"step_seconds": seconds | {"alone 16x64": 9.0}}}
    args.out.write_text(json.dumps({"records": records}))
    # Not by the times of another record.
    with pytest.raises(DataError, match="novels, pace of segments of 64 is missing"):
        stop_gradient.count_steps(args, "novels", "alone 16x64, equal seconds")
    later = {REFERENCE: 3.0, "alone 16x64": 2.0}
    records["novels, pace of segments of 64"] = {"step_seconds": later}
    args.out.write_text(json.dumps({"records": records}))
    steps = stop_gradient.arms.STEPS
    for kind, expected in (
        ("memory 2x512, equal seconds", steps / 2),
        ("alone 16x64, equal seconds", steps * 3 / 2),
        ("alone 16x64", steps),
    ):
        assert stop_gradient.count_steps(args, "novels", kind) == expected


def test_arms_are_read_with_the_span_of_training_and_segments_also_as_they_were(args, finished):
    ids = finished.store.ids("test").astype(np.int64)
    row_len = -(-2001 // stop_gradient.SCORED_ROWS)
    places = np.setdiff1d(np.arange(2001), np.arange(stop_gradient.SCORED_ROWS) * row_len)
    seen = {
        "span": np.minimum(places % row_len, SPAN),
        "segments": count_seen(places % row_len, 128, 0),
    }
    found = stop_gradient.measure(args, "python_source", "alone 8x128", 1)
    for way, bits in found["bits_per_byte"].items():
        nats = nats_of(finished.net, ids, places, seen[way])
        assert bits * math.log(2) == pytest.approx(nats.mean(), rel=1e-6)
        blocks = [part.mean() / math.log(2) for part in np.array_split(nats, 100)]
        assert found["blocks"][way] == pytest.approx(blocks, abs=1e-5)
    assert found["bits_per_byte"].keys() == seen.keys()
    with_memory = stop_gradient.measure(args, "python_source", "memory 8x128", 1)
    assert with_memory["bits_per_byte"] == {"span": found["bits_per_byte"]["span"]}


@pytest.mark.parametrize("name", ARMS)
def test_operations_that_are_computed_are_those_of_the_speed_measurements(name):
    arm = ARMS[name]
    case = Case(name, {"n_token": 300}, arm.rows, arm.gradient_len, arm.mem_len, trains=True)
    # There, distances have a gradient of their input, too.
    of_distances = 4 * 128**2 * (arm.gradient_len + arm.mem_len + 1)
    expected = (operations.count_operations(case) / 2 - of_distances) / case.tokens
    assert arm.count_operations(300, computed=True) == pytest.approx(expected, rel=1e-9)


def test_operations_that_the_mask_needs_are_fewest_for_segments_and_of_a_span_for_memory():
    by_hand = 3 * 3 * 128 * 128 + 3 * 10 * 128**2 + 2 * 128**2 * 128 / (16 * 64)
    # Keys and values of 192 states for 64 tokens, whose memory has no gradient.
    by_hand += 2 * 128**2 * (3 + 3 + 1)
    assert Arm(16, 64).count_operations(300) == 4 * by_hand + 3 * 128 * 300
    alone = Arm(16, 64, has_memory=False)
    assert alone.count_operations(300) < alone.count_operations(300, computed=True)


@pytest.mark.parametrize("precision_", ["32-true", "bf16-mixed"])
def test_steps_are_timed_in_the_precision_of_training(args, monkeypatch, precision_):
    given = []
    monkeypatch.setattr(
        pace, "make_step", lambda config, optim, tokens, narrow, n: given.append(narrow)
    )
    monkeypatch.setattr(pace, "time_in_turn", lambda steps, fast: dict.fromkeys(steps, 1.0))
    monkeypatch.setattr(pace, "make_config", lambda settings: None)
    args.precision = precision_
    seconds = stop_gradient.time_arms(args, "python_source", ("memory 2x64",))["step_seconds"]
    assert given == [precision_ == "bf16-mixed"] * len(seconds)


@pytest.mark.parametrize(
    ("experiment", "values"),
    [
        (words, ("xl adamw", "adamw", 2.0)),
        (stop_gradient, ("python_source", "memory 8x128")),
    ],
)
@pytest.mark.parametrize(("best", "beyond"), [(12e-3, 24e-3), (1.5e-3, 0.75e-3)])
def test_the_learning_rate_is_chosen_between_ones_with_more_nats_of_validation(
    args, finished, monkeypatch, experiment, values, best, beyond
):
    def fit(folder, options):
        folder.mkdir()
        last = 1 + abs(math.log(options["model.optim.lr"] / best))
        # The end of a curve counts, not its least value.
        (folder / "metrics.csv").write_text(f"step,val/nats\n1,{0.5 - last}\n2,{last}\n")
        return replace(finished, folder=folder, options=options)

    monkeypatch.setattr(common, "fit", fit)
    monkeypatch.setattr(args, "fast", False)
    found = experiment.choose_rate(args, *values)
    assert found["rate"] == best
    assert found["val"][f"{best:g}"] == 1
    assert {f"{2 * best:g}", f"{best / 2:g}"} < set(found["val"])
    assert f"{beyond:g}" in found["val"]
    nats = [curve["val/nats"][-1] for curve in found["curves"].values()]
    assert nats == [*found["val"].values()]


def test_rates_are_tuned_in_trainings_as_long_as_those_that_count(args, monkeypatch):
    arm = ("python_source", "memory 2x64")
    steps = []

    def fit(folder, options):
        steps.append(options["trainer.max_steps"])
        raise InterruptedError

    monkeypatch.setattr(common, "fit", fit)
    monkeypatch.setattr(args, "fast", False)
    with pytest.raises(InterruptedError):
        stop_gradient.choose_rate(args, *arm)
    with pytest.raises(InterruptedError):
        stop_gradient.measure(args, *arm, 1)
    assert steps[0] == steps[1]


@pytest.mark.parametrize(
    "changed",
    [
        {"trainer.precision": "bf16-mixed"},
        {"data.tgt_len": 9},
        {"model.net.n_layer": 2},
        {"config": "configs/quickstart.yaml"},
    ],
)
def test_a_run_with_another_setting_has_another_folder(tmp_path, changed):
    options = {"data.tgt_len": 8, "trainer.precision": "32-true"}
    folder = common.find_folder(tmp_path, "memory 1", options)
    assert folder == common.find_folder(tmp_path, "memory 1", dict(reversed(options.items())))
    assert folder != common.find_folder(tmp_path, "memory 1", options | changed)


def test_a_training_that_is_repeated_is_a_new_one_in_a_folder_of_its_own(args, monkeypatch):
    folders = []

    def fit(folder, options):
        folders.append(folder)
        raise InterruptedError

    monkeypatch.setattr(common, "fit", fit)
    for args.again in (False, True):
        with pytest.raises(InterruptedError):
            passages.measure(args, "passages memory", 1)
    assert folders[0] != folders[1]


def test_steps_are_not_timed_for_trainings_on_a_gpu(args):
    args.accelerator = "gpu"
    with pytest.raises(DataError, match="gpu: expected cpu, which steps are timed on"):
        stop_gradient.time_arms(args, "python_source", ("memory 2x64",))


@pytest.mark.parametrize(
    ("measure", "values", "needed"),
    [
        (stop_gradient.measure, ("sqlite", "memory 2x64", 1), "python_source, rate memory 2x64"),
        (words.measure, ("xl adamw", 2.0, 1), "rate xl adamw adamw 2"),
        (words.measure, ("xl tuned", 30.0, 1), "dropout xl tuned 30"),
        (words.choose_dropout, ("xl tuned", 30.0), "rate xl tuned adamw 30"),
        (recall.measure, ("LSTM", 1), "rate pairs LSTM"),
        (recall.measure, ("Transformer-XL, memory of 512", 1), f"rate pairs {recall.FIRST}"),
        (recurrence.measure, ("S3", "LSTM, 1 layer", 1), "rate S3 LSTM, 1 layer"),
        (state_bytes.measure, ("lstm", 1), "rate lstm muon 0.006"),
        (test_time.measure, ("cache and steps", 1), "chosen cache and steps"),
        (test_time.choose, ("static",), "python_source, rate memory 16x64"),
    ],
)
def test_what_was_chosen_with_other_settings_is_not_used(args, measure, values, needed):
    args.fast = False
    args.settings = {"precision": "32-true"}
    args.out = args.runs / "runs" / "here" / "results.json"
    args.runs = args.out.parent
    # The networks of test_time are those of another folder.
    folders = [args.out.parent, args.out.parent.parent / "stop_gradient"]
    for folder in folders:
        folder.mkdir(parents=True, exist_ok=True)
    if needed.startswith("chosen"):
        write_record(folders[1], "python_source, rate memory 16x64", "32-true")
    with pytest.raises(DataError, match=r"is missing|was tried"):
        measure(args, *values)
    for folder in folders if not needed.startswith("chosen") else folders[:1]:
        write_record(folder, needed, "bf16-mixed")
    message = f"{needed} was measured with --precision bf16-mixed; expected 32-true"
    with pytest.raises(DataError, match=re.escape(message)):
        measure(args, *values)


@pytest.mark.parametrize(
    ("experiment", "option"),
    [
        (recurrence, "--precision=bf16-mixed"),
        (recurrence, "--accelerator=gpu"),
        (original, "--precision=bf16-mixed"),
    ],
)
def test_a_setting_that_a_training_does_not_have_is_refused(
    monkeypatch, capsys, experiment, option
):
    monkeypatch.setattr("sys.argv", ["run.py", option])
    with pytest.raises(SystemExit, match="2"):
        experiment.main()
    assert "invalid choice" in capsys.readouterr().err


@pytest.mark.parametrize(
    "experiment", [stop_gradient, test_time, recurrence, state_bytes, longer_memory]
)
def test_a_study_is_reproduced_in_the_precision_of_its_records(monkeypatch, experiment):
    given = {}

    def measure_once(args, name, *_):
        given.update(args.settings)
        raise InterruptedError

    monkeypatch.setattr("sys.argv", ["run.py"])
    monkeypatch.setattr(common, "measure_once", measure_once)
    with pytest.raises(InterruptedError):
        experiment.main()
    records = common.load_records(Path(experiment.__file__).with_name("results.json")).values()
    # Pairs, and the second training of the best rate, have float32 (tests/test_state_bytes.py).
    own = [each for each in records if "pairs" not in each["kind"] and each["kind"] != "precision"]
    assert {each["ran_with"]["precision"] for each in own} == {given["precision"]}


def write_record(folder, name, precision):
    record = {"rate": 1e-3, "nats": 1.0, "ran_with": {"precision": precision}}
    (folder / "results.json").write_text(json.dumps({"records": {name: record}}))


@pytest.fixture
def measured(args):
    """Arguments whose results have a record of kind memory and seed 1."""
    vars(args).update(seeds=[1], only=["memory"], origin={"date": "2026"})
    args.settings = {"precision": "32-true"}
    common.measure_kinds(args, lambda args, kind, seed: {"kind": kind, "bits": 1})
    return args


def test_a_record_is_not_returned_for_another_precision(measured, capsys):
    measured.settings = {"precision": "bf16-mixed"}
    before = measured.out.read_text()
    with pytest.raises(SystemExit, match="3"):
        common.measure_kinds(measured, lambda args, kind, seed: {"kind": kind, "bits": 2})
    message = (
        "memory 1 was measured with --precision 32-true; expected bf16-mixed; give another --out"
    )
    assert capsys.readouterr().err.strip().endswith(message)
    assert measured.out.read_text() == before


def test_again_measures_a_record_once_more_as_another_kind(measured):
    measured.again = True
    for bits in (2, 3):
        common.measure_kinds(
            measured, lambda args, kind, seed, bits=bits: {"kind": kind, "bits": bits}
        )
    records = common.load_records(measured.out)
    assert (records["memory 1"]["kind"], records["memory 1"]["bits"]) == ("memory", 1)
    again = records["memory 1, again"]
    assert (again["kind"], again["bits"]) == ("memory, again", 2)


def skip_without(name):
    if name == "ppmd":
        pytest.importorskip("pyppmd")
    elif name == "zpaq" and not shutil.which(name):
        pytest.skip("needs the program zpaq")


@pytest.mark.parametrize("name", ["ppmd", "zpaq"])
def test_bits_after_a_text_are_of_what_that_text_does_not_contain(name):
    skip_without(name)
    text = bytes(torch.randint(256, (20_000,), generator=torch.manual_seed(0)).tolist())
    assert compressors.count_bits(name, text) == pytest.approx(8, abs=0.5)
    assert compressors.count_bits(name, text, text) < 0.2


def test_ppmd_has_the_order_and_memory_that_its_name_says():
    pyppmd = pytest.importorskip("pyppmd")
    text = b"as many words as there are in many words" * 9
    coded = pyppmd.Ppmd7Encoder(16, 2**30)
    n_byte = len(coded.encode(text)) + len(coded.flush())
    assert compressors.count_bits("ppmd", text) == pytest.approx(8 * n_byte / len(text))


def log_copies(net, store, tgt_len):
    """Return what the probe logs at a validation."""
    logged = {}
    data = SimpleNamespace(store=store, config=SimpleNamespace(tgt_len=tgt_len))
    module = SimpleNamespace(net=net, log=logged.__setitem__)
    trainer = SimpleNamespace(sanity_checking=False, datamodule=data)
    copying.CopyProbe().on_validation_epoch_end(trainer, module)
    return logged[copying.METRIC]


def test_copies_of_val_are_probed_at_each_validation(finished, monkeypatch):
    # The network sees 16 tokens, and so no passage after 64.
    monkeypatch.setattr(copying, "GAP", 0)
    how = {"mem_len": finished.net.config.mem_len, "tgt_len": 8}
    nats = score_copies(finished.net, finished.store.ids("val"), 0, 0, how)
    assert nats["control"] != nats["copy"]
    saved = log_copies(finished.net, finished.store, 8)
    assert saved == pytest.approx(nats["control"] - nats["copy"])


@pytest.mark.parametrize(("tgt_len", "sees_passage"), [(64, False), (128, True)])
def test_without_memory_copies_are_probed_by_a_window_of_a_segment(finished, tgt_len, sees_passage):
    store = finished.store
    config = replace(finished.net.config, mem_len=0, n_layer=1)
    saved = log_copies(config.build().eval(), store, tgt_len)
    assert (saved != 0) == sees_passage


def test_a_network_has_learned_to_copy_at_the_first_validation_that_shows_it():
    curve = {"steps": [9, 19, 29], copying.METRIC: [0.1, 0.3, 0.2]}
    assert copying_figures.find_step({"curve": curve}) == 20
    curve = {"steps": [9, 19], copying.METRIC: [0.1, 0.2]}
    assert copying_figures.find_step({"curve": curve}) is None


class AsOriginal(torch.nn.Module):
    """Our network with the forward of the original's: columns are rows, memories come last."""

    def __init__(self, net):
        super().__init__()
        self.net = net

    def forward(self, tokens_LB, targets_LB, *memory):
        nats_BL, memory = self.net.loss(tokens_LB.T, targets_LB.T, *memory)
        return nats_BL.T, memory


def test_the_originals_network_is_scored_in_the_rows_and_segments_of_training(finished):
    data = SimpleNamespace(store=finished.store)
    found = original.score_original(AsOriginal(finished.net), data, None)
    ids = finished.store.ids("test")
    how = {"batch_size": original.ROWS, "tgt_len": original.SEGMENT}
    nats_BT = stream_nats(finished.net, ids.astype("int64"), **how)
    assert found == pytest.approx(nats_BT.double().mean().item(), rel=1e-5)


def test_the_originals_network_is_trained_with_its_memory_clipping_and_schedule(finished):
    nets = [copy.deepcopy(finished.net).train() for _ in range(2)]
    ids = finished.store.ids("train").astype("int64")
    stream = Stream.from_tokens(ids, original.ROWS, original.SEGMENT)
    original.train_original(AsOriginal(nets[0]), stream, 3)
    optimizer = torch.optim.Adam(nets[1].parameters())
    memory = None
    for step in range(3):
        segment = stream.segment(step)
        for group in optimizer.param_groups:
            group["lr"] = original.RATE * 0.5 * (1 + math.cos(math.pi * step / 3))
        nats_BL, memory = nets[1].loss(segment.tokens_BL, segment.targets_BL, memory)
        optimizer.zero_grad()
        nats_BL.mean().backward()
        torch.nn.utils.clip_grad_norm_(nets[1].parameters(), original.CLIP)
        optimizer.step()
    weights = [dict(net.named_parameters()) for net in nets]
    for name, weight in weights[0].items():
        torch.testing.assert_close(weight, weights[1][name])
