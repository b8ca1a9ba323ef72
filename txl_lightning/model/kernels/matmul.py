"""Relative attention as plain matrix products: fewer passes over the scores than sdpa on a CPU.

Distance scores are one product per head over all rows; the product of the content scores
accumulates into them.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
X = B * H matrices in a batched product   Y = B * L queries of one head
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from ..memory import KeysValues, Mask, split
from ..positions import DistanceTerms, shift


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = split(kv)
    terms = terms.complete(k_BSHK.size(1))
    B, L, H, K = q_BLHK.shape
    S = k_BSHK.size(1)
    q_BLHK = q_BLHK * K**-0.5
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK * K**-0.5
    key_XSK = k_BSHK.transpose(1, 2).reshape(B * H, S, K)
    score_BHLS = distance(q_BLHK, S, terms).masked_fill(~mask.mask_BLS[:, None], float("-inf"))
    score_XLS = torch.baddbmm(
        score_BHLS.reshape(B * H, L, S), query_BLHK.transpose(1, 2).reshape(B * H, L, K), key_XSK.mT
    )
    weight_XLS = F.dropout(score_XLS.softmax(dim=-1), dropatt)
    out_XLK = torch.bmm(weight_XLS, value_BSHK.transpose(1, 2).reshape(B * H, S, K))
    return out_XLK.view(B, H, L, K).transpose(1, 2)


def distance(q_BLHK: Tensor, n_state: int, terms: DistanceTerms) -> Tensor:
    """Return (b) + (d) for each state, from queries already divided by sqrt(K)."""
    B, L, H, K = q_BLHK.shape
    if terms.r_THK is None:
        score_HBLT = q_BLHK.new_zeros(H, B, L, n_state + 1)
    else:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK * K**-0.5
        query_HYK = query_BLHK.permute(2, 0, 1, 3).reshape(H, B * L, K)
        score_HBLT = torch.bmm(query_HYK, terms.r_THK.permute(1, 2, 0)).view(H, B, L, n_state + 1)
    if terms.b_TH is not None:
        score_HBLT = score_HBLT + (terms.b_TH * K**-0.5).t()[:, None, None]
    return shift(score_HBLT).transpose(0, 1)
