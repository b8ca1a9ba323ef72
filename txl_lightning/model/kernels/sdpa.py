"""Relative attention through PyTorch's scaled_dot_product_attention.

It computes (a) + (c) = (q + u).k; (b) + (d) = (q + v).r is passed as an additive mask.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..positions import DistanceTerms, shift, unshift

HEAD_MULTIPLES = {"cuda": 8}
"""Other head widths, such as 41, would be computed in float32, by PyTorch's slowest path."""


def attend(
    q_BLHK: Tensor, kv_BS2HK: Tensor, terms: DistanceTerms, mask_BLS: Tensor, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = kv_BS2HK.unbind(2)
    # Under autocast, u and v may have higher precision.
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK.to(q_BLHK.dtype)
    K, device = q_BLHK.size(-1), q_BLHK.device
    parts = (widen_heads(x_BLHK).transpose(1, 2) for x_BLHK in (query_BLHK, k_BSHK, value_BSHK))
    with correct_backends(device):
        out_BHLK = F.scaled_dot_product_attention(
            *parts,
            attn_mask=masked_scores(q_BLHK, terms, mask_BLS),
            dropout_p=dropatt,
            scale=K**-0.5,
        )
    return out_BHLK.transpose(1, 2)[..., :K]


def widen_heads(x_BLHK: Tensor) -> Tensor:
    """Append zeros to heads whose width a device would compute slowly."""
    n_pad = -x_BLHK.size(-1) % HEAD_MULTIPLES.get(x_BLHK.device.type, 1)
    return F.pad(x_BLHK, (0, n_pad)) if n_pad else x_BLHK


def masked_scores(q_BLHK: Tensor, terms: DistanceTerms, mask_BLS: Tensor) -> Tensor:
    """Return (b) + (d) over sqrt(K) for each state, -inf where masked: score_BHLS."""
    score_HBLT = scores_by_distance(q_BLHK, terms)
    if score_HBLT is None:
        return mask_BLS[:, None]
    if torch.compiler.is_compiling():  # which fuses these, and warns of autograd functions
        return shift(score_HBLT).transpose(0, 1).masked_fill(~mask_BLS[:, None], float("-inf"))
    return MaskedShift.apply(score_HBLT, ~mask_BLS)


def scores_by_distance(q_BLHK: Tensor, terms: DistanceTerms) -> Tensor | None:
    """Return (b) + (d) over sqrt(K) for every distance, farthest first: score_HBLT."""
    (B, L, H, K), score_HBLT = q_BLHK.shape, None
    if terms.r_THK is not None:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK.to(q_BLHK.dtype)
        query_HYK = (query_BLHK * K**-0.5).permute(2, 0, 1, 3).reshape(H, B * L, K)
        score_HYT = torch.bmm(query_HYK, terms.r_THK.permute(1, 2, 0))
        score_HBLT = score_HYT.view(H, B, L, terms.n_distance)
    if terms.b_TH is not None:
        b_HBLT = (terms.b_TH * K**-0.5).t()[:, None, None].expand(-1, B, L, -1)
        score_HBLT = b_HBLT.contiguous() if score_HBLT is None else score_HBLT + b_HBLT
    return score_HBLT


class MaskedShift(torch.autograd.Function):
    """Scores by state from scores by distance, masked in place: score_BHLS.

    The gradients of masked scores are 0 already, in a softmax.
    """

    @staticmethod
    def forward(ctx: Any, score_HBLT: Tensor, masked_BLS: Tensor) -> Tensor:
        score_BHLS = shift(score_HBLT).transpose(0, 1)
        return score_BHLS.masked_fill_(masked_BLS[:, None], float("-inf"))

    @staticmethod
    def backward(ctx: Any, d_BHLS: Tensor) -> tuple[Tensor, None]:
        return unshift(d_BHLS.transpose(0, 1)), None


def correct_backends(device: torch.device) -> AbstractContextManager:
    """Restrict PyTorch to the backends whose gradient of a mask is correct."""
    # On CUDA it tries cuDNN first, which refuses a mask that needs a gradient, or returns NaN for
    # it at lengths of 64 modulo 128 (pytorch issue 196678); flash takes no mask.
    right = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(right) if device.type == "cuda" else nullcontext()
