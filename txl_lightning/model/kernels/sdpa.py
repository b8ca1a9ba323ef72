"""Relative attention through PyTorch's scaled_dot_product_attention.

It computes (a) + (c) = (q + u).k; (b) + (d) = (q + v).r is passed as an additive mask.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
W = T, rounded up to what a device multiplies fast   Y = B * L queries of one head
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..memory import KeysValues, Mask, split
from ..parts import refuse_second_derivative
from ..positions import DistanceTerms, shift

HEAD_MULTIPLES = {"cuda": 8}
"""Other head widths, such as 41, would be computed in float32, by PyTorch's slowest path."""
DISTANCE_MULTIPLES = {"cuda": 8}
"""Products whose rows have another length are several times slower (experiments/gpu)."""


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = split(kv)
    terms = terms.complete(k_BSHK.size(1))
    query_BLHK, score_BHLS = make_operands(q_BLHK, terms, mask.mask_BLS)
    K = q_BLHK.size(-1)
    device = q_BLHK.device
    parts = (widen_heads(x_BLHK).transpose(1, 2) for x_BLHK in (query_BLHK, k_BSHK, value_BSHK))
    with correct_backends(device):
        out_BHLK = F.scaled_dot_product_attention(
            *parts,
            attn_mask=score_BHLS,
            dropout_p=dropatt,
            scale=K**-0.5,
        )
    return out_BHLK.transpose(1, 2)[..., :K]


def widen_heads(x_BLHK: Tensor) -> Tensor:
    """Append zeros to heads whose width a device would compute slowly."""
    n_pad = -x_BLHK.size(-1) % HEAD_MULTIPLES.get(x_BLHK.device.type, 1)
    return F.pad(x_BLHK, (0, n_pad)) if n_pad else x_BLHK


def make_operands(q_BLHK: Tensor, terms: DistanceTerms, mask_BLS: Tensor) -> tuple[Tensor, Tensor]:
    """Return q + u, and (b) + (d) over sqrt(K) for each state, -inf where masked: score_BHLS."""
    u_HK, v_HK, r_THK, b_TH = terms.u_HK, terms.v_HK, terms.r_THK, terms.b_TH
    # torch.compile fuses what follows, and warns of autograd functions.
    if r_THK is not None and not torch.compiler.is_compiling():
        return Operands.apply(q_BLHK, u_HK, v_HK, r_THK, b_TH, mask_BLS)
    query_BLHK = q_BLHK if u_HK is None else q_BLHK + u_HK
    score_HBLT = scores_by_distance(q_BLHK, terms)
    if score_HBLT is None:
        return query_BLHK, mask_BLS[:, None]
    score_BHLS = shift(score_HBLT).transpose(0, 1)
    return query_BLHK, score_BHLS.masked_fill(~mask_BLS[:, None], float("-inf"))


def scores_by_distance(q_BLHK: Tensor, terms: DistanceTerms) -> Tensor | None:
    """Return (b) + (d) over sqrt(K) for every distance, farthest first: score_HBLT."""
    (B, L, H, K) = q_BLHK.shape
    score_HBLT = None
    if terms.r_THK is not None:
        near_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK
        near_HYK = (near_BLHK * K**-0.5).permute(2, 0, 1, 3).reshape(H, B * L, K)
        r_WHK = widen_distances(terms.r_THK)
        score_HYW = torch.bmm(near_HYK, r_WHK.permute(1, 2, 0))
        score_HBLT = score_HYW.view(H, B, L, score_HYW.size(-1))[..., : terms.n_distance]
    if terms.b_TH is not None:
        b_HBLT = (terms.b_TH * K**-0.5).t()[:, None, None].expand(-1, B, L, -1)
        score_HBLT = b_HBLT if score_HBLT is None else score_HBLT + b_HBLT
    return score_HBLT


class Operands(torch.autograd.Function):
    """The same in fewer operations: products scale, and write gradients in the layout of q and r.

    The gradients of masked scores are 0 already, in a softmax.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> tuple[Tensor, Tensor]:
        q_BLHK, u_HK, v_HK, r_THK, b_TH, mask_BLS = inputs
        (B, L, H, K) = q_BLHK.shape
        r_WHK = widen_distances(r_THK)
        near_BLHK = q_BLHK if v_HK is None else q_BLHK + v_HK
        near_HYK = near_BLHK.permute(2, 0, 1, 3).reshape(H, B * L, K)
        score_HYW = q_BLHK.new_empty(H, B * L, len(r_WHK))
        if b_TH is not None:
            score_HYW.copy_(widen_distances(b_TH).t()[:, None])
        with_b = 0.0 if b_TH is None else K**-0.5
        score_HYW.baddbmm_(near_HYK, r_WHK.permute(1, 2, 0), beta=with_b, alpha=K**-0.5)
        score_HBLS = view_by_state(score_HYW.view(H, B, L, len(r_WHK)), mask_BLS.size(-1))
        score_HBLS = torch.where(mask_BLS, score_HBLS, float("-inf"))
        ctx.save_for_backward(near_HYK, r_WHK)
        return q_BLHK if u_HK is None else q_BLHK + u_HK, score_HBLS.transpose(0, 1)

    @staticmethod
    def backward(ctx: Any, d_query_BLHK: Tensor, d_BHLS: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("sdpa")
        near_HYK, r_WHK = ctx.saved_tensors
        (B, L, H, K) = d_query_BLHK.shape
        W = len(r_WHK)
        S = d_BHLS.size(-1)
        d_HBLW = d_BHLS.new_zeros(H, B, L, W)
        view_by_state(d_HBLW, S).copy_(d_BHLS.transpose(0, 1))
        d_HYW = d_HBLW.flatten(1, 2)
        d_near_BLHK = r_WHK.new_empty(B, L, H, K)
        d_r_WHK = torch.empty_like(r_WHK)
        d_near_HYK = d_near_BLHK.flatten(0, 1).transpose(0, 1)
        d_near_HYK.baddbmm_(d_HYW, r_WHK.transpose(0, 1), beta=0, alpha=K**-0.5)
        d_r_WHK.transpose(0, 1).baddbmm_(d_HYW.mT, near_HYK, beta=0, alpha=K**-0.5)
        _, has_u, has_v, _, has_b, _ = ctx.needs_input_grad
        return (
            d_query_BLHK + d_near_BLHK,
            d_query_BLHK.sum((0, 1)) if has_u else None,
            d_near_BLHK.sum((0, 1)) if has_v else None,
            d_r_WHK[: S + 1],
            d_HYW.sum(1)[:, : S + 1].t() * K**-0.5 if has_b else None,
            None,
        )


def widen_distances(x_TX: Tensor) -> Tensor:
    """Append distances that no state has, where a device would multiply slowly: x_WX."""
    n_pad = -x_TX.size(0) % DISTANCE_MULTIPLES.get(x_TX.device.type, 1)
    return F.pad(x_TX, (0, 0) * (x_TX.dim() - 1) + (0, n_pad)) if n_pad else x_TX


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
