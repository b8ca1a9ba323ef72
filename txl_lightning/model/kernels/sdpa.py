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

from ..memory import KeysValues, Mask, split_keys_values
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
    k_BSHK, value_BSHK = split_keys_values(kv)
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
    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK
    if not terms.n_distance:
        score_BHLS = torch.where(mask_BLS[:, None], 0.0, float("-inf"))
        return query_BLHK, score_BHLS.to(q_BLHK.dtype)
    near_BLHK = q_BLHK if terms.v_HK is None else q_BLHK + terms.v_HK
    near_HYK = near_BLHK.flatten(0, 1).transpose(0, 1)
    # torch.compile fuses operations, and warns of autograd functions.
    is_plain = terms.r_THK is None or torch.compiler.is_compiling()
    score = score_distances if is_plain else Distances.apply
    return query_BLHK, score(near_HYK, terms.r_THK, terms.b_TH, mask_BLS)


def score_distances(
    near_HYK: Tensor, r_THK: Tensor | None, b_TH: Tensor | None, mask_BLS: Tensor
) -> Tensor:
    """Return (b) + (d) over sqrt(K), -inf where masked, from q + v: score_BHLS."""
    B, L, S = mask_BLS.shape
    score_HYW = multiply_distances(near_HYK, r_THK, b_TH)
    score_HBLW = score_HYW.view(len(near_HYK), B, L, score_HYW.size(-1))
    return torch.where(mask_BLS, shift(score_HBLW)[..., :S], float("-inf")).transpose(0, 1)


def multiply_distances(near_HYK: Tensor, r_THK: Tensor | None, b_TH: Tensor | None) -> Tensor:
    """Return (b) + (d) over sqrt(K) for each distance: score_HYW."""
    scale = near_HYK.size(-1) ** -0.5
    b_H1W = None if b_TH is None else widen_distances(b_TH).t()[:, None] * scale
    if r_THK is None:
        return b_H1W.expand(-1, near_HYK.size(1), -1)
    operands = near_HYK, widen_distances(r_THK).permute(1, 2, 0)
    if torch.compiler.is_compiling():
        score_HYW = torch.bmm(*operands) * scale
    else:
        # Nothing is added: the product scales.
        score_HYW = torch.baddbmm(near_HYK.new_empty(1, 1, 1), *operands, beta=0, alpha=scale)
    return score_HYW if b_H1W is None else score_HYW.add_(b_H1W)


class Distances(torch.autograd.Function):
    """`score_distances` with fewer operations backward: products scale, in the layout of q and r.

    Of a training step of enwik8_base on a GPU, it saves 72 of 818 operators, and 8 of 65 GB. The
    gradients of masked scores are 0 already, in a softmax.
    """

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        near_HYK, r_THK, b_TH, mask_BLS = inputs
        r_WHK = widen_distances(r_THK)
        ctx.save_for_backward(near_HYK, r_WHK)
        ctx.shape = mask_BLS.shape
        return score_distances(near_HYK, r_WHK, b_TH, mask_BLS)

    @staticmethod
    def backward(ctx: Any, d_BHLS: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("sdpa")
        near_HYK, r_WHK = ctx.saved_tensors
        B, L, S = ctx.shape
        W, H, K = r_WHK.shape
        d_HBLW = d_BHLS.new_zeros(H, B, L, W)
        shift(d_HBLW)[..., :S] = d_BHLS.transpose(0, 1)
        d_HYW = d_HBLW.flatten(1, 2)
        d_near_HYK = r_WHK.new_empty(B * L, H, K).transpose(0, 1)
        d_r_HWK = torch.empty_like(r_WHK).transpose(0, 1)
        d_near_HYK.baddbmm_(d_HYW, r_WHK.transpose(0, 1), beta=0, alpha=K**-0.5)
        d_r_HWK.baddbmm_(d_HYW.mT, near_HYK, beta=0, alpha=K**-0.5)
        d_b_TH = d_HYW.sum(1).t()[: S + 1] * K**-0.5 if ctx.needs_input_grad[2] else None
        return d_near_HYK, d_r_HWK.transpose(0, 1)[: S + 1], d_b_TH, None


def widen_distances(x_TX: Tensor) -> Tensor:
    """Append distances that no state has, where a device would multiply slowly: x_WX."""
    n_pad = -x_TX.size(0) % DISTANCE_MULTIPLES.get(x_TX.device.type, 1)
    return F.pad(x_TX, (0, 0) * (x_TX.dim() - 1) + (0, n_pad)) if n_pad else x_TX


def correct_backends(device: torch.device) -> AbstractContextManager:
    """Restrict PyTorch to the backends whose gradient of a mask is correct."""
    # On CUDA it tries cuDNN first. That refuses a mask that needs a gradient, or returns NaN for it
    # at lengths of 64 modulo 128 (pytorch issue 196678). Flash takes no mask.
    right = [SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
    return sdpa_kernel(right) if device.type == "cuda" else nullcontext()
