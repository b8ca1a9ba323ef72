"""Relative attention a few heads at a time, so that their scores stay in the caches of a CPU.

The gradient is written by hand: shifting is a view in both directions, and the gradients of keys
and values are written into the tensor that the gradient of their projection reads.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product   Y = B * L queries of one head
"""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..memory import KeysValues, Mask
from ..parts import multiply_heads, refuse_second_derivative, tiles, uses_onednn
from ..positions import DistanceTerms, shift, unshift
from . import cached

Tile = tuple[slice, slice]  # heads and rows

THREAD_SCORES = 3 << 18
"""Scores of a tile per thread: fastest of 1 << 18 to 1 << 21 for 4 networks on 2 threads."""


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    if not (torch.is_grad_enabled() or dropatt):
        return cached.attend(q_BLHK, kv, terms, mask, dropatt)
    kv_BS2HK = kv if isinstance(kv, Tensor) else torch.stack(kv, dim=2)
    terms = terms.complete(kv_BS2HK.size(1))
    by_distance = (terms.u_HK, terms.v_HK, terms.r_THK, terms.b_TH)
    return Attention.apply(q_BLHK, kv_BS2HK, *by_distance, mask, dropatt)


class Operands(NamedTuple):
    """Operands of the products, heads first: queries plus u and plus v, and b, over sqrt(K)."""

    content_HBLK: Tensor
    distance_HBLK: Tensor
    kv_2HBSK: Tensor
    r_HTK: Tensor | None
    b_HT: Tensor | None


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, mask, ctx.dropatt = inputs
        operands = make_operands(*tensors)
        H, B, L, _ = operands.content_HBLK.shape
        S = operands.kv_2HBSK.size(3)
        out_HBLK = torch.empty_like(tensors[0]).permute(2, 0, 1, 3)
        weight_HBLS = out_HBLK.new_empty(H, B, L, S)
        kept_HBLS = torch.empty_like(weight_HBLS, dtype=torch.bool) if ctx.dropatt else None
        for tile in training_tiles(operands.content_HBLK, S):
            weight_XLS = weight_HBLS[tile].flatten(0, 1)
            k_XSK, value_XSK = (states[tile].flatten(0, 1) for states in operands.kv_2HBSK)
            torch.bmm(operands.content_HBLK[tile].flatten(0, 1), k_XSK.mT, out=weight_XLS)
            add_distances_(weight_HBLS[tile], operands, tile)
            mask.hide_(weight_HBLS[tile], tile[1])
            torch.softmax(weight_XLS, dim=-1, out=weight_XLS)
            if kept_HBLS is not None:
                weight_XLS, kept_XLS = torch.native_dropout(weight_XLS, ctx.dropatt, True)
                kept_HBLS[tile] = kept_XLS.view(kept_HBLS[tile].shape)
            out_HBLK[tile] = torch.bmm(weight_XLS, value_XSK).view(out_HBLK[tile].shape)
        ctx.save_for_backward(*tensors, weight_HBLS, kept_HBLS)
        return out_HBLK.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, d_out_BLHK: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("per_head")
        *tensors, weight_HBLS, kept_HBLS = ctx.saved_tensors
        operands = make_operands(*tensors)
        gradients = Gradients(*tensors)
        d_out_HBLK = d_out_BLHK.permute(2, 0, 1, 3).contiguous()
        for tile in training_tiles(operands.content_HBLK, weight_HBLS.size(-1)):
            weight_XLS, d_out_XLK = (x[tile].flatten(0, 1) for x in (weight_HBLS, d_out_HBLK))
            d_weight_XLS = torch.bmm(d_out_XLK, operands.kv_2HBSK[1][tile].flatten(0, 1).mT)
            read_XLS = weight_XLS
            if kept_HBLS is not None:
                kept_XLS = kept_HBLS[tile].flatten(0, 1)
                keep_rate = 1 - ctx.dropatt
                read_XLS = weight_XLS * kept_XLS / keep_rate
                d_weight_XLS = d_weight_XLS * kept_XLS / keep_rate
            gradients.add_values_(tile, read_XLS, d_out_XLK)
            # Private: public operations would take several passes over the scores.
            softmax_backward = torch._softmax_backward_data
            dtype = weight_XLS.dtype
            d_score_XLS = softmax_backward(d_weight_XLS, weight_XLS, -1, dtype)
            gradients.add_scores_(tile, d_score_XLS, operands)
        return *gradients.to_tuple(), None, None


