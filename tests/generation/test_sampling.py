"""Filters of logits, and samples."""

import pytest
import torch

from txl_lightning.generation.sampling import (
    Sampling,
    draw_quantiles,
    invert_distribution,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    penalize_tokens,
)

INF = float("inf")


def scores(*p: float) -> torch.Tensor:
    """Logits of these probabilities, in one row."""
    return torch.tensor([p], dtype=torch.float64).log()


def kept_tokens(logits_BV: torch.Tensor) -> list[int]:
    """The tokens of the first row that may be drawn."""
    return logits_BV[0].isfinite().nonzero().flatten().tolist()


@pytest.mark.parametrize(
    ("limit", "kept"), [(1, [2]), (2, [0, 2]), (3, [0, 1, 2]), (9, [0, 1, 2, 3])]
)
def test_top_k_keeps_the_likeliest(limit, kept):
    assert kept_tokens(keep_top_k(limit, scores(0.3, 0.15, 0.5, 0.05))) == kept


@pytest.mark.parametrize(
    ("limit", "kept"),
    [
        (1e-9, [2]),
        (0.49, [2]),
        (0.51, [0, 2]),
        (0.79, [0, 2]),
        (0.81, [0, 1, 2]),
        (1, [0, 1, 2, 3]),
    ],
)
def test_top_p_keeps_the_fewest_tokens_that_have_the_probability(limit, kept):
    assert kept_tokens(keep_top_p(limit, scores(0.3, 0.15, 0.5, 0.05))) == kept


@pytest.mark.parametrize(
    ("limit", "kept"), [(0, [0, 1, 2, 3]), (0.2, [0, 1, 2]), (0.59, [0, 2]), (0.61, [2]), (1, [2])]
)
def test_min_p_is_relative_to_the_likeliest(limit, kept):
    assert kept_tokens(keep_min_p(limit, scores(0.3, 0.15, 0.5, 0.05))) == kept


def test_filters_leave_the_logits_that_they_keep_unchanged():
    logits_BV = torch.randn(5, 40, dtype=torch.float64)
    for result in (
        keep_top_k(7, logits_BV),
        keep_top_p(0.6, logits_BV),
        keep_min_p(0.3, logits_BV),
    ):
        kept_BV = result.isfinite()
        assert torch.equal(result[kept_BV], logits_BV[kept_BV])
        assert kept_BV.any(1).all()
        assert not kept_BV.all(1).any()
        least_B = logits_BV.masked_fill(~kept_BV, INF).amin(1)
        assert (least_B > logits_BV.masked_fill(kept_BV, -INF).amax(1)).all()


def test_each_filter_renormalises_after_the_one_before():
    logits_BV = scores(0.5, 0.2, 0.15, 0.1, 0.05)
    assert kept_tokens(keep_top_p(0.65, logits_BV)) == [0, 1]
    assert kept_tokens(keep_top_k(2, logits_BV)) == [0, 1]
    for keep in Sampling(top_p=0.65, top_k=2).filters():
        logits_BV = keep(logits_BV)
    assert kept_tokens(logits_BV) == [0]


def test_top_p_stops_at_exactly_its_probability():
    assert kept_tokens(keep_top_p(0.5, scores(0.5, 0.25, 0.25))) == [0]


def test_min_p_comes_last():
    """Of two tokens that are left, the likeliest has less of what there was."""
    logits_BV = scores(0.5, 0.2, 0.15, 0.1, 0.05)
    filters = Sampling(min_p=0.3, top_k=4, top_p=0.9).filters()
    assert [keep.func for keep in filters] == [keep_top_k, keep_top_p, keep_min_p]
    for keep in filters:
        logits_BV = keep(logits_BV)
    assert kept_tokens(logits_BV) == [0, 1, 2]


@pytest.mark.parametrize("how", [{"top_p": 0.6}, {"min_p": 0.5}])
def test_filters_follow_temperature(how):
    """Twice as hot, the likeliest has less than 0.6, and the second more than half of it."""
    logits_BV, quantile_B = scores(0.7, 0.2, 0.1), torch.tensor([0.7])
    recent_BW = torch.zeros(1, 1, dtype=torch.long)
    cold = Sampling(**how).choose_tokens(logits_BV, recent_BW, quantile_B)
    hot = Sampling(temperature=2.0, **how).choose_tokens(logits_BV, recent_BW, quantile_B)
    assert (cold.item(), hot.item()) == (0, 1)


def test_a_filter_without_a_limit_is_omitted():
    assert Sampling().filters() == []
    assert len(Sampling(min_p=0.0, top_k=3).filters()) == 2


def test_the_penalty_lowers_recent_logits_of_either_sign():
    logits_BV = torch.tensor([[2.0, -2.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]])
    recent_BW = torch.tensor([[0, 1, 1], [3, 3, 3]])
    result = penalize_tokens(logits_BV, recent_BW, 2.0)
    assert result.tolist() == [[1.0, -4.0, 1.0, 0.0], [2.0, -2.0, 1.0, 0.0]]


def test_the_penalty_holds_at_temperature_zero():
    logits_BV, recent_BW = torch.tensor([[3.0, 2.9, 0.0]]), torch.tensor([[0]])
    choose = Sampling(temperature=0, repetition_penalty=1.2).choose_tokens
    assert choose(logits_BV, recent_BW, torch.ones(1)).tolist() == [1]


def test_a_low_temperature_takes_the_likeliest_without_overflow():
    logits_BV, recent_BW = torch.tensor([[-3e4, 3e4, 2.99e4]]), torch.tensor([[0]])
    for rank in (1e-300, 0.5, 1.0):
        quantile_B = torch.tensor([rank], dtype=torch.float64)
        result = Sampling(temperature=1e-6).choose_tokens(logits_BV, recent_BW, quantile_B)
        assert result.tolist() == [1]


def test_a_sample_is_where_the_cumulative_probability_reaches_the_quantile():
    p_BV = torch.tensor([[0.0, 0.25, 0.0, 0.5, 0.25, 0.0]], dtype=torch.float64)
    cases = [(1e-300, 1), (0.25, 1), (0.2501, 3), (0.75, 3), (0.7501, 4), (1.0, 4)]
    for rank, token in cases:
        assert invert_distribution(p_BV, torch.tensor([rank], dtype=torch.float64)).tolist() == [
            token
        ]


def test_half_precision_logits_are_widened_before_sampling():
    """Added up in bfloat16, a thousand equal probabilities stay at less than a half."""
    logits_BV = torch.zeros(1, 1000, dtype=torch.bfloat16)
    result = Sampling().choose_tokens(logits_BV, torch.tensor([[0]]), torch.tensor([0.75]))
    assert result.tolist() == [749]


def test_quantiles_depend_on_seed_row_and_length_only():
    quantile_B = draw_quantiles(5, torch.tensor([3, 3, 9]))
    assert ((quantile_B > 0) & (quantile_B <= 1)).all()
    assert quantile_B[1:].tolist() == draw_quantiles(6, torch.tensor([3, 9])).tolist()
    assert len({*quantile_B.tolist(), *draw_quantiles(5, torch.tensor([4])).tolist()}) == 4
    assert (
        draw_quantiles(-1, torch.tensor([1])).tolist()
        == draw_quantiles(2**64 - 1, torch.tensor([1])).tolist()
    )


def test_quantiles_are_uniform():
    quantile_B = draw_quantiles(0, torch.arange(4000).fill_(7)).sort().values
    along = torch.cat([draw_quantiles(3, torch.tensor([n])) for n in range(4000)]).sort().values
    for result in (quantile_B, along):
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
