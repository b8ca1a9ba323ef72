"""Choice of the next token: repetition penalty, temperature, filters, and a sample.

B rows   V vocabulary   W recent tokens
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import convert_fields, require
from ..model import accumulator_dtype


@dataclass(frozen=True)
class Sampling:
    """Sampling of a token: repetition penalty, temperature, then top_k, top_p and min_p.

    Each filter renormalizes the probabilities left by the previous one.
    """

    temperature: float = 1.0
    """Divisor of the logits; 0 always takes the most likely token."""
    top_k: int | None = None
    """Sample from this many of the most likely tokens, and ties with the last of them."""
    top_p: float | None = None
    """Sample from the fewest most likely tokens that sum to this (Holtzman et al. 2020)."""
    min_p: float | None = None
    """Sample from tokens with at least this fraction of the highest probability."""
    repetition_penalty: float = 1.0
    """Divide recent tokens' positive logits, multiply negative ones (Keskar et al. 2019: 1.2)."""
    penalty_window: int = 64
    """Number of recent tokens that are penalized, including the prompt's."""
    seed: int | None = None
    """Random seed; each further text uses the next number."""

    def __post_init__(self) -> None:
        convert_fields(self)
        for name, is_valid, expected in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or null"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "more than 0, at most 1, or null"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1, or null"),
            ("repetition_penalty", 1 <= self.repetition_penalty <= 1e9, "from 1 to 1e9"),
            ("penalty_window", self.penalty_window >= 1, "at least 1"),
        ):
            require(is_valid, name, getattr(self, name), expected)

    def choose_tokens(self, logits_BV: Tensor, recent_BW: Tensor, quantile_B: Tensor) -> Tensor:
        """Return the token of each row at its quantile, in (0, 1], of the filtered distribution."""
        logits_BV = logits_BV.to(accumulator_dtype(logits_BV.device))
        logits_BV = penalize_tokens(logits_BV, recent_BW, self.repetition_penalty)
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        # Relative to the maximum, so that no logit overflows at a low temperature.
        logits_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / self.temperature
        filters = ((keep_top_k, self.top_k), (keep_top_p, self.top_p), (keep_min_p, self.min_p))
        for keep, limit in filters:
            if limit is not None:
                logits_BV = keep(limit, logits_BV)
        return invert_distribution(logits_BV.softmax(dim=-1), quantile_B)


def penalize_tokens(logits_BV: Tensor, recent_BW: Tensor, penalty: float) -> Tensor:
    """Lower the logits of recent tokens, positive or negative."""
    if penalty == 1:
        return logits_BV
    lower_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    is_recent_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, recent_BW, True)
    return torch.where(is_recent_BV, lower_BV, logits_BV)


def keep_top_k(limit: int, logits_BV: Tensor) -> Tensor:
    """Keep the `limit` most likely tokens, and ties with the last of them."""
    least_B = logits_BV.topk(min(limit, logits_BV.size(1))).values[:, -1]
    return logits_BV.masked_fill(logits_BV < least_B[:, None], float("-inf"))


def keep_top_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep the fewest most likely tokens whose probabilities sum to at least `limit`."""
    p_BV, order_BV = logits_BV.softmax(dim=-1).sort(descending=True, stable=True)
    is_kept_BV = p_BV.cumsum(dim=-1) - p_BV < limit
    is_kept_BV = torch.empty_like(is_kept_BV).scatter(1, order_BV, is_kept_BV)
    return logits_BV.masked_fill(~is_kept_BV, float("-inf"))


def keep_min_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep tokens with at least `limit` times the highest probability."""
    p_BV = logits_BV.softmax(dim=-1)
    return logits_BV.masked_fill(p_BV < limit * p_BV.amax(dim=-1, keepdim=True), float("-inf"))


def invert_distribution(p_BV: Tensor, quantile_B: Tensor) -> Tensor:
    """Return the token of each row at which the cumulative probability reaches the quantile."""
    # Quantiles are above 0, so a token of probability 0 is never chosen.
    sum_BV = p_BV.cumsum(dim=-1)
    token_B1 = torch.searchsorted(sum_BV, quantile_B.to(sum_BV)[:, None] * sum_BV[:, -1:])
    return token_B1[:, 0]


def draw_quantiles(seed: int, length_B: Tensor) -> Tensor:
    """Draw quantile_B, in (0, 1], for the next token of each row.

    A counter-based generator (Philox): row r uses seed + r and its n-th token the n-th number,
    independent of other rows and of interruptions.
    """
    quantile_B = [
        1 - np.random.Generator(np.random.Philox(key=(seed + row) % 2**64, counter=n)).random()
        for row, n in enumerate(length_B.tolist())
    ]
    return torch.tensor(quantile_B, dtype=torch.float64)
