"""RECL follows the paper's equations, and each loss uses exactly its context."""

import math

import numpy as np
import pytest
import torch

from txl_lightning.analysis import context_length
from txl_lightning.analysis.context_length import compute_recl, score_context, spread_targets


def gain_by_hand(models: list, c: int, longer: int, i: int, r: float) -> float:
    """Compute g_i(c, c') as in Appendix C, position by position; models[i][c][t] is l_i(c, t)."""
    positions = range(len(models[0][0]))
    b = [min(model[c][t] for model in models) for t in positions]
    top = sorted(positions, key=lambda t: -b[t])[: round(r * len(b)) or 1]

    def f(context: int) -> float:
        return sum(min(b[t], models[i][context][t]) for t in top) / len(top)

    return (math.exp(f(c)) - math.exp(f(longer))) / math.exp(f(c))


@pytest.mark.parametrize("r", [0.001, 0.1, 0.5, 1.0])
def test_gain_follows_the_equations_of_the_paper(r):
    nats_ICP = np.random.default_rng(0).gamma(2.0, size=(3, 5, 40))
    models = nats_ICP.tolist()
    for c in range(4):
        actual_I = context_length.compute_gain(nats_ICP[:, c], nats_ICP[:, c + 1], r)
        by_hand_I = [gain_by_hand(models, c, c + 1, i, r) for i in range(3)]
        assert actual_I == pytest.approx(by_hand_I, abs=1e-12)


CONTEXTS = list(range(10, 101, 10))


def make_nats(n_used: int, contexts=CONTEXTS) -> np.ndarray:
    """Return nats_CP of a model that gains from each of the last `n_used` tokens of context."""
    used_C = np.minimum(contexts, n_used)
    return 3.0 - 0.01 * np.repeat(used_C[:, None], 50, axis=1)


@pytest.mark.parametrize(
    ("n_used", "recl", "found"), [(10, 10, True), (30, 30, True), (90, 90, True), (200, 100, False)]
)
def test_recl_is_the_context_that_a_model_uses_or_a_lower_bound(n_used, recl, found):
    nats = {"it": make_nats(n_used)}
    (row,), steps = compute_recl(nats, {"it": nats["it"][:-1]}, CONTEXTS, [0.1])
    assert row == {"model": "it", "r": 0.1, "recl": recl, "found": found, "recl_net": recl}
    assert [step["context"] for step in steps] == CONTEXTS[:-1]
    assert [step["longer"] for step in steps] == CONTEXTS[1:]
    gains = [1 - math.exp(-0.1) if c < n_used else 0 for c in CONTEXTS[:-1]]
    assert [step["gain"] for step in steps] == pytest.approx(gains)
    assert {step["control"] for step in steps} == {0}


def test_a_gain_that_unrelated_tokens_have_too_is_none():
    nats_CP = make_nats(60)
    # Half of each step's gain up to 40, and all of it from there on, is had without the text.
    control_CP = nats_CP[:-1] - 0.05
    control_CP[3:] = nats_CP[4:]
    (row,), steps = compute_recl({"it": nats_CP}, {"it": control_CP}, CONTEXTS, [1.0])
    assert (row["recl"], row["recl_net"]) == (60, 40)
    chance = [1 - math.exp(-0.05)] * 3 + [1 - math.exp(-0.1)] * 2 + [0] * 4
    assert [step["control"] for step in steps] == pytest.approx(chance)


def score(nats: dict[str, np.ndarray], contexts):
    return compute_recl(nats, {name: each[1:] for name, each in nats.items()}, contexts, [1.0])


@pytest.mark.parametrize(("share", "recl"), [(0.0101, 30), (0.0099, 20)])
def test_a_gain_below_the_papers_one_percent_ends_the_useful_context(share, recl):
    gains = [0.5, share, 0.0]
    nats_C1 = 9 + np.log1p(-np.array([0.0, *gains])).cumsum()[:, None]
    (row,), steps = score({"it": nats_C1}, [10, 20, 30, 40])
    assert [step["gain"] for step in steps] == pytest.approx(gains)
    assert (row["recl"], row["found"]) == (recl, True)


