"""Relative attention through PyTorch's scaled_dot_product_attention.

It computes (a) + (c) = (q + u).k; (b) + (d) = (q + v).r is passed as an additive mask.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
"""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, einsum
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..positions import DistanceTerms, shift


def attend(
    q_BLHK: Tensor, kv_BS2HK: Tensor, terms: DistanceTerms, mask_BLS: Tensor, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = kv_BS2HK.unbind(2)
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK
    masked_B1LS = ~mask_BLS[:, None]
    score_BHLT = scores_by_distance(q_BLHK, terms)
    no_terms = score_BHLT is None
    score_BHLS = q_BLHK.new_zeros(masked_B1LS.shape) if no_terms else shift(score_BHLT)
    with correct_backends(q_BLHK.device):
        out_BHLK = F.scaled_dot_product_attention(
            query_BLHK.transpose(1, 2),
            k_BSHK.transpose(1, 2),
            value_BSHK.transpose(1, 2),
            attn_mask=score_BHLS.masked_fill(masked_B1LS, float("-inf")),
            dropout_p=dropatt,
        )
    return out_BHLK.transpose(1, 2)


def scores_by_distance(q_BLHK: Tensor, terms: DistanceTerms) -> Tensor | None:
    """(b) + (d) over sqrt(K) for every distance, farthest first: score_BHLT."""
    scale, score_BHLT = q_BLHK.size(-1) ** -0.5, None
    if terms.r_THK is not None:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK
        score_BHLT = einsum("blhk,thk->bhlt", query_BLHK * scale, terms.r_THK)
    if terms.b_TH is not None:
        number_HLT = (terms.b_TH * scale).t()[:, None].expand(-1, q_BLHK.size(1), -1)
        score_BHLT = number_HLT[None] if score_BHLT is None else score_BHLT + number_HLT
    return score_BHLT


def correct_backends(device: torch.device) -> AbstractContextManager:
    """Restrict PyTorch to the backends whose gradient of a mask is correct."""
    # On CUDA it tries cuDNN first, which refuses a mask that needs a gradient, or returns NaN for
    # it at lengths of 64 modulo 128 (pytorch issue 196678); flash takes no mask.
    right = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(right) if device.type == "cuda" else nullcontext()
