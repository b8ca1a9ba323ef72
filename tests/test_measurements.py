"""What experiments measure is what a plain forward pass gives for networks with one layer.

With one layer, a token's nats depend only on the tokens that it sees, so that a way of reading is
known by how many these are.
"""

import copy
import csv
import json
import math
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from experiments import common, pace
from experiments.ablation import run as ablation
from experiments.ablation.rows import FAST, ROWS
from experiments.copied import run as copied
from experiments.depth import run as depth
from experiments.dose import run as dose
from experiments.fragmentation import run as fragmentation
from experiments.memory_length import run as memory_length
from experiments.own_network import run as own_network
from experiments.own_text import run as own_text
from experiments.precision import run as precision
from experiments.quickstart import run as quickstart
from experiments.recall import run as recall
from experiments.recurrence import run as recurrence
from experiments.sliding_window import run as sliding_window
from experiments.sorting import answers
from experiments.sorting import run as sorting
from experiments.tiny_shakespeare import run as tiny_shakespeare
from experiments.words import run as words
from txl_lightning import __main__ as entry
from txl_lightning.analysis.context_length import spread_targets
from txl_lightning.data.settings import DataConfig
from txl_lightning.model import EvalLengths


def draw_text(seed, count=700):
    return np.random.default_rng(seed).integers(0, 11, count)


@torch.inference_mode()
def predict(net, ids, places, seen):
    """Return logits of `ids[places]`, each from the last `seen` tokens before it."""
    logits_NV = torch.empty(len(places), net.config.n_token, dtype=torch.float64)
    for count in np.unique(seen):
        at = np.flatnonzero(seen == count)
        tokens_BL = torch.from_numpy(ids[places[at][:, None] + np.arange(-count, 0)])
        memory = net.empty_memory(len(at), EvalLengths(mem_len=0))
        logits_NV[at] = net(tokens_BL, memory)[0][:, -1].double()
    return logits_NV


def nats_of(net, ids, places, seen):
    target_N = torch.from_numpy(ids[places])
    return F.cross_entropy(predict(net, ids, places, seen), target_N, reduction="none").numpy()


def count_seen(place, segment, mem_len):
    """Return the number of tokens that predict a place, in segments from 0 on and with memory."""
    start = (place - 1) // segment * segment
    return place - np.maximum(start - mem_len, 0)


def mean_nats_of_pieces(net, ids, before, seen):
    """Return mean nats of 64 pieces after `before` others; `seen` is of each place in them."""
    starts = before + np.linspace(0, len(ids) - before - len(seen), 64).astype(int)
    places = starts[:, None] + np.arange(len(seen))
    return nats_of(net, ids, places.ravel(), np.tile(seen, 64)).mean()


@pytest.mark.parametrize(("recurrence", "best"), [(True, 32), (False, 16)])
def test_ablation_chooses_the_length_on_val_and_scores_no_context(make_net, recurrence, best):
    row = next(row for row in ROWS if row.recurrence == recurrence)
    net = make_net(n_layer=1, mem_len=16 if recurrence else 0)
    texts = {"val": draw_text(2), "test": draw_text(4)}
    seen = {n: np.where(np.arange(8) == 0, n, n - 8 + np.arange(8)) for n in (8, 16)}
    as_trained = seen[16]
    if recurrence:
        seen = {n: np.full(8, n) for n in (8, 16, 32)}
        as_trained = count_seen(np.arange(32, 40), 16, 16)

    def expect(split, seen):
        nats = mean_nats_of_pieces(net, texts[split], 32, seen)
        return pytest.approx(math.exp(nats), rel=1e-9)

    store = SimpleNamespace(ids=texts.__getitem__)
    found = ablation.measure_perplexities(net, store, row, FAST)
    assert found == {
        "attention_len": best,
        "test": expect("test", seen[best]),
        "test_as_trained": expect("test", as_trained),
        "val": {str(n): expect("val", seen[n]) for n in seen},
    }
    # On the test text, the shortest length is best.
    assert expect("test", seen[8]).expected < found["test"]


