"""Relative attention without gradients: scores stay in place.

It goes through a few heads and rows at a time, as per_head does. Terms may have only
E < T distances: the first L are then equal, and stand for all larger ones.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product, or masked states of a part   Y = B * L
"""

import math
import threading

import torch
from torch import Tensor

from ..memory import KeysValues, Mask, split
from ..parts import tiles
from ..positions import DistanceTerms, shift


class Workspace(threading.local):
    """Tensors reused by every layer of a thread: the first write to new memory is slow."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def __reduce__(self) -> tuple[type, tuple]:
        # A copy, or a pickled one, begins empty.
        return Workspace, ()

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialized tensor, valid until the next call with this name."""
        if not like.is_cpu:
            # Allocation is fast there.
            return like.new_empty(shape)
        count = math.prod(shape)
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
    assert not dropatt, "not kept here"
    k_BSHK, value_BSHK = split(kv)
    q_HBLK = q_BLHK.permute(2, 0, 1, 3)
    n_state = k_BSHK.size(1)
    scale = q_BLHK.size(-1) ** -0.5
    content_HBLK, distance_HBLK = (add_bias(q_HBLK, bias) for bias in (terms.u_HK, terms.v_HK))
    k_HBKS, value_HBSK = k_BSHK.permute(2, 0, 3, 1), value_BSHK.permute(2, 0, 1, 3)
    out_HBLK = torch.empty_like(content_HBLK)
    for heads, rows in tiles(q_HBLK, n_state):
        tile = heads, rows
        score_HBLS = shifted_scores(distance_HBLK[tile], n_state, terms, heads)
        score_XLS = score_HBLS.flatten(0, 1)
        operands = content_HBLK[tile].flatten(0, 1), k_HBKS[tile].flatten(0, 1)
        score_XLS.baddbmm_(*operands, alpha=scale)
        mask.hide_(score_HBLS, rows)
        weight_XLS = WORKSPACE.get("weights", score_XLS.shape, score_XLS)
        torch.softmax(score_XLS, dim=-1, out=weight_XLS)
        # A tile is whole heads or rows of one head, so that this is a view.
        out_XLK = out_HBLK[tile].view(-1, *out_HBLK.shape[2:])
        torch.bmm(weight_XLS, value_HBSK[tile].flatten(0, 1), out=out_XLK)
    return out_HBLK.permute(1, 2, 0, 3)


def add_bias(q_HBLK: Tensor, bias_HK: Tensor | None) -> Tensor:
    """Return queries plus a bias, head by head."""
    if bias_HK is None:
        return q_HBLK.contiguous()
    return torch.add(q_HBLK, bias_HK[:, None, None], out=q_HBLK.new_empty(q_HBLK.shape))


def shifted_scores(q_HBLK: Tensor, n_state: int, terms: DistanceTerms, heads: slice) -> Tensor:
    """Return (b) + (d) over sqrt(K) of some heads and rows for each state: score_HBLS."""
    (H, B, L, K) = q_HBLK.shape
    n_near = terms.n_distance
    score_HBLS = WORKSPACE.get("scores", (H, B, L, n_state), q_HBLK)
    if not n_near:
        return score_HBLS.zero_()
    near_HYE = WORKSPACE.get("by distance", (H, B * L, n_near), q_HBLK)
    if terms.r_THK is None:
        near_HYE.zero_()
    else:
        r_HKE = terms.r_THK.permute(1, 2, 0)[heads]
        near_HYE.baddbmm_(q_HBLK.flatten(1, 2), r_HKE, beta=0, alpha=K**-0.5)
    if terms.b_TH is not None:
        near_HYE.add_(terms.b_TH.t()[heads, None], alpha=K**-0.5)
    near_HBLE = near_HYE.view(H, B, L, n_near)
    n_far = n_state + 1 - n_near
    score_HBLS[..., n_far:] = shift(near_HBLE)
    if n_far:
        score_HBLS[..., :n_far] = near_HBLE[..., :1]
    return score_HBLS
