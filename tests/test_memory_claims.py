"""Passages that come again, and books by length of memory, are measured as experiments say.

With one layer, a token's nats depend only on the tokens that it sees.
"""

import numpy as np
import pytest

from experiments.copied import figures as copied_figures
from experiments.copied import run as copied
from experiments.dose import figures as dose_figures
from experiments.dose import run as dose
from tests.test_measurements import count_seen, draw_text, nats_of

IDS = draw_text(8, 5000)


@pytest.mark.parametrize("gap", [0, 64, 1024])
def test_a_passage_comes_again_after_the_gap_and_not_in_the_control(gap):
    copy_BT, control_BT = copied.make_rows(IDS, gap, seed=1)
    assert copy_BT.shape == control_BT.shape == (96, 64 + 32 + gap + 32)
    passage_BP = copy_BT[:, -32:]
    assert (copy_BT[:, 64:96] == passage_BP).all()
    assert (control_BT[:, 64:96] != passage_BP).any(axis=1).all()
    differs_T = (copy_BT != control_BT).any(axis=0)
    assert not differs_T[:64].any()
    assert not differs_T[96:].any()
    far_BT = copied.make_rows(IDS, max(copied.GAPS), seed=1)[0]
    assert (far_BT[:, -32 - gap :] == copy_BT[:, -32 - gap :]).all()
    assert (copied.make_rows(IDS, gap, seed=2)[0] != copy_BT).any()


@pytest.mark.parametrize(
    ("kind", "way", "sees"),
    [
        ("alone", "window", {0: True, 64: False}),
        ("memory", "as trained", {0: True, 64: True, 256: False}),
        ("memory", "512", {256: True, 1024: False}),
    ],
)
def test_a_network_of_one_layer_knows_a_passage_only_if_it_sees_it(make_net, kind, way, sees):
    net = make_net(n_layer=1, mem_len=0 if kind == "alone" else 16)
    for gap, is_known in sees.items():
        nats = copied.score_copies(net, IDS, gap, 1, copied.WAYS[kind][way])
        assert (abs(nats["copy"] - nats["control"]) > 1e-9) == is_known, gap


def test_the_last_passage_alone_is_scored(make_net):
    net = make_net(n_layer=1, mem_len=0)
    nats = copied.score_copies(net, IDS, 64, 1, copied.WAYS["alone"]["window"])
    rows_BT = copied.make_rows(IDS, 64, 1)[0]
    # Inputs 152 to 183 of 192 - 1; of each group of 8, the first sees 57.
    places = np.arange(160, 192)
    seen = 57 + (places - 1) % 8
    expected = np.mean([nats_of(net, row_T, places, seen).mean() for row_T in rows_BT])
    assert nats["copy"] == pytest.approx(expected, rel=1e-6)


def test_savings_are_what_the_control_costs_more():
    nats = {gap: {"copy": 2.0, "control": 2.5} for gap in ("0", "64")}
    records = {"a": {"kind": "memory", "seed": 3, "nats": {"as trained": nats}}}
    assert copied_figures.collect_savings(records, "memory", "as trained", "64") == {3: 0.5}


@pytest.mark.parametrize(("name", "memory"), [("segments", 0), ("plain 64", 64)])
def test_a_book_is_scored_after_its_first_tokens_by_the_way_it_is_read(make_net, name, memory):
    net, ids_BT = make_net(n_layer=1, mem_len=64), IDS[:600].reshape(2, 300)
    ways = dose.choose_ways("memory", is_last=True)
    found, places = dose.score_books(net, ids_BT, ways, fast=True)[name], np.arange(128, 300)
    expected = [
        nats_of(net, ids_T, places, count_seen(places, 64, memory)).mean() for ids_T in ids_BT
    ]
    assert found == pytest.approx(expected, rel=1e-6)


def test_other_lengths_are_read_after_the_largest_dose_only():
    assert list(dose.choose_ways("memory", is_last=False)) == ["segments", "plain 64"]
    names = set(dose.choose_ways("memory", is_last=True))
    assert {"plain 1024", "clamped 256", "clamped, same_length 256"} < names
    assert list(dose.choose_ways("alone", is_last=True)) == ["segments", "window"]


def make_dose_records(gain, long):
    """Return records of two doses and seeds: memory saves `gain` of the dose, `long` more nats."""
    records = {}
    for seed, dose_ in ((seed, d) for seed in (1, 2) for d in (1, 4)):
        alone = {"segments": [3.0, 3.2], "window": [2.9, 3.1]}
        trained, other = 3.0 - gain[dose_], 3.0 - gain[dose_] - long
        val = {"plain 64": [3.0], "plain 128": [2.9], "clamped 128": [2.95]}
        test = {"plain 64": [trained], "plain 128": [other], "clamped 128": [1.0]}
        fields = {"dose": dose_, "seed": seed, "steps": 9}
        nats = {"alone": {"val": alone, "test": alone}, "memory": {"val": val, "test": test}}
        for kind in nats:
            records[f"{kind} {dose_} {seed}"] = fields | {"kind": kind, "nats": nats[kind]}
    return records


def test_claims_of_doses_compare_with_the_better_rival_and_choose_lengths_on_val():
    claims = dose_figures.list_claims(make_dose_records({1: 0.1, 4: 0.3}, long=0.05))
    gains = {claim.claim.split(": ")[1]: claim.gains for claim in claims}
    # Alone needs 3.0 by its window, though it was trained in segments.
    assert gains["memory helps"] == pytest.approx([0.3, 0.3])
    assert gains["its gain grows with training"] == pytest.approx([0.2, 0.2])
    assert gains["a longer memory than in training helps"] == pytest.approx([0.05, 0.05])