def test_a_longer_memory_is_measured_on_the_same_tokens(make_net):
    net, ids, lengths = make_net(n_layer=1, mem_len=16), draw_text(3), (0, 16, 32)
    nats = memory_length.nats_by_memory(net, ids, FAST, lengths)
    for mem_len in lengths:
        seen = count_seen(np.arange(32, 40), 16, mem_len)
        expected = mean_nats_of_pieces(net, ids, 32, seen)
        assert nats[str(mem_len)] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("reading", ["memory", "alone", "window"])
def test_a_position_in_the_segment_is_predicted_from_as_many_tokens_as_it_says(make_net, reading):
    net, ids = make_net(n_layer=1, mem_len=16), draw_text(6, 64 * 16)
    nats_GL = fragmentation.nats_by_position(net, ids, 16, reading)
    seen_L = {"alone": np.arange(1, 17), "memory": np.arange(17, 33), "window": np.full(16, 16)}
    seen_N = np.minimum(np.tile(seen_L[reading], 64), np.arange(len(ids)))
    expected_N = nats_of(net, ids, np.arange(1, len(ids)), seen_N[1:])
    np.testing.assert_allclose(nats_GL.ravel()[1:], expected_N, rtol=1e-9)
    assert np.isnan(nats_GL[0, 0])


def test_answers_by_rereading_use_no_memory_and_shares_are_of_right_ones(make_net, monkeypatch):
    net, shown_BL, read = make_net(mem_len=0), torch.randint(10, (8, 20)), []
    text_BL = shown_BL
    with torch.inference_mode():
        for _ in range(20):
            text_BL = torch.cat([text_BL, net(text_BL)[0][:, -1:].argmax(-1)], dim=1)
    right_BL = text_BL[:, 20:].clone()
    net.embedding.register_forward_hook(lambda module, given, out: read.append(given[0].size(1)))
    assert answers.score_answers(net, shown_BL, right_BL)["memory_accuracy"] == 1
    assert read == [20, *[1] * 19, *range(20, 40)]
    # By rereading, 2 of 8 answers have another last digit.
    other_BL = right_BL.clone()
    other_BL[:2, -1] += 1
    monkeypatch.setattr(answers, "answer_by_rereading", lambda *_: other_BL)
    assert answers.score_answers(net, shown_BL, right_BL) == {
        "identical": 0.75,
        "memory_accuracy": 1,
        "memory_digit_accuracy": [1] * 20,
        "rereading_accuracy": 0.75,
        "rereading_digit_accuracy": [1] * 19 + [0.75],
    }


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
    seconds = {"4, memory": 0.3, "4": 0.2, "xl": 0.3, "lstm": 0.1}
    records = {"pace": {"step_seconds": seconds}}
    records |= {f"rate {kind}": {"rate": 3e-3} for kind in [*seconds, "8", "12"]}
    (tmp_path / "results.json").write_text(json.dumps({"records": records}))
    where = {"runs": tmp_path, "out": tmp_path / "results.json", "minutes": 2.0}
    return Namespace(fast=True, text=None, precision="32-true", **where)


