"""Relative attention in Triton: all scores are computed tile by tile and never written to memory.

A tile has W queries by W states. Their distances lie in two runs of W: the lower one, and the upper
one, which is the lower one of the next W states. Entry (i, c) of the product with either run
belongs to state (i + c) % W of the tile, so that the relative shift rotates each row. The softmax
is computed online, and recomputed for gradients (Dao et al. 2022).

A candidate for CUDA (README.md has its speed); tests run it in Triton's interpreter. It returns to
the package when it is a fifth faster at the published sizes, or makes one fit. Gradients of r and b
are atomic sums: they are not bit-identical in two runs.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
W queries, states or distances of a tile   P = K, padded to a power of two (16 or more)
"""

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.autograd.function import once_differentiable

from txl_lightning.model.positions import DistanceTerms

HIDDEN = tl.constexpr(-1e30)  # score of a masked state; a row of only -inf would give nan weights
EXACT = tl.constexpr("ieee")  # products in float32 are not rounded to TF32
W = 32
"""With 64, registers spill on sm_80, and products on sm_90 take operands from registers, which the
ptxas of Triton 3.7 may overwrite while they are read (triton-lang/triton 11781, 11854)."""


def attend(
    q_BLHK: Tensor, kv_BS2HK: Tensor, terms: DistanceTerms, mask_BLS: Tensor, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = kv_BS2HK.unbind(2)
    _, S, H, K = k_BSHK.shape
    assert max(k_BSHK.numel(), mask_BLS.numel()) < 2**31  # Offsets have 32 bits.
    # Under autocast, u and v may have higher precision.
    content_BLHK, distance_BLHK = (
        (q_BLHK if bias_HK is None else q_BLHK + bias_HK).to(k_BSHK.dtype).contiguous()
        for bias_HK in (terms.u_HK, terms.v_HK)
    )
    r_THK = k_BSHK.new_zeros(S + 1, H, K) if terms.r_THK is None else terms.r_THK
    b_TH = k_BSHK.new_zeros(S + 1, H) if terms.b_TH is None else terms.b_TH
    states = (k_BSHK.contiguous(), value_BSHK.contiguous(), r_THK.to(k_BSHK.dtype).contiguous())
    by_place = b_TH.float().contiguous(), mask_BLS.contiguous()
    return Attention.apply(content_BLHK, distance_BLHK, *states, *by_place, dropatt)


class Attention(torch.autograd.Function):
    """Attention of queries plus u (for content) and plus v (for distance), all contiguous."""

    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, ctx.dropatt = inputs
        content_BLHK = tensors[0]
        B, L, H, _ = content_BLHK.shape
        device = content_BLHK.device
        out_BLHK = torch.empty_like(content_BLHK)
        norm_BHL = torch.empty(B, H, L, dtype=torch.float32, device=device)
        # From the generator saved in checkpoints; it stays on the device, without synchronization.
        seed = torch.randint(1 << 62, (1,), device=device) if ctx.dropatt else norm_BHL
        sizes, options = launch_options(content_BLHK, tensors[2], ctx.dropatt)
        grid = (triton.cdiv(L, options["W"]), B * H)
        attend_tiles[grid](*tensors, seed, out_BLHK, norm_BHL, *sizes, **options)
        ctx.save_for_backward(*tensors, seed, out_BLHK, norm_BHL)
        return out_BLHK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, d_out_BLHK: Tensor) -> tuple[Tensor | None, ...]:
        *inputs, out_BLHK, norm_BHL = ctx.saved_tensors
        content_BLHK, distance_BLHK, k_BSHK, value_BSHK, r_THK, b_TH, *_ = inputs
        B, L, H, _ = content_BLHK.shape
        d_out_BLHK = d_out_BLHK.contiguous()
        mean_BHL = (d_out_BLHK.float() * out_BLHK).sum(-1).transpose(1, 2).contiguous()
        queries = torch.empty_like(content_BLHK), torch.empty_like(distance_BLHK)
        states = torch.empty_like(k_BSHK), torch.empty_like(value_BSHK)
        distances = torch.zeros_like(r_THK, dtype=torch.float32), torch.zeros_like(b_TH)
        sizes, options = launch_options(content_BLHK, k_BSHK, ctx.dropatt)
        inputs = (*inputs, d_out_BLHK, norm_BHL, mean_BHL)
        grid = (triton.cdiv(L, options["W"]), B * H)
        query_gradients[grid](*inputs, *queries, *distances, *sizes, **options)
        grid = (triton.cdiv(k_BSHK.size(1), options["W"]), B * H)
        state_gradients[grid](*inputs, *states, *sizes, **options)
        d_r_THK, d_b_TH = distances
        return *queries, *states, d_r_THK.to(r_THK.dtype), d_b_TH, None, None


