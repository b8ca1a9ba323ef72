"""Position schemes: every one, while memory fills and beyond its table."""

import math

import pytest
import torch

from txl_lightning import Memory, TransformerXL, TransformerXLConfig
from txl_lightning.model.positions import SCHEMES, sinusoids

TABLES = {name: {"clamp_len": 5} for name in ("learned", "shaw", "absolute_learned")}
ABSOLUTE = ["absolute_sinusoidal", "absolute_learned"]


def scheme(name="sinusoidal", **changes):
    """Two layers' scheme, with weights that are not what they begin as."""
    torch.manual_seed(3)
    options = {"n_layer": 2, "n_head": 2, "d_model": 8, **TABLES.get(name, {}), **changes}
    made = SCHEMES[name](TransformerXLConfig(positions=name, **options))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.normal_()
    return made.eval()


def distances(count, clamp_len=None):
    """Distances where `count` states are in sight."""
    return Memory.empty(1, 1, 0, 8).with_lengths(clamp_len, None).distances(count)


def numbers(terms):
    """All that a layer's terms hold, newest first."""
    tensors = [terms.r_THK, terms.b_TH, terms.p_SD]
    return [tensor.flip(0) for tensor in tensors if tensor is not None]


def test_sinusoids_are_those_of_the_paper():
    for distance in (0, 1, 17):
        angles = [distance / 10000 ** (even / 8) for even in (0, 2, 4, 6)]
        expected = [math.sin(x) for x in angles] + [math.cos(x) for x in angles]
        found = sinusoids(torch.tensor([distance]), 8)[0]
        torch.testing.assert_close(found, torch.tensor(expected), rtol=0, atol=1e-6)


@pytest.mark.parametrize("enabled", [False, True])
def test_sinusoids_are_float32_whatever_the_precision(enabled):
    distances = torch.arange(2100)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
        R = sinusoids(distances, 8)
    assert R.dtype == torch.float32
    assert len({tuple(row) for row in R.tolist()}) == 2100


def test_terms_in_half_precision_come_from_exact_distances():
    exact = scheme()
    half = scheme().to(torch.bfloat16)
    half.load_state_dict(exact.state_dict())
    expected, found = exact(distances(2000))[0].r_THK, half(distances(2000))[0].r_THK.float()
    assert (expected - found).abs().max() < 0.02 * expected.abs().max() + 0.02


@pytest.mark.parametrize("name", SCHEMES)
def test_terms_of_a_distance_stay_while_memory_fills(name):
    terms = scheme(name)
    for short, long in zip(terms(distances(3)), terms(distances(9)), strict=True):
        for few, many in zip(numbers(short), numbers(long), strict=True):
            torch.testing.assert_close(few, many[: len(few)], rtol=0, atol=1e-6)


@pytest.mark.parametrize("name", SCHEMES)
def test_neighbouring_distances_are_told_apart(name):
    [nearest, *_] = numbers(scheme(name)(distances(5))[0])
    assert not any(torch.allclose(nearest[d], nearest[d + 1]) for d in range(4))


@pytest.mark.parametrize("name", SCHEMES)
def test_distances_beyond_clamp_len_are_encoded_like_it(name):
    [nearest, *_] = numbers(scheme(name)(distances(6, clamp_len=3))[0])
    assert torch.equal(nearest[5], nearest[3])
    assert not torch.allclose(nearest[3], nearest[2])


@pytest.mark.parametrize("name", TABLES)
def test_distances_beyond_a_table_have_its_last_row(name):
    for found in numbers(scheme(name)(distances(9))[1]):
        assert all(torch.equal(found[5], row) for row in found[6:])
        assert not torch.allclose(found[4], found[5])


@pytest.mark.parametrize("name", TABLES)
def test_learned_positions_need_clamp_len(name):
    with pytest.raises(ValueError, match=f"clamp_len: invalid None.*positions are {name}"):
        TransformerXLConfig(positions=name)


def test_u_and_v_are_one_pair_unless_untied():
    assert scheme().u_NHK.shape == (1, 2, 4)
    assert scheme(untie_r=True).v_NHK.shape == (2, 2, 4)
    first, second = scheme()(distances(3))
    assert torch.equal(first.u_HK, second.u_HK)


def test_dropout_of_r_is_the_same_in_all_layers():
    dropped = scheme(dropout=0.5).train()
    with torch.no_grad():
        dropped.r_nets[1].weight.copy_(dropped.r_nets[0].weight)
    first, second = dropped(distances(20))
    assert torch.equal(first.r_THK, second.r_THK)


def model(name, **changes):
    """A small network with this scheme, in float64."""
    torch.manual_seed(3)
    clamp = {"clamp_len": 20} if name in TABLES else {}
    sizes = {"n_token": 11, "n_layer": 2, "n_head": 2, "d_model": 8, "mem_len": 16, "init_std": 0.3}
    config = TransformerXLConfig(positions=name, **{**sizes, **clamp, **changes})
    return TransformerXL(config).double().eval()


@pytest.mark.parametrize("name", ABSOLUTE)
def test_absolute_positions_count_back_from_the_end_of_the_segment(name):
    net = model(name, mem_len=0)
    tokens = torch.randint(11, (2, 6))
    [one] = [terms.p_SD for terms in net.positions(distances(1))[:1]]
    found = net(tokens)[0]
    with torch.no_grad():
        shifted = net(torch.cat([tokens[:, :1], tokens], dim=1))[0]
    assert not torch.allclose(found, shifted[:, 1:])
    torch.testing.assert_close(one[0], net.positions(distances(6))[0].p_SD[-1])


@pytest.mark.parametrize("name", ABSOLUTE)
def test_remembered_state_gets_a_new_absolute_position(name):
    net, tokens = model(name), torch.randint(11, (2, 8))
    _, memory = net(tokens[:, :5])
    first_layer = net.embedding(tokens[:, :5]) * 8**0.5
    torch.testing.assert_close(memory.h_NBMD[0][:, -5:], first_layer.detach())
    places = net.positions(memory.distances(3))[0].p_SD
    assert not torch.allclose(places[-8:-3], net.positions(distances(5))[0].p_SD)


@pytest.mark.parametrize(
    ("name", "norm"),
    [(name, "post") for name in SCHEMES] + [("learned", "pre"), ("learned", "pre_kv")],
)
def test_every_weight_of_a_scheme_learns(name, norm):
    net, tokens = model(name, norm=norm), torch.randint(11, (2, 9))
    _, memory = net(tokens)
    net.loss(tokens, tokens, memory)[0].sum().backward()
    for key, parameter in net.positions.named_parameters():
        assert parameter.grad.abs().sum() > 0, key
