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

HEAD_MULTIPLES = {"cuda": 8}
"""Other head widths, such as 41, would be computed in float32, by PyTorch's slowest path."""


def attend(
    q_BLHK: Tensor, kv_BS2HK: Tensor, terms: DistanceTerms, mask_BLS: Tensor, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = kv_BS2HK.unbind(2)
    # Under autocast, u and v may have higher precision.
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK.to(q_BLHK.dtype)
    score_BHLT = scores_by_distance(q_BLHK, terms)
    score_BHLS = q_BLHK.new_zeros(()) if score_BHLT is None else shift(score_BHLT)
    K, device = q_BLHK.size(-1), q_BLHK.device.type
    n_pad = -K % HEAD_MULTIPLES.get(device, 1)
    parts = (F.pad(x, (0, n_pad)).transpose(1, 2) for x in (query_BLHK, k_BSHK, value_BSHK))
    with correct_backends(q_BLHK.device):
        out_BHLK = F.scaled_dot_product_attention(
            *parts,
            attn_mask=torch.where(mask_BLS[:, None], score_BHLS, float("-inf")),
            dropout_p=dropatt,
            scale=K**-0.5,
        )
    return out_BHLK.transpose(1, 2)[..., :K]


def scores_by_distance(q_BLHK: Tensor, terms: DistanceTerms) -> Tensor | None:
    """(b) + (d) over sqrt(K) for every distance, farthest first: score_BHLT."""
    scale, score_BHLT = q_BLHK.size(-1) ** -0.5, None
    if terms.r_THK is not None:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK.to(q_BLHK.dtype)
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
