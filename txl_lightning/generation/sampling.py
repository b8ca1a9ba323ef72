"""Which token comes next: filters of the scores, and a draw.

B rows   V vocabulary   W tokens back that are penalised
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..errors import require
from ..model import accumulator_dtype

Filter = Callable[[Tensor], Tensor]
"""Of logits_BV; what may not be drawn becomes -inf, and at least one token of each row stays."""


@dataclass(frozen=True)
class Sampling:
    """How a token is drawn: repetition penalty, temperature, then top_k, top_p and min_p.

    Each of the last three sees what the one before has left, and its probabilities add up to one.

    Raises:
        ValueError: what cannot be; the message starts with the field's name.
    """

    temperature: float = 1.0
    """What logits are divided by; 0 always takes the likeliest token."""
    top_k: int | None = None
    """How many of the likeliest tokens may be drawn, and those as likely as the last of them."""
    top_p: float | None = None
    """The fewest of the likeliest tokens that have at least this probability together may be
    drawn."""
    min_p: float | None = None
    """Tokens at least this many times as likely as the likeliest may be drawn."""
    repetition_penalty: float = 1.0
    """How far tokens that have just been are made less likely (Keskar et al. 2019: 1.2): positive
    logits are divided by it, negative ones multiplied."""
    penalty_window: int = 64
    """How many tokens back, of the prompt too, the penalty looks."""

    def __post_init__(self) -> None:
        for name, holds, allowed in (
            ("temperature", 0 <= self.temperature < float("inf"), "0 or more"),
            ("top_k", self.top_k is None or self.top_k >= 1, "at least 1, or null"),
            ("top_p", self.top_p is None or 0 < self.top_p <= 1, "more than 0, at most 1, or null"),
            ("min_p", self.min_p is None or 0 <= self.min_p <= 1, "from 0 to 1, or null"),
            ("repetition_penalty", 1 <= self.repetition_penalty <= 1e9, "from 1 to 1e9"),
            ("penalty_window", self.penalty_window >= 1, "at least 1"),
        ):
            require(holds, name, getattr(self, name), allowed)

    def filters(self) -> list[Filter]:
        """Those that are asked for, in their order."""
        given = ((top_k, self.top_k), (top_p, self.top_p), (min_p, self.min_p))
        return [partial(keep, limit) for keep, limit in given if limit is not None]

    def choose(self, logits_BV: Tensor, recent_BW: Tensor, rank_B: Tensor) -> Tensor:
        """The next token of each row.

        Args:
            logits_BV: scores of all tokens.
            recent_BW: the last tokens of each row.
            rank_B: above 0, up to 1: where among the probabilities, added up, the draw falls.
        """
        logits_BV = penalised(
            logits_BV.to(accumulator_dtype(logits_BV.device)), recent_BW, self.repetition_penalty
        )
        if self.temperature == 0:
            return logits_BV.argmax(dim=-1)
        # Less than the greatest, so that a small temperature makes none of them infinite.
        logits_BV = (logits_BV - logits_BV.amax(dim=-1, keepdim=True)) / self.temperature
        for keep in self.filters():
            logits_BV = keep(logits_BV)
        return drawn(logits_BV.softmax(dim=-1), rank_B)


def penalised(logits_BV: Tensor, recent_BW: Tensor, penalty: float) -> Tensor:
    """Scores in which tokens among the recent ones count for less."""
    if penalty == 1:
        return logits_BV
    less_BV = torch.where(logits_BV > 0, logits_BV / penalty, logits_BV * penalty)
    recent_BV = torch.zeros_like(logits_BV, dtype=torch.bool).scatter(1, recent_BW, True)
    return torch.where(recent_BV, less_BV, logits_BV)


def top_k(limit: int, logits_BV: Tensor) -> Tensor:
    """Keep as many of the likeliest, and what is as likely as the last of them."""
    least_B = logits_BV.topk(min(limit, logits_BV.size(1))).values[:, -1]
    return kept(logits_BV, logits_BV >= least_B[:, None])


def top_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep the fewest of the likeliest that have at least this probability together."""
    p_BV, order_BV = logits_BV.softmax(dim=-1).sort(descending=True, stable=True)
    before_BV = p_BV.cumsum(dim=-1) - p_BV
    may_BV = torch.empty_like(order_BV, dtype=torch.bool).scatter(1, order_BV, before_BV < limit)
    return kept(logits_BV, may_BV)


def min_p(limit: float, logits_BV: Tensor) -> Tensor:
    """Keep what is at least this many times as likely as the likeliest."""
    p_BV = logits_BV.softmax(dim=-1)
    return kept(logits_BV, p_BV >= limit * p_BV.amax(dim=-1, keepdim=True))


def kept(logits_BV: Tensor, may_BV: Tensor) -> Tensor:
    """The scores of what may be drawn."""
    return logits_BV.masked_fill(~may_BV, float("-inf"))


def drawn(p_BV: Tensor, rank_B: Tensor) -> Tensor:
    """The token of each row at which the probabilities, added up, reach the rank.

    As a rank is above 0, that is never a token of probability 0.
    """
    sum_BV = p_BV.cumsum(dim=-1)
    reached_B1 = torch.searchsorted(sum_BV, rank_B.to(sum_BV)[:, None] * sum_BV[:, -1:])
    return reached_B1[:, 0]


def ranks(seed: int, length_B: Tensor) -> Tensor:
    """What is drawn for the next token of each row: rank_B, above 0, up to 1.

    Row r has the numbers of `seed` + r, and its n-th token the n-th of them: whatever other rows
    there are, and however often the writing of the text was broken off.
    """
    rank_B = [
        1 - np.random.Generator(np.random.Philox(key=(seed + row) % 2**64, counter=n)).random()
        for row, n in enumerate(length_B.tolist())
    ]
    return torch.tensor(rank_B, dtype=torch.float64)
