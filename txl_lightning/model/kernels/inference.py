"""Relative attention without gradients: scores are changed in place, and masked where they must be.

B rows   L queries   S states seen   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from ..positions import DistanceTerms, shift


@dataclass(frozen=True)
class Band:
    """What queries see if all rows remember equally many states: those up to `span` before them."""

    tgt_len: int
    seen_len: int
    span: int | None

    def hide_(self, score_XLS: Tensor) -> None:
        """Set to -inf what no query sees: a triangle at the end, and one at the beginning."""
        L, S, device = self.tgt_len, self.seen_len, score_XLS.device
        if L > 1:
            after_LL = torch.ones(L, L, dtype=torch.bool, device=device).triu(1)
            score_XLS[..., S - L :].masked_fill_(after_LL, float("-inf"))
        too_far = 0 if self.span is None else S - 1 - self.span
        if too_far > 0:
            before = torch.ones(L, too_far, dtype=torch.bool, device=device).tril(too_far - L)
            score_XLS[..., :too_far].masked_fill_(before, float("-inf"))


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
    B, L, H, K = q_BLHK.shape
    q_HBLK = (q_BLHK * K**-0.5).permute(2, 0, 1, 3)
    query_HBLK = q_HBLK if terms.u_HK is None else q_HBLK + (terms.u_HK * K**-0.5)[:, None, None]
    score_XLS = distance(q_HBLK, k_BSHK.size(1), terms).flatten(0, 1)
    key_XSK, value_XSK = (part.permute(2, 0, 1, 3).flatten(0, 1) for part in (k_BSHK, value_BSHK))
    score_XLS = torch.baddbmm(score_XLS, query_HBLK.flatten(0, 1), key_XSK.mT)
    if isinstance(visible, Band):
        visible.hide_(score_XLS)
    else:
        score_XLS.view(H, B, L, -1).masked_fill_(~visible, float("-inf"))
    out_XLK = torch.bmm(score_XLS.softmax(dim=-1), value_XSK)
    return out_XLK.view(H, B, L, K).permute(1, 2, 0, 3)


def distance(q_HBLK: Tensor, seen_len: int, terms: DistanceTerms) -> Tensor:
    """(b) + (d), for queries that are already over sqrt(K), shifted to the states they meet."""
    H, B, L, K = q_HBLK.shape
    score_HBLT = q_HBLK.new_zeros(1, 1, 1, 1).expand(H, B, L, seen_len + 1)
    if terms.r_THK is not None:
        query_HBLK = (
            q_HBLK if terms.v_HK is None else q_HBLK + (terms.v_HK * K**-0.5)[:, None, None]
        )
        score_HYT = torch.bmm(query_HBLK.flatten(1, 2), terms.r_THK.permute(1, 2, 0))
        score_HBLT = score_HYT.view(H, B, L, -1)
    if terms.b_TH is not None:
        score_HBLT = score_HBLT + (terms.b_TH * K**-0.5).t()[:, None, None]
    return shift(score_HBLT)
