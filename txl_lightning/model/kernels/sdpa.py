"""Relative attention through PyTorch's scaled_dot_product_attention.

(a) + (c) is (q + u).k, which it computes itself; (b) + (d) is (q + v).r, given as additive mask.

B rows   L queries   S states seen   H heads   K head width   T = S + 1 distances
"""

from torch import Tensor, einsum
from torch.nn import functional as F

from ..positions import DistanceTerms, shift


def attend(
    q_BLHK: Tensor,
    k_BSHK: Tensor,
    value_BSHK: Tensor,
    terms: DistanceTerms,
    mask_BLS: Tensor,
    dropatt: float,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK
    hidden_B1LS = ~mask_BLS[:, None]
    score_BHLS = distance(q_BLHK, hidden_B1LS, terms)
    out_BHLK = F.scaled_dot_product_attention(
        query_BLHK.transpose(1, 2),
        k_BSHK.transpose(1, 2),
        value_BSHK.transpose(1, 2),
        attn_mask=score_BHLS.masked_fill(hidden_B1LS, float("-inf")),
        dropout_p=dropatt,
    )
    return out_BHLK.transpose(1, 2)


def distance(q_BLHK: Tensor, hidden_B1LS: Tensor, terms: DistanceTerms) -> Tensor:
    """(b) + (d) over sqrt(K), each query's distances shifted to the states they belong to."""
    if terms.r_THK is None and terms.b_TH is None:
        return q_BLHK.new_zeros(hidden_B1LS.shape)
    scale = q_BLHK.size(-1) ** -0.5
    score_BHLT = q_BLHK.new_zeros(1, 1, 1, 1)
    if terms.r_THK is not None:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK
        score_BHLT = einsum("blhk,thk->bhlt", query_BLHK * scale, terms.r_THK)
    if terms.b_TH is not None:
        number_HLT = (terms.b_TH * scale).t()[:, None].expand(-1, q_BLHK.size(1), -1)
        score_BHLT = score_BHLT + number_HLT
    return shift(score_BHLT)
