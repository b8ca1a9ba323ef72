"""Relative attention a few heads at a time, so that their scores stay in the caches of a CPU.

Scores of distances are written first, and the product of queries and keys is added to them. With
gradients, the backward pass is written by hand. Shifting is a view in both directions. Gradients
of keys and values are written into the tensor that the gradient of their projection reads. Without
gradients, scores stay in one place for all layers, and terms may have only E < T distances. The
farthest of them then stands for all larger ones.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product, or masked states of a part   Y = B * L queries of one head
"""

import math
import threading
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..memory import KeysValues, Mask, split_keys_values
from ..parts import multiply_heads, refuse_second_derivative
from ..positions import DistanceTerms, shift, unshift

Tile = tuple[slice, slice]  # heads and rows

TILE_SCORES = {"cpu": 1 << 19, "elsewhere": 1 << 24}
"""Scores computed at once; on a CPU, as many as fit in the caches of a few cores."""
THREAD_SCORES = 3 << 18
"""Those per thread with gradients: fastest of 1 << 18 to 1 << 21 for 4 networks on 2 threads."""

MOST_KEPT = 1 << 26  # numbers of a tensor of a workspace


class Workspace(threading.local):
    """Tensors reused by every layer of a thread: the first write to new memory is slow."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy, or a pickled one, begins empty.
        return Workspace, ()

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialized tensor, valid until the next call with this name."""
        count = math.prod(shape)
        # Allocation is fast elsewhere; what is large is needed for other things between two calls.
        if not like.is_cpu or count > MOST_KEPT:
            return like.new_empty(shape)
        tensor = self.tensors.get(name)
        if tensor is None or tensor.numel() < count or tensor.dtype != like.dtype:
            # A tensor made under inference_mode could not be written to outside of it.
            with torch.inference_mode(False):
                tensor = torch.empty(count, dtype=like.dtype, device=like.device)
            self.tensors[name] = tensor
        return tensor[:count].view(shape)


WORKSPACE = Workspace()


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    if not (torch.is_grad_enabled() or dropatt):
        return attend_in_place(q_BLHK, kv, terms, mask)
    kv_BS2HK = kv if isinstance(kv, Tensor) else torch.stack(kv, dim=2)
    terms = terms.complete(kv_BS2HK.size(1))
    by_distance = (terms.u_HK, terms.v_HK, terms.r_THK, terms.b_TH)
    return Attention.apply(q_BLHK, kv_BS2HK, *by_distance, mask, dropatt)


def attend_in_place(q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask) -> Tensor:
    """Return the same without gradients; no scores are kept."""
    operands = make_operands(q_BLHK, kv, terms)
    content_HBLK, _, k_HBSK, value_HBSK, _ = operands
    n_state = k_HBSK.size(2)
    out_HBLK = torch.empty_like(content_HBLK)
    n_score = TILE_SCORES.get(q_BLHK.device.type, TILE_SCORES["elsewhere"])
    for tile in plan_tiles(content_HBLK, n_state, n_score):
        shape = (*content_HBLK[tile].shape[:3], n_state)
        score_HBLS = WORKSPACE.get("scores", shape, content_HBLK)
        write_scores_(score_HBLS, operands, tile, mask)
        weight_XLS = WORKSPACE.get("weights", (shape[0] * shape[1], *shape[2:]), content_HBLK)
        torch.softmax(score_HBLS.flatten(0, 1), dim=-1, out=weight_XLS)
        torch.bmm(weight_XLS, value_HBSK[tile].flatten(0, 1), out=view_matrices(out_HBLK[tile]))
    return out_HBLK.permute(1, 2, 0, 3)


class Operands(NamedTuple):
    """Operands of the products, heads first: queries plus u and plus v, keys, values, distances."""

    content_HBLK: Tensor
    distance_HBLK: Tensor
    k_HBSK: Tensor
    value_HBSK: Tensor
    terms: DistanceTerms


