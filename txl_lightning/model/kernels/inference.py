"""Relative attention without gradients: scores are changed in place, and masked where they must be.

Terms may be of E < T distances, of which the first L are the same: so are all that are farther.

B rows   L queries   S states in sight   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product   Y = B * L
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..positions import DistanceTerms, shift

HIDDEN = float("-inf")

TILE_SCORES = {"cpu": 1 << 19, "elsewhere": 1 << 24}
"""Scores computed at once; on a CPU, as many as stay in the caches of a few cores."""

Tile = tuple[slice, slice]
"""All rows of some heads, or some rows of one head."""


class CausalBand:
    """The mask where all rows are alike: a query attends to at most `farthest` states before it.

    `like` is any tensor of the scores' dtype and device.
    """

    def __init__(self, tgt_len: int, seen_len: int, farthest: int | None, like: Tensor) -> None:
        L, S = tgt_len, seen_len
        n_far = 0 if farthest is None else max(S - 1 - farthest, 0)
        self.triangles = []
        if L > 1:
            self.triangles.append((S - L, like.new_full((L, L), HIDDEN).triu(1)))
        if n_far > 0:
            self.triangles.append((0, like.new_full((L, n_far), HIDDEN).tril(n_far - L)))

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set to -inf what is masked: a triangle at the end, and one at the beginning."""
        for first, hidden_LX in self.triangles:
            score_HBLS.narrow(-1, first, hidden_LX.size(1)).add_(hidden_LX)


class DenseMask:
    """The mask where rows remember more and less, or begin another document."""

    def __init__(self, mask_BLS: Tensor) -> None:
        self.mask_BLS, self.hidden_BLS = mask_BLS, ~mask_BLS

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set to -inf what is masked, in the scores of some rows."""
        score_HBLS.masked_fill_(self.hidden_BLS[rows], HIDDEN)


Mask = CausalBand | DenseMask


@dataclass(frozen=True)
class CachedTerms:
    """`DistanceTerms` in the layout read fastest: biases over sqrt(K), distances side by side."""

    r_HKE: Tensor | None
    b_H1E: Tensor | None
    u_H11K: Tensor | None
    v_H11K: Tensor | None

    @staticmethod
    def from_terms(terms: DistanceTerms, values: Tensor) -> CachedTerms:
        """Return the same terms, for values of this head width and precision."""
        scale, r_HKE = values.size(-1) ** -0.5, None
        if terms.r_THK is not None:
            # Autocast leaves products with `out=` alone.
            r_HKE = terms.r_THK.permute(1, 2, 0).to(values.dtype).contiguous()
        b_H1E = None if terms.b_TH is None else terms.b_TH.t()[:, None] * scale
        biases = (terms.u_HK, terms.v_HK)
        u_v = (None if bias is None else bias[:, None, None] * scale for bias in biases)
        return CachedTerms(r_HKE, b_H1E, *u_v)

    @property
    def n_distance(self) -> int:
        by_distance = self.b_H1E if self.r_HKE is None else self.r_HKE
        return 0 if by_distance is None else by_distance.size(-1)

    def nearest(self, count: int) -> CachedTerms:
        """Return the terms of the `count` nearest distances, or of all."""
        first, by_distance = max(self.n_distance - count, 0), (self.r_HKE, self.b_H1E)
        r_HKE, b_H1E = (None if term is None else term[..., first:] for term in by_distance)
        return replace(self, r_HKE=r_HKE, b_H1E=b_H1E)


class Workspace:
    """Tensors used again by every layer: memory new to a process is slow to touch."""

    def __init__(self) -> None:
        self.tensors: dict[str, Tensor] = {}

    def get(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Return a tensor of any content, valid until the next one of this name."""
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
    terms: CachedTerms,
    mask: Mask,
    workspace: Workspace,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    # A cache may be read under another autocast than it was written under.
    q_HBLK, seen_len = q_BLHK.permute(2, 0, 1, 3).to(k_BSHK.dtype), k_BSHK.size(1)
    content_HBLK, distance_HBLK = (scale_query(q_HBLK, u) for u in (terms.u_H11K, terms.v_H11K))
    k_HBKS, value_HBSK = k_BSHK.permute(2, 0, 3, 1), value_BSHK.permute(2, 0, 1, 3)
    out_HBLK = torch.empty_like(content_HBLK)
    for tile in tiles(q_HBLK, seen_len):
        score_HBLS = shifted_scores(distance_HBLK[tile], seen_len, terms, tile[0], workspace)
        score_XLS = score_HBLS.flatten(0, 1)
        score_XLS.baddbmm_(content_HBLK[tile].flatten(0, 1), k_HBKS[tile].flatten(0, 1))
        mask.hide_(score_HBLS, tile[1])
        weight_XLS = workspace.get("weights", score_XLS.shape, score_XLS)
        torch.softmax(score_XLS, dim=-1, out=weight_XLS)
        out_XLK = out_HBLK[tile].flatten(0, 1)
        torch.bmm(weight_XLS, value_HBSK[tile].flatten(0, 1), out=out_XLK)
    return out_HBLK.permute(1, 2, 0, 3)


def tiles(q_HBLK: Tensor, seen_len: int) -> Iterator[Tile]:
    """Yield what is computed at once: a matrix for every core, and about TILE_SCORES scores."""
    H, B, L, _ = q_HBLK.shape
    n_core = torch.get_num_threads()
    n_score = TILE_SCORES.get(q_HBLK.device.type, TILE_SCORES["elsewhere"])
    n_matrix = max(n_score // (L * seen_len) // n_core, 1) * n_core
    n_head, n_row = max(n_matrix // B, 1), min(n_matrix, B)
    for head in range(0, H, n_head):
        for row in range(0, B, n_row):
            yield slice(head, head + n_head), slice(row, row + n_row)


def scale_query(q_HBLK: Tensor, bias_H11K: Tensor | None) -> Tensor:
    """Return queries over sqrt(K) plus a bias that is already, head by head."""
    scale, out = q_HBLK.size(-1) ** -0.5, q_HBLK.new_empty(q_HBLK.shape)
    if bias_H11K is None:
        return torch.mul(q_HBLK, scale, out=out)
    return torch.add(bias_H11K, q_HBLK, alpha=scale, out=out)


def shifted_scores(
    q_HBLK: Tensor, seen_len: int, terms: CachedTerms, heads: slice, workspace: Workspace
) -> Tensor:
    """Return (b) + (d) of some heads and rows by the state that they are of: score_HBLS."""
    H, B, L, _ = q_HBLK.shape
    score_HBLS = workspace.get("scores", (H, B, L, seen_len), q_HBLK)
    if not terms.n_distance:
        return score_HBLS.zero_()
    b_H1E = None if terms.b_H1E is None else terms.b_H1E[heads]
    if terms.r_HKE is None:
        near_HBLE = b_H1E[:, None].expand(H, B, L, -1)
    else:
        near_HYE = workspace.get("by distance", (H, B * L, terms.n_distance), q_HBLK)
        torch.bmm(q_HBLK.flatten(1, 2), terms.r_HKE[heads], out=near_HYE)
        near_HYE = near_HYE if b_H1E is None else near_HYE.add_(b_H1E)
        near_HBLE = near_HYE.view(H, B, L, -1)
    n_far = seen_len + 1 - near_HBLE.size(-1)
    score_HBLS[..., n_far:] = shift(near_HBLE)
    if n_far:
        score_HBLS[..., :n_far] = near_HBLE[..., :1]
    return score_HBLS