def make_operands(
    q_BLHK: Tensor,
    kv_BS2HK: Tensor,
    u_HK: Tensor | None,
    v_HK: Tensor | None,
    r_THK: Tensor | None,
    b_TH: Tensor | None,
) -> Operands:
    """Return the operands of the products; states and distances are views."""
    scale = q_BLHK.size(-1) ** -0.5
    q_HBLK = (q_BLHK.permute(2, 0, 1, 3) * scale).contiguous()
    content_HBLK, distance_HBLK = (
        q_HBLK if bias_HK is None else q_HBLK + bias_HK[:, None, None] * scale
        for bias_HK in (u_HK, v_HK)
    )
    r_HTK = None if r_THK is None else r_THK.transpose(0, 1).contiguous()
    b_HT = None if b_TH is None else b_TH.t() * scale
    return Operands(content_HBLK, distance_HBLK, kv_BS2HK.permute(2, 3, 0, 1, 4), r_HTK, b_HT)


def training_tiles(q_HBLK: Tensor, n_state: int) -> Iterator[Tile]:
    # A CPU converts half precision for each product, so that few large ones are faster.
    n_thread = q_HBLK.numel() if q_HBLK.itemsize == 2 else torch.get_num_threads()
    return tiles(q_HBLK, n_state, THREAD_SCORES * n_thread)


def add_distances_(score_HBLS: Tensor, operands: Operands, tile: Tile) -> None:
    """Add (b) + (d) to the scores of a tile."""
    H, B, L, S = score_HBLS.shape
    if operands.b_HT is not None:
        score_HBLS += shift(operands.b_HT[tile[0], None, None].expand(H, 1, L, S + 1))
    if operands.r_HTK is not None:
        q_HYK = operands.distance_HBLK[tile].flatten(1, 2)
        r_HTK = operands.r_HTK[tile[0]]
        # oneDNN multiplies head by head in any case: then the result is still in the caches.
        n_head = 1 if uses_onednn(q_HYK, r_HTK) else max(H, 1)
        for head in range(0, H, n_head):
            part = slice(head, head + n_head)
            near_HYT = multiply_heads(q_HYK[part], r_HTK[part])
            score_HBLS[part] += shift(near_HYT.view(-1, B, L, S + 1))


class Gradients:
    """Gradients of the inputs of `make_operands`, tile by tile."""

    def __init__(self, q_BLHK: Tensor, kv_BS2HK: Tensor, *terms: Tensor | None) -> None:
        # Without queries, no tile writes the gradient of the states.
        allocate = torch.empty_like if q_BLHK.numel() else torch.zeros_like
        self.q_BLHK = allocate(q_BLHK)
        self.kv_BS2HK = allocate(kv_BS2HK)
        self.terms = [None if term is None else torch.zeros_like(term) for term in terms]
        self.q_HBLK = self.q_BLHK.permute(2, 0, 1, 3)
        self.k_HBSK, self.value_HBSK = self.kv_BS2HK.permute(2, 3, 0, 1, 4)

    def add_values_(self, tile: Tile, weight_XLS: Tensor, d_out_XLK: Tensor) -> None:
        value_HBSK = self.value_HBSK[tile]
        value_HBSK[:] = torch.bmm(weight_XLS.mT, d_out_XLK).view(value_HBSK.shape)

    def add_scores_(self, tile: Tile, d_score_XLS: Tensor, operands: Operands) -> None:
        u_HK, v_HK, r_THK, b_TH = self.terms
        q_HBLK = self.q_HBLK[tile]
        k_HBSK = self.k_HBSK[tile]
        heads = tile[0]
        d_k_XSK = torch.bmm(d_score_XLS.mT, operands.content_HBLK[tile].flatten(0, 1))
        k_HBSK[:] = d_k_XSK.view(k_HBSK.shape)
        d_q_XLK = torch.bmm(d_score_XLS, operands.kv_2HBSK[0][tile].flatten(0, 1))
        q_HBLK[:] = d_q_XLK.view(q_HBLK.shape)
        if u_HK is not None:
            u_HK[heads] += q_HBLK.sum(dim=(1, 2))
        d_near_HYT = unshift(d_score_XLS).view(len(q_HBLK), -1, d_score_XLS.size(-1) + 1)
        if b_TH is not None:
            b_TH[:, heads] += d_near_HYT.sum(dim=1).t()
        if r_THK is not None:
            d_q_HYK = multiply_heads(d_near_HYT, operands.r_HTK[heads].mT)
            q_HBLK += d_q_HYK.view(q_HBLK.shape)
            if v_HK is not None:
                v_HK[heads] += d_q_HYK.sum(dim=1)
            d_r_HTK = torch.bmm(d_near_HYT.mT, operands.distance_HBLK[tile].flatten(1, 2))
            r_THK[:, heads] += d_r_HTK.transpose(0, 1)

    def to_tuple(self) -> tuple[Tensor | None, ...]:
        u_HK, v_HK, r_THK, b_TH = self.terms
        scale = self.q_BLHK.size(-1) ** -0.5
        # Queries were divided by sqrt(K).
        scaled = (self.q_BLHK, u_HK, v_HK, b_TH)
        d_q, d_u, d_v, d_b = (None if each is None else each.mul_(scale) for each in scaled)
        return d_q, self.kv_BS2HK, d_u, d_v, r_THK, d_b
