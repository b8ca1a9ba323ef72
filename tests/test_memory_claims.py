"""Passages that come again, and books by length of memory, are measured as experiments say.

With one layer, a token's nats depend only on the tokens that it sees.
"""

from argparse import Namespace

import numpy as np
import pytest

from experiments import common
from experiments.copying import figures as copying_figures
from experiments.copying import training
from experiments.copying.rows import ALONE, FAST, MEMORY
from experiments.how_far_back import figures as back_figures
from experiments.how_far_back import passages
from experiments.novels import figures as novels_figures
from experiments.novels import run as novels
from tests.helpers.one_layer import count_seen, draw_text, mean_nats_of_pieces, nats_of
from txl_lightning import OptimConfig
from txl_lightning.files import load_yaml

IDS = draw_text(8, 5000)


@pytest.mark.parametrize("gap", [0, 64, 1024])
def test_a_passage_comes_again_after_the_gap_and_not_in_the_control(gap):
    copy_BT, control_BT = passages.make_rows(IDS, gap, seed=1)
    assert copy_BT.shape == control_BT.shape == (96, 64 + 32 + gap + 32)
    passage_BP = copy_BT[:, -32:]
    assert (copy_BT[:, 64:96] == passage_BP).all()
    assert (control_BT[:, 64:96] != passage_BP).any(axis=1).all()
    differs_T = (copy_BT != control_BT).any(axis=0)
    assert not differs_T[:64].any()
    assert not differs_T[96:].any()
    far_BT = passages.make_rows(IDS, max(passages.GAPS), seed=1)[0]
    assert (far_BT[:, -32 - gap :] == copy_BT[:, -32 - gap :]).all()
    assert (passages.make_rows(IDS, gap, seed=2)[0] != copy_BT).any()


@pytest.mark.parametrize(
    ("kind", "way", "sees"),
    [
        ("passages alone", "window", {0: True, 64: False}),
        ("passages memory", "as trained", {0: True, 64: True, 256: False}),
        ("passages memory", "512", {256: True, 1024: False}),
    ],
)
def test_a_network_of_one_layer_knows_a_passage_only_if_it_sees_it(make_net, kind, way, sees):
    net = make_net(n_layer=1, mem_len=0 if kind == "passages alone" else 16)
    for gap, is_known in sees.items():
        nats = passages.score_copies(net, IDS, gap, 1, passages.WAYS[kind][way])
        assert (abs(nats["copy"] - nats["control"]) > 1e-9) == is_known, gap


def test_the_last_passage_alone_is_scored(make_net):
    net = make_net(n_layer=1, mem_len=0)
    nats = passages.score_copies(net, IDS, 64, 1, passages.WAYS["passages alone"]["window"])
    rows_BT = passages.make_rows(IDS, 64, 1)[0]
    # Inputs 152 to 183 of 192 - 1; of each group of 8, the first sees 57.
    places = np.arange(160, 192)
    seen = 57 + (places - 1) % 8
    expected = np.mean([nats_of(net, row_T, places, seen).mean() for row_T in rows_BT])
    assert nats["copy"] == pytest.approx(expected, rel=1e-6)


def test_savings_are_what_the_control_costs_more():
    nats = {gap: {"copy": 2.0, "control": 2.5} for gap in ("1024", "64")}
    records = {"a": {"kind": "passages memory", "seed": 3, "nats": {"as trained": nats}}}
    curve = back_figures.collect_curve(records, "passages memory", "as trained")
    assert [*curve.items()] == [(64, {3: 0.5}), (1024, {3: 0.5})]


@pytest.mark.parametrize(("name", "memory"), [("segments", 0), ("plain 64", 64)])
def test_a_book_is_scored_after_its_first_tokens_by_the_way_it_is_read(make_net, name, memory):
    net = make_net(n_layer=1, mem_len=64)
    ids_BT = IDS[:600].reshape(2, 300)
    ways = novels.choose_ways("memory")
    found = novels.score_books(net, ids_BT, ways, fast=True)[name]
    places = np.arange(128, 300)
    expected = [
        nats_of(net, ids_T, places, count_seen(places, 64, memory)).mean() for ids_T in ids_BT
    ]
    assert found == pytest.approx(expected, rel=1e-6)


