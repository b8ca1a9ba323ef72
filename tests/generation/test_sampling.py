"""Filters of logits, and samples."""

import pytest
import torch

from txl_lightning.generation import Sampling, decoding
from txl_lightning.generation.decoding import draw_quantiles

INF = float("inf")


def scores(*p: float) -> torch.Tensor:
    """Return logits of these probabilities, in one row."""
    return torch.tensor([p], dtype=torch.float64).log()


def choose(sampling: Sampling, logits_BV: torch.Tensor, quantile: float) -> int:
    """Choose the next token of a text whose only recent token is 0."""
    quantile_B = torch.tensor([quantile], dtype=torch.float64)
    return sampling.choose_tokens(logits_BV, torch.tensor([[0]]), quantile_B).item()


@pytest.mark.parametrize(
    ("name", "limit", "kept"),
    [
        ("top_k", 1, [2]), ("top_k", 2, [0, 2]), ("top_k", 9, [0, 1, 2, 3]),
        ("top_p", 1e-9, [2]), ("top_p", 0.5, [2]), ("top_p", 0.51, [0, 2]),
        ("top_p", 0.74, [0, 2]), ("top_p", 0.76, [0, 1, 2]), ("top_p", 1, [0, 1, 2, 3]),
        ("min_p", 0, [0, 1, 2, 3]), ("min_p", 0.2, [0, 1, 2]), ("min_p", 0.49, [0, 2]),
        ("min_p", 0.51, [2]), ("min_p", 1, [2]),
    ],
)  # fmt: skip
def test_a_filter_keeps_the_most_likely_tokens_up_to_its_limit(name, limit, kept):
    logits_BV = scores(0.25, 0.1875, 0.5, 0.0625)
    result = getattr(decoding, f"keep_{name}")(limit, logits_BV)
    assert result[0].isfinite().nonzero().flatten().tolist() == kept
    assert torch.equal(result[result.isfinite()], logits_BV[result.isfinite()])


@pytest.mark.parametrize(
    ("how", "p", "least_likely"),
    [
        ({}, (0.5, 0.2, 0.15, 0.1, 0.05), 4),
        ({"top_p": 0.65}, (0.5, 0.2, 0.15, 0.1, 0.05), 1),
        ({"top_k": 2}, (0.5, 0.2, 0.15, 0.1, 0.05), 1),
        # Each filter renormalizes the result of the previous one: 0.5 of 0.7 is more than 0.65.
        ({"top_p": 0.65, "top_k": 2}, (0.5, 0.2, 0.15, 0.1, 0.05), 0),
        ({"min_p": 0.5, "top_p": 0.6}, (0.5, 0.3, 0.2), 1),
        # At temperature 2, the most likely has less than 0.6, and the second more than half of it.
        ({"top_p": 0.6}, (0.7, 0.2, 0.1), 0),
        ({"top_p": 0.6, "temperature": 2.0}, (0.7, 0.2, 0.1), 1),
        ({"min_p": 0.5}, (0.7, 0.2, 0.1), 0),
        ({"min_p": 0.5, "temperature": 2.0}, (0.7, 0.2, 0.1), 1),
    ],
)
def test_filters_follow_temperature_and_each_other(how, p, least_likely):
    assert choose(Sampling(**how), scores(*p), 1.0) == least_likely


def test_the_penalty_lowers_recent_logits_of_either_sign():
    logits_BV = torch.tensor([[2.0, -2.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]])
    recent_BW = torch.tensor([[0, 1, 1], [3, 3, 3]])
    result = decoding.penalize_tokens(logits_BV, recent_BW, 2.0)
    assert result.tolist() == [[1.0, -4.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]]


@pytest.mark.parametrize(
    ("sampling", "logits", "token"),
    [
        (Sampling(temperature=0), [3.0, 2.9, 0.0], 0),
        (Sampling(temperature=0, repetition_penalty=1.2), [3.0, 2.9, 0.0], 1),
        # Without overflow.
        (Sampling(temperature=1e-6), [-3e4, 3e4, 2.99e4], 1),
    ],
)
def test_a_low_temperature_takes_the_most_likely_token_after_the_penalty(sampling, logits, token):
    for quantile in (1e-300, 0.5, 1.0):
        assert choose(sampling, torch.tensor([logits]), quantile) == token


def test_a_sample_is_where_the_cumulative_probability_reaches_the_quantile():
    p_BV = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    quantile_B = torch.tensor([1e-300, 0.25, 0.2501, 0.75, 0.7501, 1.0], dtype=torch.float64)
    token_B = decoding.invert_distribution(p_BV.expand(6, -1), quantile_B)
    assert token_B.tolist() == [1, 1, 3, 3, 4, 4]


def test_half_precision_logits_are_widened_before_sampling():
    """In bfloat16, the sum of a thousand equal probabilities would stay below a half."""
    assert choose(Sampling(), torch.zeros(1, 1000, dtype=torch.bfloat16), 0.75) == 749


def test_quantiles_depend_on_seed_row_and_length_only():
    quantile_B = draw_quantiles(5, torch.tensor([3, 3, 9]))
    assert ((quantile_B > 0) & (quantile_B <= 1)).all()
    assert quantile_B[:1].tolist() == draw_quantiles(5, torch.tensor([3])).tolist()
    assert len({*quantile_B.tolist(), *draw_quantiles(5, torch.tensor([4])).tolist()}) == 4


def test_no_two_seeds_share_a_text():
    length_B = torch.zeros(5, dtype=torch.long)
    seeds = [0, 1, 2, -1, 2**64 - 1, -(2**63), 2**63]
    quantiles = [number for seed in seeds for number in draw_quantiles(seed, length_B).tolist()]
    assert len({*quantiles}) == 35
    # These would have the keys of others.
    for seed in (2**64, -(2**63) - 1):
        with pytest.raises(ValueError, match=f"seed: invalid {seed}; expected from -2"):
            Sampling(seed=seed)
    assert {Sampling(seed=seed).seed for seed in seeds} == {*seeds}


def test_quantiles_are_uniform():
    by_row = draw_quantiles(0, torch.arange(4000).fill_(7)).sort().values
    by_length = torch.cat([draw_quantiles(3, torch.tensor([n])) for n in range(4000)]).sort().values
    for result in (by_row, by_length):
        assert (result - torch.linspace(0, 1, 4000)).abs().max() < 1.6 / 4000**0.5


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("temperature", (-0.5, INF, float("nan"))),
        ("top_k", (0, -1)),
        ("top_p", (0, -0.1, 1.1)),
        ("min_p", (-0.1, 1.1)),
        ("repetition_penalty", (0.9, 0)),
        ("penalty_window", (0,)),
    ],
)
def test_an_invalid_field_is_refused_by_name(field, wrong):
    for value in wrong:
        with pytest.raises(ValueError, match=f"{field}: invalid {value}; expected"):
            Sampling(**{field: value})