def make_operands(q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms) -> Operands:
    """Return the operands of the products; states and distances are views."""
    # Contiguous first: an addition that also copies is slower, in bfloat16 several times.
    q_HBLK = q_BLHK.permute(2, 0, 1, 3).contiguous()
    queries = (
        q_HBLK if bias_HK is None else q_HBLK + bias_HK[:, None, None]
        for bias_HK in (terms.u_HK, terms.v_HK)
    )
    states = (x_BSHK.permute(2, 0, 1, 3) for x_BSHK in split_keys_values(kv))
    return Operands(*queries, *states, terms)


def view_matrices(x_HBLK: Tensor) -> Tensor:
    """Return a tile of a contiguous tensor as matrices; whole heads, or rows of one, are a view."""
    return x_HBLK.view(-1, *x_HBLK.shape[2:])


def write_scores_(score_HBLS: Tensor, operands: Operands, tile: Tile, mask: Mask) -> None:
    """Write (a) + (b) + (c) + (d) over sqrt(K) of a tile, -inf where masked."""
    content_XLK, k_XSK = (x[tile].flatten(0, 1) for x in (operands.content_HBLK, operands.k_HBSK))
    has_distances = operands.terms.n_distance > 0
    if has_distances:
        write_distances_(score_HBLS, operands.distance_HBLK[tile], operands.terms, tile[0])
    scale = content_XLK.size(-1) ** -0.5
    score_XLS = view_matrices(score_HBLS)
    score_XLS.baddbmm_(content_XLK, k_XSK.mT, beta=int(has_distances), alpha=scale)
    mask.hide_(score_HBLS, tile[1])


def write_distances_(
    score_HBLS: Tensor, q_HBLK: Tensor, terms: DistanceTerms, heads: slice
) -> None:
    """Write (b) + (d) over sqrt(K) of some heads and rows for each state."""
    H, B, L, n_state = score_HBLS.shape
    n_near = terms.n_distance
    scale = q_HBLK.size(-1) ** -0.5
    near_HYE = WORKSPACE.get("by distance", (H, B * L, n_near), q_HBLK)
    if terms.r_THK is None:
        near_HYE.zero_()
    else:
        r_HKE = terms.r_THK.permute(1, 2, 0)[heads]
        near_HYE.baddbmm_(q_HBLK.flatten(1, 2), r_HKE, beta=0, alpha=scale)
    if terms.b_TH is not None:
        near_HYE.add_(terms.b_TH.t()[heads, None], alpha=scale)
    near_HBLE = near_HYE.view(H, B, L, n_near)
    n_far = n_state + 1 - n_near
    score_HBLS[..., n_far:] = shift(near_HBLE)
    if n_far:
        score_HBLS[..., :n_far] = near_HBLE[..., :1]


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        *tensors, mask, ctx.dropatt = inputs
        operands = restore_operands(*tensors)
        H, B, L, _ = operands.content_HBLK.shape
        out_HBLK = torch.empty_like(tensors[0]).permute(2, 0, 1, 3)
        weight_HBLS = out_HBLK.new_empty(H, B, L, operands.k_HBSK.size(2))
        kept_HBLS = torch.empty_like(weight_HBLS, dtype=torch.bool) if ctx.dropatt else None
        for tile in plan_training_tiles(weight_HBLS):
            write_scores_(weight_HBLS[tile], operands, tile, mask)
            weight_XLS = view_matrices(weight_HBLS[tile])
            torch.softmax(weight_XLS, dim=-1, out=weight_XLS)
            if kept_HBLS is not None:
                weight_XLS, kept_XLS = torch.native_dropout(weight_XLS, ctx.dropatt, True)
                kept_HBLS[tile] = kept_XLS.view(kept_HBLS[tile].shape)
            out_XLK = torch.bmm(weight_XLS, operands.value_HBSK[tile].flatten(0, 1))
            out_HBLK[tile] = out_XLK.view(out_HBLK[tile].shape)
        ctx.save_for_backward(*tensors, weight_HBLS, kept_HBLS)
        return out_HBLK.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, d_out_BLHK: Tensor) -> tuple[Tensor | None, ...]:
        refuse_second_derivative("per_head")
        *tensors, weight_HBLS, kept_HBLS = ctx.saved_tensors
        operands = restore_operands(*tensors)
        gradients = Gradients(*tensors)
        scale = d_out_BLHK.size(-1) ** -0.5
        d_out_HBLK = d_out_BLHK.permute(2, 0, 1, 3).contiguous()
        for tile in plan_training_tiles(weight_HBLS):
            weight_XLS, d_out_XLK = (view_matrices(x[tile]) for x in (weight_HBLS, d_out_HBLK))
            value_XKS = operands.value_HBSK[tile].flatten(0, 1).mT
            # Over sqrt(K): so are the gradients of the scores, and all that follow from them.
            d_weight_XLS = torch.baddbmm(weight_XLS, d_out_XLK, value_XKS, beta=0, alpha=scale)
            read_XLS = weight_XLS
            if kept_HBLS is not None:
                kept_XLS = view_matrices(kept_HBLS[tile])
                keep_rate = 1 - ctx.dropatt
                read_XLS = weight_XLS * kept_XLS / keep_rate
                d_weight_XLS = d_weight_XLS * kept_XLS / keep_rate
            gradients.add_values_(tile, read_XLS, d_out_XLK)
            # Private: public operations would take several passes over the scores.
            softmax_backward = torch._softmax_backward_data
            dtype = weight_XLS.dtype
            d_score_XLS = softmax_backward(d_weight_XLS, weight_XLS, -1, dtype)
            gradients.add_scores_(tile, d_score_XLS, operands)
        return gradients.q_BLHK, gradients.kv_BS2HK, *gradients.terms, None, None


