"""How far heads look is counted exactly, for every scheme, and changes nothing."""

import numpy as np
import pytest
import torch

from txl_lightning.analysis.attention_distance import (
    attention_weights,
    distance_statistics,
    measure_attention_distance,
    record_attention,
)
from txl_lightning.model import EvalLengths
from txl_lightning.model.kernels import reference
from txl_lightning.model.positions import SCHEMES


@pytest.fixture
def make_scheme(make_net):
    """A small network of any scheme."""

    def make(positions: str, **changes):
        learned = positions not in ("sinusoidal", "absolute_sinusoidal")
        return make_net(positions=positions, clamp_len=9 if learned else None, **changes)

    return make


def calls_of(net, tokens_BL, memory) -> list[tuple]:
    """What each layer gives its kernel."""
    calls = []
    for layer in net.layers:

        def attend(*given, kernel=layer.attention.attend):
            calls.append(given)
            return kernel(*given)

        layer.attention.attend = attend
    net.hidden(tokens_BL, memory)
    return calls


def filled(net, mem_len: int):
    """A memory of two rows with nothing unfilled."""
    return net.hidden(torch.randint(11, (2, 9)), net.empty_memory(2, EvalLengths(mem_len)))[1]


@pytest.mark.parametrize("positions", SCHEMES)
def test_weights_are_the_equations(make_scheme, positions):
    """Read by the reference from values that name the states, they are the weights themselves."""
    net = make_scheme(positions)
    for given in calls_of(net, torch.randint(11, (2, 5)), net.empty_memory(2, EvalLengths(4))):
        q_BLHK, k_BSHK, _, terms, visible_BLS, _ = given
        names_BSHS = torch.eye(9).double()[:, None].expand(2, 9, 2, 9)
        expected = reference.attend(q_BLHK, k_BSHK, names_BSHS, terms, visible_BLS, 0.0)
        found_BHLS = attention_weights(q_BLHK, k_BSHK, terms, visible_BLS)
        torch.testing.assert_close(found_BHLS.transpose(1, 2), expected)


@pytest.mark.parametrize("positions", SCHEMES)
@pytest.mark.parametrize("mem_len", [0, 4, 9])
def test_sums_are_those_of_counting_weight_by_weight(make_scheme, positions, mem_len):
    net = make_scheme(positions)
    tokens_BL, memory = torch.randint(11, (2, 5)), filled(net, mem_len)
    with record_attention(net) as sums:
        net.hidden(tokens_BL, memory)
    for given, found in zip(calls_of(net, tokens_BL, memory), sums, strict=True):
        weight_BHLS = attention_weights(given[0], given[1], given[3], given[4])
        distance_HS, memory_H = torch.zeros(2, mem_len + 5).double(), torch.zeros(2).double()
        for _, head, query, state in np.ndindex(weight_BHLS.shape):
            weight = weight_BHLS[:, head, query, state].sum() / 2
            if state <= mem_len + query:
                distance_HS[head, mem_len + query - state] += weight
            memory_H[head] += weight if state < mem_len else 0
        torch.testing.assert_close(found.distance_HS, distance_HS)
        torch.testing.assert_close(found.memory_H, memory_H)
        assert found.n_query == 10


@pytest.mark.parametrize("kernel", ["reference", "sdpa", "matmul"])
def test_a_model_that_is_recorded_computes_as_it_did_and_is_left_as_it_was(make_net, kernel):
    net, tokens_BL = make_net(kernel=kernel), torch.randint(11, (2, 5))
    kernels, expected = [layer.attention.attend for layer in net.layers], net(tokens_BL)[0]

    def interrupted():
        with record_attention(net):
            assert torch.equal(net(tokens_BL)[0], expected)
            raise KeyError

    with pytest.raises(KeyError):
        interrupted()
    assert [layer.attention.attend for layer in net.layers] == kernels


def test_heads_that_see_all_alike_look_half_way_back(make_net):
    net = make_net(mem_len=6)
    with torch.no_grad():
        for parameter in [*net.positions.parameters()]:
            parameter.zero_()
        for layer in net.layers:
            layer.attention.q_net.weight.zero_()
    rows = measure_attention_distance(net, np.arange(60) % 11, batch_size=1, tgt_len=1)
    assert [(row["layer"], row["head"]) for row in rows] == [(1, 1), (1, 2), (2, 1), (2, 2)]
    for row in rows:
        assert row["mean"] == pytest.approx(3)
        assert row["on_memory"] == pytest.approx(6 / 7)
        places = (row["nearest_tenth"], row["median"], row["farthest_tenth"])
        assert places == (0, 3, 6)


def test_what_is_read_while_the_memory_fills_is_not_counted(make_net):
    """A head that sees all alike looks half as far as there are states, which are then fewer."""
    net, tokens = make_net(mem_len=6), np.arange(60) % 11
    for tgt_len in (1, 4):
        options = {"batch_size": 2, "tgt_len": tgt_len}
        rows = measure_attention_distance(net, tokens, **options)
        n_warm = -(-6 // tgt_len)
        later = torch.from_numpy(tokens.reshape(2, 30)[:, : 29 // tgt_len * tgt_len])
        memory, counted = net.empty_memory(2), 0
        expected = torch.zeros(2, 2).double()
        for index, part_BL in enumerate(later.split(tgt_len, dim=1)):
            with record_attention(net) as sums:
                _, memory = net.hidden(part_BL, memory)
            if index >= n_warm:
                counted += sums[0].n_query
                expected += torch.stack([each.memory_H for each in sums])
        found = [row["on_memory"] for row in rows]
        assert found == pytest.approx((expected / counted).flatten().tolist())


def test_distances_of_a_head_that_looks_at_one_place():
    share_S = np.zeros(8)
    share_S[5] = 0.3
    places = {"nearest_tenth": 5, "median": 5, "farthest_tenth": 5}
    assert distance_statistics(share_S) == {"mean": pytest.approx(5)} | places


def test_a_tenth_that_is_just_reached_is_reached():
    assert distance_statistics(np.full(10, 0.1))["nearest_tenth"] == 0
    assert distance_statistics(np.full(10, 0.1))["median"] == 4
    assert distance_statistics(np.full(10, 0.1))["farthest_tenth"] == 8


def test_a_text_that_does_not_fill_the_memory_is_refused(make_net):
    with pytest.raises(ValueError, match="tokens: invalid 20; expected at least 26"):
        measure_attention_distance(make_net(), np.arange(20) % 11, batch_size=2, tgt_len=4)
    assert measure_attention_distance(make_net(), np.arange(26) % 11, batch_size=2, tgt_len=4)