def test_other_lengths_are_read_with_memory_alone():
    names = set(novels.choose_ways("memory"))
    assert {"segments", "plain 1024", "clamped 256", "clamped, same_length 256"} < names
    assert list(novels.choose_ways("alone")) == ["segments", "window", "cached"]


def make_novels(gain, long):
    """Return records of two seeds: memory saves `gain`, and `long` more nats."""
    alone = {"segments": [3.0, 3.2], "window": [2.9, 3.1]}
    trained = [2.9 - gain, 3.1 - gain]
    other = [each - long for each in trained]
    val = {"plain 64": [3.0], "plain 128": [2.9], "clamped 128": [2.95]}
    test = {"plain 64": trained, "plain 128": other, "clamped 128": [1.0, 1.0]}
    nats = {"alone": {"val": alone, "test": alone}, "memory": {"val": val, "test": test}}
    return {
        f"{kind} {seed}": {"kind": kind, "seed": seed, "nats": nats[kind]}
        for kind in nats
        for seed in (1, 2)
    }


def list_effects(contrasts):
    return {each.name: pytest.approx([*each.effects]) for each in contrasts}


def test_novels_are_compared_with_the_better_reading_and_lengths_are_chosen_on_val():
    found = novels_figures.list_contrasts(make_novels(gain=0.3, long=0.05))
    # Without memory the window is better, on the validation books.
    assert list_effects(found) == {
        "memory against trained without memory (its better reading)": [0.3, 0.3],
        "memory against trained without memory": [0.4, 0.4],
        "length chosen on other books against the 64 of training": [0.05, 0.05],
    }
    assert [len(books) for books in found[0].documents] == [2, 2]


@pytest.mark.parametrize("row", [MEMORY, ALONE])
def test_a_row_is_read_in_segments_as_it_was_trained(make_net, row):
    segment = training.find_segment_len(row, FAST)
    assert segment == 16
    net = make_net(n_layer=1, mem_len=segment if row.recurrence else 0)
    ids = draw_text(9)
    pieces_PT = training.cut_pieces(Namespace(ids=lambda split: ids), "val", FAST)
    found = training.score_segments(net, pieces_PT, row, FAST)
    seen = count_seen(np.arange(32, 40), segment, net.config.mem_len)
    assert found == pytest.approx(np.exp(mean_nats_of_pieces(net, ids, 32, seen)), rel=1e-9)


def test_effects_of_recurrence_are_percent_less_perplexity_by_seed():
    perplexities = {"memory": (45.0, 40.0), "alone": (50.0, 50.0)}
    records = {
        f"{kind} {seed}": {"kind": kind, "seed": seed, "segments": segments, "best": best}
        for kind, (segments, best) in perplexities.items()
        for seed in (11, 12)
    }
    found = list_effects(copying_figures.list_contrasts(records))
    assert found["recurrence against none (in segments)"] == [10.0, 10.0]
    assert found["recurrence against none (best length)"] == [20.0, 20.0]


def test_a_text_of_ones_own_has_no_recipe_in_experiments(tmp_path):
    path = tmp_path / "own.txt"
    sizes = {"n_layer": 1, "n_head": 2, "d_model": 16}
    path.write_text("Not in any table.\n" * 5000)
    options = common.flatten({"model.net": sizes}) | common.FAST | {"trainer.accelerator": "cpu"}
    run = common.fit(tmp_path / "run", options | {"data.path": str(path)})
    settings = load_yaml((run.folder / "config.yaml").read_text())
    assert settings["data"]["restart_len"] is None
    optim = settings["model"]["optim"]
    defaults = vars(OptimConfig())
    assert {name: optim[name] for name in defaults if name != "betas"} == {
        name: value for name, value in defaults.items() if name != "betas"
    }
