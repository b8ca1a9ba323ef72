"""Relative attention without gradients: scores are changed in place, and masked where they must be.

Terms may be of fewer than T distances: all that are farther are then taken for the first of them.

B rows   L queries   S states seen   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from ..positions import DistanceTerms, shift


@dataclass(frozen=True)
class Band:
    """What queries see if all rows remember equally many states: those up to `span` before them."""

    tgt_len: int
    seen_len: int
    span: int | None
    device: torch.device

    def hide_(self, score_XLS: Tensor) -> None:
        """Set to -inf what no query sees: a triangle at the end, and one at the beginning."""
        for first, hidden in self.triangles:
            part = score_XLS.narrow(-1, first, hidden.size(1))
            part.masked_fill_(hidden, float("-inf"))

    @cached_property
    def triangles(self) -> list[tuple[int, Tensor]]:
        """What is hidden, each with the first state that it is of; made once for all layers."""
        L, S = self.tgt_len, self.seen_len
        too_far = 0 if self.span is None else max(S - 1 - self.span, 0)
        triangles = []
        if L > 1:
            triangles.append((S - L, self._ones(L).triu(1)))
        if too_far > 0:
            triangles.append((0, self._ones(too_far).tril(too_far - L)))
        return triangles

    def _ones(self, count: int) -> Tensor:
        return torch.ones(self.tgt_len, count, dtype=torch.bool, device=self.device)


BATCHED = 1 << 15
"""Scores of one head and row, above which matrices are computed one by one: all that is done to so
many is then done while a core's cache holds them."""


def attend(
    q_BLHK: Tensor,
    k_BSHK: Tensor,
    value_BSHK: Tensor,
    terms: DistanceTerms,
    visible: Band | Tensor,
    dropatt: float,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    assert dropatt == 0, "evaluation drops nothing"
    q_HBLK = (q_BLHK * q_BLHK.size(-1) ** -0.5).permute(2, 0, 1, 3)
    heads = [part.permute(2, 0, 1, 3) for part in (k_BSHK, value_BSHK)]
    n_score = q_BLHK.size(1) * k_BSHK.size(1)
    compute = one_by_one if n_score > BATCHED else together
    return compute(q_HBLK, *heads, terms, visible).permute(1, 2, 0, 3)


def together(
    q_HBLK: Tensor,
    k_HBSK: Tensor,
    value_HBSK: Tensor,
    terms: DistanceTerms,
    visible: Band | Tensor,
) -> Tensor:
    """Every head and row in one product: few calls, where matrices are small."""
    H, B, L, K = q_HBLK.shape
    score_XLS = distance(q_HBLK, k_HBSK.size(2), terms).flatten(0, 1)
    content_XLK = plus(q_HBLK, terms.u_HK).flatten(0, 1)
    score_XLS = torch.baddbmm(score_XLS, content_XLK, k_HBSK.flatten(0, 1).mT)
    hide_(score_XLS.view(H, B, L, -1), visible)
    out_XLK = torch.bmm(score_XLS.softmax(dim=-1), value_HBSK.flatten(0, 1))
    return out_XLK.view(H, B, L, K)


def one_by_one(
    q_HBLK: Tensor,
    k_HBSK: Tensor,
    value_HBSK: Tensor,
    terms: DistanceTerms,
    visible: Band | Tensor,
) -> Tensor:
    """A head and row after the other, in the same place."""
    B, L, S = *q_HBLK.shape[1:3], k_HBSK.size(2)
    place = q_HBLK.new_empty(L * (S + 1))
    score_LT, score_LS = place.view(L, S + 1), place[L:].view(L, S)
    weight_LS, out_HBLK = torch.empty_like(score_LS), q_HBLK.new_empty(q_HBLK.shape)
    parts = (plus(q_HBLK, terms.v_HK), plus(q_HBLK, terms.u_HK), k_HBSK, value_HBSK, out_HBLK)
    number_HT = numbers(terms, q_HBLK)
    for x, (by_distance, by_content, k_SK, value_SK, out_LK) in enumerate(
        zip(*(part.flatten(0, 1).unbind() for part in parts), strict=True)
    ):
        h, b = divmod(x, B)
        fill_(score_LT, by_distance, number_HT[h], h, terms)
        score_LS.addmm_(by_content, k_SK.mT)
        hide_(score_LS, visible if isinstance(visible, Band) else visible[b])
        torch.softmax(score_LS, dim=-1, out=weight_LS)
        torch.mm(weight_LS, value_SK, out=out_LK)
    return out_HBLK


def fill_(
    score_LT: Tensor, query_LK: Tensor, number_T: Tensor, h: int, terms: DistanceTerms
) -> None:
    """(b) + (d) of a head, by distance."""
    if terms.r_THK is None:
        near_LT = score_LT.narrow(1, score_LT.size(1) - len(number_T), len(number_T))
        near_LT.copy_(number_T)
    else:
        count = len(terms.r_THK)
        near_LT = score_LT.narrow(1, score_LT.size(1) - count, count)
        torch.mm(query_LK, terms.r_THK[:, h].mT, out=near_LT)
        if terms.b_TH is not None:
            near_LT += number_T
    score_LT[:, : -near_LT.size(1)] = near_LT[:, :1]


def plus(q_HBLK: Tensor, bias_HK: Tensor | None) -> Tensor:
    """Queries that are already over sqrt(K), and a bias over it."""
    if bias_HK is None:
        return q_HBLK
    return q_HBLK + (bias_HK * q_HBLK.size(-1) ** -0.5)[:, None, None]


def numbers(terms: DistanceTerms, q_HBLK: Tensor) -> Tensor:
    """(d) where it is a number for each distance: number_HT, or zeros that fit."""
    if terms.b_TH is None:
        return q_HBLK.new_zeros(1, 1).expand(q_HBLK.size(0), 1)
    return (terms.b_TH * q_HBLK.size(-1) ** -0.5).t()


def hide_(score: Tensor, visible: Band | Tensor) -> None:
    """Set to -inf what a query may not see."""
    if isinstance(visible, Band):
        visible.hide_(score)
    else:
        score.masked_fill_(~visible, float("-inf"))


def distance(q_HBLK: Tensor, seen_len: int, terms: DistanceTerms) -> Tensor:
    """(b) + (d), shifted to the states they meet."""
    H, B, L, _ = q_HBLK.shape
    number_H11T = numbers(terms, q_HBLK)[:, None, None]
    if terms.r_THK is None:
        return shift(beyond(number_H11T.expand(H, B, L, -1), seen_len))
    query_HYK = plus(q_HBLK, terms.v_HK).flatten(1, 2)
    score_HYT = torch.bmm(query_HYK, terms.r_THK.permute(1, 2, 0))
    score_HBLT = score_HYT.view(H, B, L, -1)
    score_HBLT = score_HBLT if terms.b_TH is None else score_HBLT + number_H11T
    return shift(beyond(score_HBLT, seen_len))


def beyond(score_HBLT: Tensor, seen_len: int) -> Tensor:
    """The scores of the distances that are farther, too."""
    farther = seen_len + 1 - score_HBLT.size(-1)
    if not farther:
        return score_HBLT
    return torch.cat([score_HBLT[..., :1].expand(-1, -1, -1, farther), score_HBLT], dim=-1)