def test_only_nats_below_the_best_of_the_group_are_a_gain():
    contexts = [10, 20, 30, 40]
    better = make_nats(20, contexts)
    worse = make_nats(40, contexts) + 1.0
    (_, alone), _ = score({"other": worse, "it": worse}, contexts)
    assert (alone["recl"], alone["found"]) == (40, False)
    (first, beaten), _ = score({"better": better, "worse": worse}, contexts)
    assert (first["recl"], beaten["recl"]) == (20, 10)


@pytest.mark.parametrize(
    ("changes", "tgt_len"),
    [
        ({}, 128),
        ({}, 3),
        ({"mem_len": 0}, 3),
        # Here, same_length does not limit the context of a query.
        ({"same_length": "mem_len"}, 3),
        ({"positions": "shaw", "clamp_len": 4}, 3),
        ({"positions": "absolute_sinusoidal"}, 3),
    ],
)
def test_score_of_a_context_is_that_of_a_window_of_its_tokens(
    make_net, monkeypatch, changes, tgt_len
):
    # Score targets in chunks.
    monkeypatch.setattr("txl_lightning.analysis.context_length.SCORES", 1000)
    net = make_net(**changes)
    free = make_net(**changes | {"same_length": None})
    free.load_state_dict(net.state_dict())
    tokens = torch.randint(11, (60,)).numpy()
    place_P = spread_targets(60, 20, 9)
    for context in (1, 7, 20):
        nats_P = score_context(net, tokens, place_P, context, tgt_len)
        windows = [tokens[place - context : place + 1] for place in place_P]
        window_PW = torch.from_numpy(np.stack(windows))
        h_PLD, _ = free.hidden(window_PW[:, :-1])
        expected_P1 = net.head.nats(h_PLD[:, -1:], window_PW[:, -1:])
        assert nats_P == pytest.approx(expected_P1[:, 0].numpy(force=True), abs=1e-9)


@pytest.mark.parametrize("place", [20, 25, 59])
def test_unrelated_tokens_are_those_half_the_text_away(make_net, place):
    net = make_net()
    tokens = torch.randint(11, (60,)).numpy()
    nats_P = score_context(net, tokens, np.array([place]), 20, unrelated=8)
    away = np.roll(tokens, -30)[place - 20 : place - 12]
    window = np.concatenate([away, tokens[place - 12 : place + 1]])
    expected_P = score_context(net, window, np.array([20]), 20)
    assert nats_P == pytest.approx(expected_P, abs=1e-12)
    assert nats_P != pytest.approx(score_context(net, tokens, np.array([place]), 20), abs=1e-9)


def test_window_is_read_in_segments_with_the_given_memory(make_net):
    tokens = torch.randint(11, (60,))
    for mem_len in (0, 2):
        net = make_net(mem_len=mem_len)
        found_P = score_context(net, tokens.numpy(), np.array([50]), 10, tgt_len=4, mem_len=mem_len)
        window = tokens[None, 40:51]
        memory = None
        for start, stop in ((0, 2), (2, 6), (6, 10)):
            h_BLD, memory = net.hidden(window[:, start:stop], memory)
        expected = net.head.nats(h_BLD[:, -1:], window[:, -1:]).item()
        assert found_P[0] == pytest.approx(expected, abs=1e-12)


def test_targets_have_the_longest_context_before_them():
    for count in (1, 7, 1000):
        place_P = spread_targets(100, 30, count)
        assert len(set(place_P)) == len(place_P) == min(count, 70)
        assert place_P.min() == 30
        assert place_P.max() < 100
    with pytest.raises(ValueError, match=r"max_context: invalid 100; .* less than the 100"):
        spread_targets(100, 100, 7)