def launch_options(
    content_BLHK: Tensor, k_BSHK: Tensor, dropatt: float
) -> tuple[tuple[int | float, ...], dict[str, Any]]:
    """Return the sizes passed to every kernel, and its compile-time constants."""
    _, L, H, K = content_BLHK.shape
    options = {"K": K, "W": W, "DROP": dropatt} | choose_launch(K)
    return (L, k_BSHK.size(1), H, K**-0.5), options


def choose_launch(head_width: int) -> dict[str, int]:
    """Return the padded head width, and the warps with which no register spills."""
    P = max(16, triton.next_power_of_2(head_width))
    return {"P": P, "num_warps": 4 if P <= 64 else 8, "num_stages": 2}


@triton.jit
def attend_tiles(
    content, distance, k, value, r, b, mask, seed, out, norm,
    L, S, H, scale, K: tl.constexpr, P: tl.constexpr, W: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute W queries of a row and head, and the logarithm of the sum of their weights."""
    row, head = tl.program_id(1) // H, tl.program_id(1) % H
    first, run_W = tl.program_id(0) * W, tl.arange(0, W)
    l_W = first + run_W
    queries, states = (row * L * H + head) * K, (row * S * H + head) * K
    content_WP = load_tile(content + queries, l_W, L, H * K, K, P)
    distance_WP = load_tile(distance + queries, l_W, L, H * K, K, P)
    near_W = L - first - W + run_W
    _, lower_WW = by_distance(distance_WP, r, b, near_W, S, H, head, K, P)
    largest_W = tl.full([W], HIDDEN, tl.float32)
    sum_W = tl.zeros([W], tl.float32)
    out_WP = tl.zeros([W, P], tl.float32)
    # Causality: no query of this tile attends to later states.
    for start in range(0, tl.minimum(S, S - L + first + W), W):
        s_W = start + run_W
        k_WP = load_tile(k + states, s_W, S, H * K, K, P)
        value_WP = load_tile(value + states, s_W, S, H * K, K, P)
        _, upper_WW = by_distance(distance_WP, r, b, near_W + start + W, S, H, head, K, P)
        visible_WW = load_mask(mask, row, l_W, s_W, L, S)
        score_WW = scores(content_WP, k_WP, lower_WW, upper_WW, visible_WW, scale)
        new_W = tl.maximum(largest_W, tl.max(score_WW, 1))
        weight_WW = tl.exp(score_WW - new_W[:, None])
        shrink_W = tl.exp(largest_W - new_W)
        sum_W = sum_W * shrink_W + tl.sum(weight_WW, 1)
        kept_WW = weight_WW * keep_factor(seed, l_W, s_W, S, DROP)
        read_WP = tl.dot(kept_WW.to(value_WP.dtype), value_WP, input_precision=EXACT)
        out_WP = out_WP * shrink_W[:, None] + read_WP
        largest_W, lower_WW = new_W, upper_WW
    store_tile(out + queries, out_WP / sum_W[:, None], l_W, L, H * K, K, P)
    tl.store(norm + tl.program_id(1) * L + l_W, largest_W + tl.log(sum_W), l_W < L)


@triton.jit
def query_gradients(
    content, distance, k, value, r, b, mask, seed, d_out, norm, mean,
    d_content, d_distance, d_r, d_b,
    L, S, H, scale, K: tl.constexpr, P: tl.constexpr, W: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of W queries, and add to those of all distances."""
    row, head = tl.program_id(1) // H, tl.program_id(1) % H
    first, run_W = tl.program_id(0) * W, tl.arange(0, W)
    l_W = first + run_W
    queries, states = (row * L * H + head) * K, (row * S * H + head) * K
    content_WP = load_tile(content + queries, l_W, L, H * K, K, P)
    distance_WP = load_tile(distance + queries, l_W, L, H * K, K, P)
    d_out_WP = load_tile(d_out + queries, l_W, L, H * K, K, P)
    norm_W = tl.load(norm + tl.program_id(1) * L + l_W, l_W < L, 0.0)
    mean_W = tl.load(mean + tl.program_id(1) * L + l_W, l_W < L, 0.0)
    near_W = L - first - W + run_W
    r_WP, lower_WW = by_distance(distance_WP, r, b, near_W, S, H, head, K, P)
    d_content_WP = tl.zeros([W, P], tl.float32)
    d_distance_WP = tl.zeros([W, P], tl.float32)
    above_WW = tl.zeros([W, W], tl.float32)
    # One more tile, fully masked, takes the gradient of the last upper run.
    for start in range(0, tl.minimum(S, S - L + first + W) + W, W):
        s_W, near_W = start + run_W, L - first - W + start + run_W
        k_WP = load_tile(k + states, s_W, S, H * K, K, P)
        value_WP = load_tile(value + states, s_W, S, H * K, K, P)
        r_next_WP, upper_WW = by_distance(distance_WP, r, b, near_W + W, S, H, head, K, P)
        visible_WW = load_mask(mask, row, l_W, s_W, L, S)
        score_WW = scores(content_WP, k_WP, lower_WW, upper_WW, visible_WW, scale)
        keep_WW = keep_factor(seed, l_W, s_W, S, DROP)
        weight_WW = tl.exp(score_WW - norm_W[:, None])
        d_score_WW = d_scores(weight_WW, d_out_WP, value_WP, keep_WW, mean_W, scale)
        d_content_WP += tl.dot(d_score_WW.to(k_WP.dtype), k_WP, input_precision=EXACT)
        d_near_WW = tl.gather(d_score_WW, (run_W[:, None] + run_W[None]) & (W - 1), 1)
        is_upper_WW = run_W[:, None] + run_W[None] < W
        d_lower_WW = above_WW + tl.where(is_upper_WW, 0.0, d_near_WW)
        above_WW = tl.where(is_upper_WW, d_near_WW, 0.0)
        narrow_WW = d_lower_WW.to(r_WP.dtype)
        d_distance_WP += tl.dot(narrow_WW, r_WP, input_precision=EXACT)
        d_r_WP = tl.dot(tl.trans(narrow_WW), distance_WP, input_precision=EXACT)
        add_tile(d_r + head * K, d_r_WP, near_W, S + 1, H * K, K, P)
        inside_W = (near_W >= 0) & (near_W <= S)
        tl.atomic_add(d_b + near_W * H + head, tl.sum(d_lower_WW, 0), inside_W)
        r_WP, lower_WW = r_next_WP, upper_WW
    store_tile(d_content + queries, d_content_WP, l_W, L, H * K, K, P)
    store_tile(d_distance + queries, d_distance_WP, l_W, L, H * K, K, P)


@triton.jit
def state_gradients(
    content, distance, k, value, r, b, mask, seed, d_out, norm, mean,
    d_k, d_value,
    L, S, H, scale, K: tl.constexpr, P: tl.constexpr, W: tl.constexpr, DROP: tl.constexpr,
):  # fmt: skip
    """Compute the gradients of W keys and values."""
    row, head = tl.program_id(1) // H, tl.program_id(1) % H
    start, run_W = tl.program_id(0) * W, tl.arange(0, W)
    s_W = start + run_W
    queries, states = (row * L * H + head) * K, (row * S * H + head) * K
    k_WP = load_tile(k + states, s_W, S, H * K, K, P)
    value_WP = load_tile(value + states, s_W, S, H * K, K, P)
    d_k_WP = tl.zeros([W, P], tl.float32)
    d_value_WP = tl.zeros([W, P], tl.float32)
    # Causality: earlier queries attend to none of these states.
    for first in range(tl.maximum(start - (S - L), 0) // W * W, L, W):
        l_W, near_W = first + run_W, L - first - W + start + run_W
        content_WP = load_tile(content + queries, l_W, L, H * K, K, P)
        distance_WP = load_tile(distance + queries, l_W, L, H * K, K, P)
        d_out_WP = load_tile(d_out + queries, l_W, L, H * K, K, P)
        norm_W = tl.load(norm + tl.program_id(1) * L + l_W, l_W < L, 0.0)
        mean_W = tl.load(mean + tl.program_id(1) * L + l_W, l_W < L, 0.0)
        _, lower_WW = by_distance(distance_WP, r, b, near_W, S, H, head, K, P)
        _, upper_WW = by_distance(distance_WP, r, b, near_W + W, S, H, head, K, P)
        visible_WW = load_mask(mask, row, l_W, s_W, L, S)
        score_WW = scores(content_WP, k_WP, lower_WW, upper_WW, visible_WW, scale)
        keep_WW = keep_factor(seed, l_W, s_W, S, DROP)
        weight_WW = tl.exp(score_WW - norm_W[:, None])
        kept_WW = (weight_WW * keep_WW).to(d_out_WP.dtype)
        d_value_WP += tl.dot(tl.trans(kept_WW), d_out_WP, input_precision=EXACT)
        d_score_WW = d_scores(weight_WW, d_out_WP, value_WP, keep_WW, mean_W, scale)
        narrow_WW = d_score_WW.to(content_WP.dtype)
        d_k_WP += tl.dot(tl.trans(narrow_WW), content_WP, input_precision=EXACT)
    store_tile(d_k + states, d_k_WP, s_W, S, H * K, K, P)
    store_tile(d_value + states, d_value_WP, s_W, S, H * K, K, P)


@triton.jit
def scores(content_WP, k_WP, lower_WW, upper_WW, visible_WW, scale):
    """Return (a) to (d) over sqrt(K) of a tile."""
    W: tl.constexpr = content_WP.shape[0]
    row_W1, column_1W = tl.arange(0, W)[:, None], tl.arange(0, W)[None]
    near_WW = tl.where(row_W1 + column_1W < W, upper_WW, lower_WW)
    near_WW = tl.gather(near_WW, (column_1W - row_W1) & (W - 1), 1)
    score_WW = tl.dot(content_WP, tl.trans(k_WP), input_precision=EXACT) + near_WW
    return tl.where(visible_WW, score_WW * scale, HIDDEN)


@triton.jit
def by_distance(distance_WP, r, b, near_W, S, H, head, K: tl.constexpr, P: tl.constexpr):
    """Return r of a run of distances, and its product with queries, plus b."""
    r_WP = load_tile(r + head * K, near_W, S + 1, H * K, K, P)
    b_W = tl.load(b + near_W * H + head, (near_W >= 0) & (near_W <= S), 0.0)
    score_WW = tl.dot(distance_WP, tl.trans(r_WP), input_precision=EXACT)
    return r_WP, score_WW + b_W[None]


@triton.jit
def d_scores(weight_WW, d_out_WP, value_WP, keep_WW, mean_W, scale):
    """Return the gradient of scores before their division by sqrt(K)."""
    d_kept_WW = tl.dot(d_out_WP, tl.trans(value_WP), input_precision=EXACT)
    return weight_WW * (d_kept_WW * keep_WW - mean_W[:, None]) * scale


@triton.jit
def keep_factor(seed, l_W, s_W, S, DROP: tl.constexpr):
    """Draw the dropout factor of each weight: in every kernel the same by place, row and head."""
    keep_WW = tl.full([l_W.shape[0], s_W.shape[0]], 1.0, tl.float32)
    if DROP > 0:
        place_WW = l_W[:, None] * S + s_W[None]
        chance_WW = tl.rand(tl.load(seed) + tl.program_id(1), place_WW)
        keep_WW = tl.where(chance_WW < DROP, 0.0, 1 / (1 - DROP))
    return keep_WW


@triton.jit
def load_mask(mask, row, l_W, s_W, L, S):
    inside_WW = (l_W[:, None] < L) & (s_W[None] < S)
    return tl.load(mask + (row * L + l_W[:, None]) * S + s_W[None], inside_WW, 0) != 0


@triton.jit
def load_tile(rows, at_W, n_row, stride, K: tl.constexpr, P: tl.constexpr):
    k_P = tl.arange(0, P)
    inside_WP = (at_W[:, None] >= 0) & (at_W[:, None] < n_row) & (k_P[None] < K)
    return tl.load(rows + at_W[:, None] * stride + k_P[None], inside_WP, 0.0)


@triton.jit
def store_tile(rows, tile_WP, at_W, n_row, stride, K: tl.constexpr, P: tl.constexpr):
    k_P = tl.arange(0, P)
    inside_WP = (at_W[:, None] < n_row) & (k_P[None] < K)
    tl.store(rows + at_W[:, None] * stride + k_P[None], tile_WP, inside_WP)


@triton.jit
def add_tile(rows, tile_WP, at_W, n_row, stride, K: tl.constexpr, P: tl.constexpr):
    k_P = tl.arange(0, P)
    inside_WP = (at_W[:, None] >= 0) & (at_W[:, None] < n_row) & (k_P[None] < K)
    tl.atomic_add(rows + at_W[:, None] * stride + k_P[None], tile_WP, inside_WP)
