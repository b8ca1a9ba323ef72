"""What distance adds to a score."""

import math

import pytest
import torch

from txl_lightning.model.config import TransformerXLConfig
from txl_lightning.model.positions import Sinusoidal, sinusoids


def scheme(**changes) -> Sinusoidal:
    return Sinusoidal(TransformerXLConfig(n_layer=2, n_head=2, d_model=8, **changes))


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
    expected, found = exact(2000)[0].r_THK, half(2000)[0].r_THK.float()
    assert (expected - found).abs().max() < 0.02 * expected.abs().max() + 0.02


def test_distances_beyond_clamp_len_are_encoded_like_it():
    r_THK = scheme(clamp_len=3)(6)[0].r_THK
    assert torch.equal(r_THK[0], r_THK[6 - 3])
    assert not torch.allclose(r_THK[6 - 3], r_THK[6 - 2])


def test_u_and_v_are_one_pair_unless_untied():
    assert scheme().u_NHK.shape == (1, 2, 4)
    assert scheme(untie_r=True).v_NHK.shape == (2, 2, 4)
    tied = scheme()
    with torch.no_grad():
        tied.u_NHK.normal_()
    first, second = tied(3)
    assert torch.equal(first.u_HK, second.u_HK)


def test_r_is_dropped_once_for_all_layers():
    dropped = scheme(dropout=0.5).train()
    with torch.no_grad():
        dropped.r_nets[1].weight.copy_(dropped.r_nets[0].weight)
    first, second = dropped(20)
    assert torch.equal(first.r_THK, second.r_THK)


def test_a_distance_keeps_its_meaning_while_memory_fills():
    terms = scheme()
    short, long = terms(3)[0].r_THK, terms(9)[0].r_THK
    for distance in range(4):
        torch.testing.assert_close(short[3 - distance], long[9 - distance], rtol=0, atol=1e-6)
