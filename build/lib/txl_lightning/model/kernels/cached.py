"""Relative attention over cached keys and values, without gradients: scores stay in place.

Its masks and tiles, a few heads and rows at a time, are those of per_head too. Terms may have only
E < T distances: the first L are then equal, and stand for all larger ones.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product, or masked states of a part   Y = B * L
"""

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from ..positions import DistanceTerms, shift

TILE_SCORES = {"cpu": 1 << 19, "elsewhere": 1 << 24}
"""Scores computed at once; on a CPU, as many as fit in the caches of a few cores."""


class Mask:
    """States that each query attends to, as numbers added to scores.

    Args:
        mask_BLS: True where query l attends to state s.
        dtype: precision of the scores.
        ranges: start and stop of ranges of states; every query attends to all states outside of
            them. None: no such states are known.
    """

    def __init__(
        self, mask_BLS: Tensor, dtype: torch.dtype, ranges: Sequence[tuple[int, int]] | None = None
    ) -> None:
        self.mask_BLS, self.has_ranges, self.parts = mask_BLS, ranges is not None, []
        for start, stop in [(0, mask_BLS.size(-1))] if ranges is None else ranges:
            if start < stop:
                added_BLX = torch.where(mask_BLS[..., start:stop], 0.0, -math.inf)
                self.parts.append((start, added_BLX.to(dtype)))

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set masked scores of some rows to -inf."""
        for start, added_BLX in self.parts:
            score_HBLS.narrow(-1, start, added_BLX.size(-1)).add_(added_BLX[rows])


def tiles(
    q_HBLK: Tensor, n_state: int, n_score: int | None = None
) -> Iterator[tuple[slice, slice]]:
    """Yield heads and rows computed at once: all rows of some heads, or some rows of one head.

    A tile has one matrix for every core, and about TILE_SCORES scores.
    """
    H, B, L, _ = q_HBLK.shape
    if not B * L:
        return
    n_core = torch.get_num_threads()
    n_score = n_score or TILE_SCORES.get(q_HBLK.device.type, TILE_SCORES["elsewhere"])
    n_matrix = max(n_score // (L * n_state) // n_core, 1) * n_core
    n_head, n_row = max(n_matrix // B, 1), min(n_matrix, B)
    for head in range(0, H, n_head):
        for row in range(0, B, n_row):
            yield slice(head, head + n_head), slice(row, row + n_row)


def lay_out_terms(terms: DistanceTerms, values: Tensor) -> DistanceTerms:
    """Return terms in the layout of `attend`: contiguous distances, biases over sqrt(K)."""
    scale, r_THK = values.size(-1) ** -0.5, terms.r_THK
    if r_THK is not None:
        # Autocast does not convert products with `out=`.
        r_THK = r_THK.permute(1, 2, 0).to(values.dtype).contiguous().permute(2, 0, 1)
    b_TH = None if terms.b_TH is None else terms.b_TH.t().contiguous().t() * scale
    u_HK, v_HK = (None if bias is None else bias * scale for bias in (terms.u_HK, terms.v_HK))
    return DistanceTerms(r_THK, u_HK, v_HK, b_TH)


class Workspace:
    """Tensors reused by every layer: the first write to newly allocated memory is slow."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return an uninitialized tensor, valid until the next call with this name."""
        count, tensor = math.prod(shape), self.tensors.get(name)
        if tensor is None or tensor.numel() < count or tensor.dtype != like.dtype:
            # A tensor made under inference_mode could not be written to outside of it.
            with torch.inference_mode(False):
                tensor = torch.empty(count, dtype=like.dtype, device=like.device)
            self.tensors[name] = tensor
        return tensor[:count].view(shape)


def attend(
    q_BLHK: Tensor,
    k_BSHK: Tensor,
    value_BSHK: Tensor,
    terms: DistanceTerms,
    mask: Mask,
    workspace: Workspace,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    # Autocast may have changed since the cache was written.
    q_HBLK, n_state = q_BLHK.permute(2, 0, 1, 3).to(k_BSHK.dtype), k_BSHK.size(1)
    content_HBLK, distance_HBLK = (scale_query(q_HBLK, bias) for bias in (terms.u_HK, terms.v_HK))
    k_HBKS, value_HBSK = k_BSHK.permute(2, 0, 3, 1), value_BSHK.permute(2, 0, 1, 3)
    out_HBLK = torch.empty_like(content_HBLK)
    for heads, rows in tiles(q_HBLK, n_state):
        tile = heads, rows
        score_HBLS = shifted_scores(distance_HBLK[tile], n_state, terms, heads, workspace)
        score_XLS = score_HBLS.flatten(0, 1)
        score_XLS.baddbmm_(content_HBLK[tile].flatten(0, 1), k_HBKS[tile].flatten(0, 1))
        mask.hide_(score_HBLS, rows)
        weight_XLS = workspace.get("weights", score_XLS.shape, score_XLS)
        torch.softmax(score_XLS, dim=-1, out=weight_XLS)
        out_XLK = out_HBLK[tile].flatten(0, 1)
        torch.bmm(weight_XLS, value_HBSK[tile].flatten(0, 1), out=out_XLK)
    return out_HBLK.permute(1, 2, 0, 3)


def scale_query(q_HBLK: Tensor, bias_HK: Tensor | None) -> Tensor:
    """Return queries over sqrt(K) plus a bias that is already scaled, head by head."""
    scale, out = q_HBLK.size(-1) ** -0.5, q_HBLK.new_empty(q_HBLK.shape)
    if bias_HK is None:
        return torch.mul(q_HBLK, scale, out=out)
    return torch.add(bias_HK[:, None, None], q_HBLK, alpha=scale, out=out)


def shifted_scores(
    q_HBLK: Tensor, n_state: int, terms: DistanceTerms, heads: slice, workspace: Workspace
) -> Tensor:
    """Return (b) + (d) of some heads and rows for each state: score_HBLS."""
    (H, B, L, _), n_near = q_HBLK.shape, terms.n_distance
    score_HBLS = workspace.get("scores", (H, B, L, n_state), q_HBLK)
    if not n_near:
        return score_HBLS.zero_()
    near_HYE = workspace.get("by distance", (H, B * L, n_near), q_HBLK)
    if terms.r_THK is None:
        near_HYE.zero_()
    else:
        torch.bmm(q_HBLK.flatten(1, 2), terms.r_THK.permute(1, 2, 0)[heads], out=near_HYE)
    if terms.b_TH is not None:
        near_HYE.add_(terms.b_TH.t()[heads, None])
    near_HBLE, n_far = near_HYE.view(H, B, L, n_near), n_state + 1 - n_near
    score_HBLS[..., n_far:] = shift(near_HBLE)
    if n_far:
        score_HBLS[..., :n_far] = near_HBLE[..., :1]
    return score_HBLS
