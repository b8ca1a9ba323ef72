"""All position schemes, while the memory fills and beyond their tables."""

import math

import pytest
import torch

from txl_lightning import Memory, TransformerXLConfig
from txl_lightning.model.positions import SCHEMES, sinusoids

TABLES = {name: {"clamp_len": 5} for name in ("learned", "shaw", "absolute_learned")}


def scheme(name="sinusoidal", **changes):
    """Return a scheme of two layers whose weights differ from their initial values."""
    torch.manual_seed(3)
    options = {"n_layer": 2, "n_head": 2, "d_model": 8, **TABLES.get(name, {}), **changes}
    made = SCHEMES[name](TransformerXLConfig(positions=name, **options))
    for parameter in made.parameters():
        torch.nn.init.normal_(parameter)
    return made.eval()


def distances(count, clamp_len=None):
    """Return the distances of `count` visible states."""
    return Memory(torch.zeros(1, 1, 0, 8), torch.zeros(1), clamp_len).distances(count)


def numbers(terms):
    """Return all tensors of a layer's terms, nearest distance first."""
    tensors = [terms.r_THK, terms.b_TH, terms.p_SD]
    return [tensor.flip(0) for tensor in tensors if tensor is not None]


@pytest.mark.parametrize("is_half", [False, True])
def test_sinusoids_are_those_of_the_paper_in_float32_whatever_the_precision(is_half):
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_half):
        R_TD = sinusoids(torch.arange(2100), 8)
    assert len({tuple(row) for row in R_TD.tolist()}) == 2100
    for distance in (0, 1, 17):
        angles = [distance / 10000 ** (even / 8) for even in (0, 2, 4, 6)]
        expected = [math.sin(x) for x in angles] + [math.cos(x) for x in angles]
        torch.testing.assert_close(R_TD[distance], torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SCHEMES)
def test_terms_of_a_distance_are_constant_while_memory_fills_and_beyond_clamp_len(name):
    terms = scheme(name)
    for short, long in zip(terms(distances(3)), terms(distances(9)), strict=True):
        for few, many in zip(numbers(short), numbers(long), strict=True):
            torch.testing.assert_close(few, many[: len(few)], rtol=0, atol=1e-6)
    [nearest, *_] = numbers(terms(distances(6, clamp_len=3))[0])
    assert not any(torch.allclose(nearest[d], nearest[d + 1]) for d in range(3))
    assert torch.equal(nearest[5], nearest[3])


@pytest.mark.parametrize("name", TABLES)
def test_distances_beyond_the_table_use_its_last_row(name):
    for table in numbers(scheme(name)(distances(9))[1]):
        assert all(torch.equal(table[5], row) for row in table[6:])
        assert not torch.allclose(table[4], table[5])


def test_dropout_of_r_is_the_same_in_all_layers():
    dropped = scheme(dropout=0.5).train()
    dropped.r_nets[1].load_state_dict(dropped.r_nets[0].state_dict())
    first, second = dropped(distances(20))
    assert torch.equal(first.r_THK, second.r_THK)


@pytest.mark.parametrize("name", ["absolute_sinusoidal", "absolute_learned"])
def test_absolute_positions_count_back_from_the_end_of_the_segment(make_net, name):
    net = make_net(positions=name, clamp_len=20)
    tokens = torch.randint(11, (2, 8))
    place_SD = net.positions(distances(8))[0].p_SD
    torch.testing.assert_close(net.positions(distances(3))[0].p_SD, place_SD[-3:])
    _, memory = net(tokens[:, :5])
    without_position = net.embedding(tokens[:, :5]) * 8**0.5
    torch.testing.assert_close(memory.h_NBMD[0, :, -5:], without_position.detach())


@pytest.mark.parametrize(
    ("name", "norm"),
    [(name, "post") for name in SCHEMES] + [("learned", "pre"), ("learned", "pre_kv")],
)
def test_every_weight_of_a_scheme_learns(make_net, name, norm):
    net = make_net(positions=name, norm=norm, clamp_len=20)
    tokens = torch.randint(11, (2, 9))
    _, memory = net(tokens)
    net.loss(tokens, tokens, memory)[0].sum().backward()
    for key, parameter in net.positions.named_parameters():
        assert parameter.grad.abs().sum() > 0, key