def restore_operands(
    q_BLHK: Tensor,
    kv_BS2HK: Tensor,
    u_HK: Tensor | None,
    v_HK: Tensor | None,
    r_THK: Tensor | None,
    b_TH: Tensor | None,
) -> Operands:
    if r_THK is not None:
        # Contiguous, head by head, as products read it.
        r_THK = r_THK.transpose(0, 1).contiguous().transpose(0, 1)
    terms = DistanceTerms(r_THK=r_THK, u_HK=u_HK, v_HK=v_HK, b_TH=b_TH)
    return make_operands(q_BLHK, kv_BS2HK, terms)


def plan_tiles(q_HBLK: Tensor, n_state: int, n_score: int) -> Iterator[Tile]:
    """Yield heads and rows computed at once: all rows of some heads, or some rows of one head.

    A tile has one matrix for every core, and about n_score scores.
    """
    H, B, L, _ = q_HBLK.shape
    if not B * L:
        return
    n_core = torch.get_num_threads()
    n_matrix = max(n_score // (L * n_state) // n_core, 1) * n_core
    n_head = max(n_matrix // B, 1)
    n_row = min(n_matrix, B)
    for head in range(0, H, n_head):
        for row in range(0, B, n_row):
            yield slice(head, head + n_head), slice(row, row + n_row)


def plan_training_tiles(score_HBLS: Tensor) -> Iterator[Tile]:
    # A CPU converts half precision for each product, so that few large ones are faster.
    if score_HBLS.itemsize == 2:
        return iter([(slice(None), slice(None))] if score_HBLS.numel() else [])
    return plan_tiles(score_HBLS, score_HBLS.size(-1), THREAD_SCORES * torch.get_num_threads())


class Gradients:
    """Gradients of the inputs of `Attention`, tile by tile."""

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
        d_q_XLK = torch.bmm(d_score_XLS, operands.k_HBSK[tile].flatten(0, 1))
        q_HBLK[:] = d_q_XLK.view(q_HBLK.shape)
        if u_HK is not None:
            u_HK[heads] += q_HBLK.sum(dim=(1, 2))
        d_near_HYT = unshift(d_score_XLS).view(len(q_HBLK), -1, d_score_XLS.size(-1) + 1)
        if b_TH is not None:
            b_TH[:, heads] += d_near_HYT.sum(dim=1).t()
        if r_THK is not None:
            r_HKT = operands.terms.r_THK.permute(1, 2, 0)[heads]
            d_q_HYK = multiply_heads(d_near_HYT, r_HKT)
            q_HBLK += d_q_HYK.view(q_HBLK.shape)
            if v_HK is not None:
                v_HK[heads] += d_q_HYK.sum(dim=1)
            d_r_HTK = torch.bmm(d_near_HYT.mT, operands.distance_HBLK[tile].flatten(1, 2))
            r_THK[:, heads] += d_r_HTK.transpose(0, 1)
