"""Relative attention as the equation of Section 3.3, to be checked by eye.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
"""

from torch import Tensor, arange, einsum
from torch.nn import functional as F

from ..memory import KeysValues, Mask, split_keys_values
from ..positions import DistanceTerms


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = split_keys_values(kv)
    terms = terms.complete(k_BSHK.size(1))
    weight_BHLS = F.dropout(weigh_states(q_BLHK, k_BSHK, terms, mask.mask_BLS), dropatt)
    return einsum("bhls,bshk->blhk", weight_BHLS, value_BSHK)


def weigh_states(q_BLHK: Tensor, k_BSHK: Tensor, terms: DistanceTerms, mask_BLS: Tensor) -> Tensor:
    """Masked-Softmax(A / sqrt(K))."""
    score_BHLS = score_content(q_BLHK, k_BSHK, terms)
    score_BHLS = score_BHLS + score_distances(q_BLHK, k_BSHK.size(1), terms)
    score_BHLS = score_BHLS / q_BLHK.size(-1) ** 0.5
    return score_BHLS.masked_fill(~mask_BLS[:, None], float("-inf")).softmax(dim=-1)


def score_content(q_BLHK: Tensor, k_BSHK: Tensor, terms: DistanceTerms) -> Tensor:
    """Return (a) q.k + (c) u.k."""
    score_BHLS = einsum("blhk,bshk->bhls", q_BLHK, k_BSHK)
    if terms.u_HK is not None:
        score_BHLS = score_BHLS + einsum("hk,bshk->bhs", terms.u_HK, k_BSHK)[:, :, None]
    return score_BHLS


def score_distances(q_BLHK: Tensor, n_state: int, terms: DistanceTerms) -> Tensor:
    """Return (b) q.r + (d) v.r, or the number b that replaces v.r."""
    index_LS = index_of_distance(q_BLHK.size(1), n_state, q_BLHK.device)
    score_BHLS = q_BLHK.new_zeros(())
    if terms.r_THK is not None:
        score_BHLS = score_BHLS + einsum("blhk,lshk->bhls", q_BLHK, terms.r_THK[index_LS])
    if terms.v_HK is not None:
        score_BHLS = score_BHLS + einsum("hk,lshk->hls", terms.v_HK, terms.r_THK[index_LS])
    if terms.b_TH is not None:
        score_BHLS = score_BHLS + einsum("lsh->hls", terms.b_TH[index_LS])
    return score_BHLS


def index_of_distance(tgt_len: int, n_state: int, device) -> Tensor:
    """Return the index, in a tensor over T, of the distance from query l back to state s.

    A state after the query has none: it gets the place of distance 0, and must be masked.
    """
    query_L1 = arange(tgt_len, device=device)[:, None] + n_state - tgt_len
    distance_LS = query_L1 - arange(n_state, device=device)
    return n_state - distance_LS.clamp(min=0)