@pytest.mark.parametrize(
    ("measure", "values", "of_data"),
    [
        (ablation.measure_row, lambda seed: (ROWS[0], seed), True),
        (fragmentation.measure_positions, lambda seed: (seed, "memory"), True),
        (memory_length.measure_longer, lambda seed: (seed, memory_length.READ_ROWS[1]), True),
        (recall.measure, lambda seed: ("32", seed), True),
        (sorting.measure_answers, lambda seed: ("fresh", seed), False),
        (quickstart.measure, lambda seed: ("memory", seed), False),
        (tiny_shakespeare.measure, lambda seed: ("memory", seed), False),
        (words.measure, lambda seed: ("lstm", seed), False),
        (depth.measure, lambda seed: ("8", seed), False),
        (own_text.train_and_measure, lambda seed: (seed, Path(), Path()), False),
        (precision.measure, lambda seed: ("bf16-mixed", seed), False),
        (copied.measure, lambda seed: ("memory", seed), False),
        (dose.measure, lambda seed: ("memory", 1, seed), True),
        (recurrence.measure, lambda seed: ("memory", seed, 3e-3), True),
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


NATS = {
    words: lambda found: {"as trained": found["nats"]},
    tiny_shakespeare: lambda found: found["nats_by_mem_len"],
    quickstart: lambda found: {n: b * math.log(2) for n, b in found["bits_per_byte"].items()},
}
NATS[depth] = NATS[quickstart]
WITH_MEMORY = {f"mem_len {n}": (64, n) for n in (0, 128, 256)}


@pytest.mark.parametrize(
    ("experiment", "kind", "split", "rows", "ways"),
    [
        (words, "xl", "test", 16, {"as trained": (64, 8)}),
        (depth, "4, memory", "test", 16, {"memory": (64, 128)}),
        (depth, "12", "test", 16, {"segments": (64, 0), "window": (8, 56)}),
        (tiny_shakespeare, "memory", "val", 12, {"0": (64, 0), "64": (64, 64)}),
        (quickstart, "memory", "test", 16, WITH_MEMORY),
        # A window rereads 56 bytes for each 8, and sees as many as with a memory of 56.
        (quickstart, "alone", "test", 16, {"mem_len 0": (64, 0), "window": (8, 56)}),
    ],
    ids=["words", "depth", "depth without memory", "tiny_shakespeare", "quickstart", "alone"],
)
def test_a_run_is_scored_in_its_split_and_segments_with_each_memory(
    args, finished, experiment, kind, split, rows, ways
):
    found = experiment.measure(args, kind, 1)
    ids = finished.store.ids(split).astype(np.int64)
    # The first 2,001 tokens are read, and the first of each row is not scored.
    row_len = -(-2001 // rows)
    places = np.setdiff1d(np.arange(2001), np.arange(rows) * row_len)
    for way, (segment, mem_len) in ways.items():
        seen = count_seen(places % row_len, segment, mem_len)
        expected = nats_of(finished.net, ids, places, seen).mean()
        assert NATS[experiment](found)[way] == pytest.approx(expected, rel=1e-6), way


def test_recipe_of_nanogpt_is_also_scored_by_random_segments_without_memory(args, finished):
    found = tiny_shakespeare.measure(args, "recipe", 4)["nats_of_batches"]
    ids = finished.store.ids("val").astype(np.int64)
    starts = np.random.default_rng(4).integers(len(ids) - 64, size=240)
    places = (starts[:, None] + np.arange(1, 65)).ravel()
    nats = nats_of(finished.net, ids, places, np.tile(np.arange(1, 65), 240))
    assert found == pytest.approx(nats.mean(), rel=1e-6)
    assert "nats_of_batches" not in tiny_shakespeare.measure(args, "plain", 4)


@pytest.mark.parametrize(
    ("experiment", "memory", "plain"),
    [
        (quickstart, "memory", "alone"),
        (tiny_shakespeare, "memory", "plain"),
        (depth, "4, memory", "4"),
        (copied, "memory", "alone"),
    ],
)
def test_networks_that_are_compared_differ_in_their_memory_alone(args, experiment, memory, plain):
    options = [experiment.measure(args, kind, 1)["options"] for kind in (memory, plain)]
    assert options[0].get("model.net.mem_len") != 0
    assert options[0] | {"model.net.mem_len": 0} == options[1]


def test_both_networks_of_words_have_equal_minutes_and_differ_in_the_network_alone(args):
    args.fast = False
    xl, lstm = (words.measure(args, kind, 1)["options"] for kind in ("xl", "lstm"))
    # 90 % of two minutes, by 0.3 and 0.1 seconds a step.
    assert (xl["trainer.max_steps"], lstm["trainer.max_steps"]) == (360, 1080)
    shared = ("model.net.cutoffs", "model.net.dropout")
    own = ("model.net.", "trainer.max_steps", "trainer.val_check_interval")
    names = {name for name in xl | lstm if name in shared or not name.startswith(own)}
    assert {name for name in names if xl[name] != lstm[name]} == set()


def test_networks_of_depth_have_equal_updates_but_one_has_equal_time(args, monkeypatch):
    monkeypatch.setattr(depth, "find_prefix", lambda: Path("prefix.txt"))
    args.fast = False
    options = {kind: depth.measure(args, kind, 1)["options"] for kind in depth.LAYERS}
    steps = {kind: each["trainer.max_steps"] for kind, each in options.items()}
    # Steps of 0.3 seconds with memory, and of 0.2 without.
    assert steps == dict.fromkeys(depth.LAYERS, 1500) | {"4, equal time": 2250}
    nets = [(each["model.net.n_layer"], each["model.net.mem_len"]) for each in options.values()]
    assert nets == [(4, 128), (4, 0), (4, 0), (8, 0), (12, 0)]


@pytest.mark.parametrize("precision_", ["32-true", "bf16-mixed"])
@pytest.mark.parametrize("experiment", [depth, own_network])
def test_steps_are_timed_in_the_precision_of_training(args, monkeypatch, experiment, precision_):
    given = []
    monkeypatch.setattr(
        pace, "make_step", lambda config, optim, tokens, narrow: given.append(narrow)
    )
    monkeypatch.setattr(pace, "time_in_turn", lambda steps, fast: dict.fromkeys(steps, 1.0))
    monkeypatch.setattr(pace, "make_config", lambda settings: None)
    args.precision = precision_
    seconds = experiment.time_kinds(args)["step_seconds"]
    assert given == [precision_ == "bf16-mixed"] * len(seconds)


@pytest.mark.parametrize(("experiment", "net"), [(words, "xl"), (depth, "4")])
@pytest.mark.parametrize(("best", "beyond"), [(12e-3, 24e-3), (1.5e-3, 0.75e-3)])
def test_the_learning_rate_is_chosen_between_ones_with_more_nats_of_validation(
    args, finished, monkeypatch, experiment, net, best, beyond
):
    def fit(folder, options):
        folder.mkdir()
        last = 1 + abs(math.log(options["model.optim.lr"] / best))
        (folder / "metrics.csv").write_text(f"step,val/nats\n1,{9 - last}\n2,{last}\n")
        return replace(finished, folder=folder, options=options)

    monkeypatch.setattr(common, "fit", fit)
    found = experiment.choose_rate(args, net)
    assert found["rate"] == best
    assert found["val"][f"{best:g}"] == 1
    assert {f"{2 * best:g}", f"{best / 2:g}"} < set(found["val"])
    assert f"{beyond:g}" in found["val"]


def test_xz_is_measured_alone_and_after_the_training_text(monkeypatch, tmp_path):
    train = np.random.default_rng(0).integers(0, 16, 9500).astype(np.uint8).tobytes()
    # The last twentieth is in the training text, too.
    (tmp_path / "text.txt").write_bytes(train + train[:500])
    monkeypatch.setenv("TXL_DATA", str(tmp_path))
    data = DataConfig(path=str(tmp_path / "text.txt"), vocab="bytes")
    found = common.measure_xz(Namespace(fast=False), data)
    assert found["bytes"] == 500
    assert 4 < found["alone"] < 6
    assert found["after"] < 0.5


def test_xz_reads_the_text_that_the_model_has_read(monkeypatch, tmp_path):
    monkeypatch.setenv("TXL_DATA", str(tmp_path / "data"))
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        text = "".join(f"{split} {n}\n" for n in range(200))
        (tmp_path / split / "book.txt").write_text(text)
    args = Namespace(fast=True, precision="32-true")
    train = (tmp_path / "train" / "book.txt").read_bytes()
    # 4 rows, of each 4 segments of 16 bytes.
    rows = [train[row * (len(train) // 4) :][:64] for row in range(4)]
    assert own_text.read_training_text(own_text.choose_options(args, tmp_path))[1] == b"".join(rows)
    found = own_text.measure_xz(args, tmp_path, tmp_path / "test" / "book.txt")
    assert (found["read_bytes"], found["train_bytes"]) == (256, len(train))
    assert found["after"] < found["read"] < found["alone"]


def test_xz_after_a_text_costs_only_what_that_text_does_not_contain():
    text = bytes(torch.randint(256, (20_000,), generator=torch.manual_seed(0)).tolist())
    bits = common.compress(text, text)
    assert bits["alone"] == pytest.approx(8, abs=0.1)
    assert bits["after"] < 0.2
    assert common.compress(text, b"")["after"] == pytest.approx(bits["alone"], abs=0.05)


def test_a_book_is_scored_whole_and_by_chapter_with_memory_and_without(finished, tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("".join(f"Chapter {n}\nAll is well that ends well.\n" for n in range(9)))
    ids = np.frombuffer(book.read_bytes(), np.uint8).astype(np.int64)
    found = own_text.measure(finished, book)
    for mem_len in (0, 8):
        places = np.arange(1, len(ids))
        bits_N = nats_of(finished.net, ids, places, count_seen(places, 64, mem_len)) / math.log(2)
        whole = found["bits_per_byte_by_mem_len"][str(mem_len)]
        assert whole == pytest.approx(bits_N.mean(), rel=1e-6)
        chapters = found["chapter_bits_by_mem_len"][str(mem_len)]
        assert chapters[1:] == pytest.approx(bits_N[37:].reshape(8, 38).mean(axis=1), rel=1e-6)
    assert book.read_text().startswith(found["prompt"][:10], 240)


def test_gains_of_context_are_of_each_network_on_the_test_text(args, monkeypatch, finished):
    nets = {kind: copy.deepcopy(finished.net) for kind in recurrence.CONTEXT}
    for n, net in enumerate(nets.values()):
        with torch.no_grad():
            net.embedding.weight *= 1 + n / 2
    named = {kind.replace(" ", "_"): net for kind, net in nets.items()}
    monkeypatch.setattr(
        common, "fit", lambda folder, options: replace(finished, net=named[folder.name[:-2]])
    )
    args.out.write_text(json.dumps({"records": {f"rate {kind}": {"rate": 3e-3} for kind in nets}}))
    found, ids = recurrence.measure_contexts(args, 1), finished.store.ids("test").astype(np.int64)
    place_P, at = spread_targets(len(ids), 128, 50), np.array([[128], [128]])
    # Tokens 65 to 128 back are those half the text away.
    other = np.roll(ids, -(len(ids) // 2))
    for kind, net in nets.items():
        short_P, long_P = (nats_of(net, ids, place_P, np.full(50, n)) for n in (64, 128))
        mixed = [np.r_[other[p - 128 : p - 64], ids[p - 64 : p + 1]] for p in place_P]
        mixed_P = np.array([nats_of(net, each, *at)[0] for each in mixed])
        [row] = [row for row in found["gains"] if (row["model"], row["r"]) == (kind, 1.0)]
        for key, longer_P in {"gain": long_P, "control": mixed_P}.items():
            lower = np.minimum(short_P, longer_P).mean() - short_P.mean()
            assert row[key] == pytest.approx(1 - np.exp(lower), rel=1e-4)
        how = {"mem_len": net.config.mem_len, "tgt_len": FAST.segment}
        nats = copied.score_copies(net, ids, 64, 1, how)
        saved = found["nats_saved_by_gap"][kind]["64"]
        assert saved == pytest.approx(nats["control"] - nats["copy"])


def test_differences_between_precisions_are_those_of_validation(args, finished, capsys):
    record = precision.measure(args, "32-true", 1)
    values = record["curves"][precision.VALIDATION][precision.VALIDATION]
    with (finished.folder / "metrics.csv").open() as file:
        rows = [row["val/bits_per_byte"] for row in csv.DictReader(file)]
    assert values == [float(value) for value in rows if value]
    apart = {precision.VALIDATION: [values[0], 1.02 * values[1]]}
    precision.print_differences([record, record | {"curves": {precision.VALIDATION: apart}}])
    shown = [line.split("; ")[1] for line in capsys.readouterr().out.splitlines()]
    assert shown == ["at most 0.00% from float32", "at most 2.00% from float32"]


@pytest.mark.parametrize("disturbed", [False, True])
def test_a_record_of_windows_tells_disturbed_times(args, monkeypatch, disturbed):
    row = {"memory_ms_per_token": 1, "window_ms_per_token": 9, "memory_median_ms": 1.2}
    rows = [{"attention_len": 16, "window_median_ms": 18 if disturbed else 9} | row]
    monkeypatch.setattr(sliding_window, "compare_with_window", lambda *_, **sizes: rows)
    found = sliding_window.measure(args, 2)
    assert found == {"seed": 2, "rows": rows, "disturbed": disturbed}
