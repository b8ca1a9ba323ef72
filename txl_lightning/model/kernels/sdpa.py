"""Relative attention through PyTorch's scaled_dot_product_attention.

It computes (a) + (c) = (q + u).k; (b) + (d) = (q + v).r is passed as an additive mask.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
W = T, rounded up to what a device multiplies fast
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..positions import DistanceTerms, shift

HEAD_MULTIPLES = {"cuda": 8}
"""Other head widths, such as 41, would be computed in float32, by PyTorch's slowest path."""
DISTANCE_MULTIPLES = {"cuda": 8}
"""Products whose rows have another length are several times slower (experiments/gpu)."""


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
    score_HBLW = scores_by_distance(q_BLHK, terms)
    if score_HBLW is None:
        return mask_BLS[:, None]
    if torch.compiler.is_compiling():  # which fuses these, and warns of autograd functions
        score_HBLS = shift(score_HBLW[..., : terms.n_distance])
        return score_HBLS.transpose(0, 1).masked_fill(~mask_BLS[:, None], float("-inf"))
    return MaskedShift.apply(score_HBLW, mask_BLS)


def scores_by_distance(q_BLHK: Tensor, terms: DistanceTerms) -> Tensor | None:
    """Return (b) + (d) over sqrt(K) for every distance, farthest first: score_HBLW."""
    (B, L, H, K), score_HBLW = q_BLHK.shape, None
    if terms.r_THK is not None:
        query_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK.to(q_BLHK.dtype)
        query_HYK = (query_BLHK * K**-0.5).permute(2, 0, 1, 3).reshape(H, B * L, K)
        score_HYW = torch.bmm(query_HYK, widen_distances(terms.r_THK).permute(1, 2, 0))
        score_HBLW = score_HYW.view(H, B, L, score_HYW.size(-1))
    if terms.b_TH is not None:
        b_HBLW = (widen_distances(terms.b_TH) * K**-0.5).t()[:, None, None].expand(-1, B, L, -1)
        score_HBLW = b_HBLW.contiguous() if score_HBLW is None else score_HBLW + b_HBLW
    return score_HBLW


def widen_distances(x_TX: Tensor) -> Tensor:
    """Append distances that no state has, where a device would multiply slowly: x_WX."""
    n_pad = -x_TX.size(0) % DISTANCE_MULTIPLES.get(x_TX.device.type, 1)
    return F.pad(x_TX, (0, 0) * (x_TX.dim() - 1) + (0, n_pad)) if n_pad else x_TX


class MaskedShift(torch.autograd.Function):
    """Scores by state from scores by distance, -inf where masked: score_BHLS.

    The gradients of masked scores are 0 already, in a softmax.
    """

    @staticmethod
    def forward(ctx: Any, score_HBLW: Tensor, mask_BLS: Tensor) -> Tensor:
        ctx.width = score_HBLW.size(-1)
        score_HBLS = view_by_state(score_HBLW, mask_BLS.size(-1))
        return torch.where(mask_BLS, score_HBLS, float("-inf")).transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, d_BHLS: Tensor) -> tuple[Tensor, None]:
        d_HBLS = d_BHLS.transpose(0, 1)
        d_HBLW = d_HBLS.new_zeros(*d_HBLS.shape[:-1], ctx.width)
        view_by_state(d_HBLW, d_HBLS.size(-1)).copy_(d_HBLS)
        return d_HBLW, None


def view_by_state(score_HBLW: Tensor, n_state: int) -> Tensor:
    """Return contiguous scores by distance as a view by state: `shift`, but for any W > S."""
    H, B, L, W = score_HBLW.shape
    # Row l starts L - l entries into its row of the input.
    strides = (B * L * W, L * W, W - 1, 1)
    return score_HBLW.as_strided((H, B, L, n_state), strides, score_HBLW.storage_offset() + L)


def correct_backends(device: torch.device) -> AbstractContextManager:
    """Restrict PyTorch to the backends whose gradient of a mask is correct."""
    # On CUDA it tries cuDNN first, which refuses a mask that needs a gradient, or returns NaN for
    # it at lengths of 64 modulo 128 (pytorch issue 196678); flash takes no mask.
    right = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(right) if device.type == "cuda" else nullcontext()
