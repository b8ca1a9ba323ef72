"""Relative attention without gradients: scores are changed in place, and masked where they must be.

Terms may be of E < T distances, of which the first L are the same: so are all that are farther.

B rows   L queries   S states seen   H heads   K head width   T = S + 1 distances
X = H * B matrices in a batched product   Y = B * L
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..positions import DistanceTerms, shift

HIDDEN = float("-inf")


@dataclass(frozen=True)
class Band:
    """What queries see if all rows remember equally many states: those up to `span` before them.

    `like` is any tensor of the scores' kind and device.
    """

    tgt_len: int
    seen_len: int
    span: int | None
    like: Tensor

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set to -inf what no query sees: a triangle at the end, and one at the beginning."""
        for first, hidden in self.triangles:
            score_HBLS.narrow(-1, first, hidden.size(1)).add_(hidden)

    @cached_property
    def triangles(self) -> list[tuple[int, Tensor]]:
        """-inf where hidden, each with the first state that it is of; made once for all layers."""
        L, S = self.tgt_len, self.seen_len
        too_far = 0 if self.span is None else max(S - 1 - self.span, 0)
        triangles = []
        if L > 1:
            triangles.append((S - L, self._all_hidden(L).triu(1)))
        if too_far > 0:
            triangles.append((0, self._all_hidden(too_far).tril(too_far - L)))
        return triangles

    def _all_hidden(self, count: int) -> Tensor:
        return self.like.new_full((self.tgt_len, count), HIDDEN)


@dataclass(frozen=True)
class Ragged:
    """What queries do not see if rows remember more and less, or begin another text."""

    hidden_BLS: Tensor

    def hide_(self, score_HBLS: Tensor, rows: slice) -> None:
        """Set it to -inf, in the scores of some rows."""
        score_HBLS.masked_fill_(self.hidden_BLS[rows], HIDDEN)


@dataclass(frozen=True)
class Prepared:
    """`DistanceTerms` as they are read fastest: biases over sqrt(K), and what belongs to one
    dimension of a head side by side, as in the buffer of keys."""

    r_HKE: Tensor | None
    number_H1E: Tensor | None
    u_H11K: Tensor | None
    v_H11K: Tensor | None

    @staticmethod
    def of(terms: DistanceTerms, values: Tensor) -> Prepared:
        """The same terms, for values of such a width and precision."""
        scale, r_HKE = values.size(-1) ** -0.5, None
        if terms.r_THK is not None:
            # Autocast leaves products that have a place for their result alone.
            r_HKE = terms.r_THK.permute(1, 2, 0).to(values.dtype).contiguous()
        number_H1E = None if terms.b_TH is None else terms.b_TH.t()[:, None] * scale
        biases = (terms.u_HK, terms.v_HK)
        return Prepared(
            r_HKE,
            number_H1E,
            *(None if bias is None else bias[:, None, None] * scale for bias in biases),
        )

    @property
    def n_distance(self) -> int:
        """Distances E."""
        by_distance = self.r_HKE if self.r_HKE is not None else self.number_H1E
        return 0 if by_distance is None else by_distance.size(-1)

    def nearest(self, count: int) -> Prepared:
        """The terms of so many distances, the nearest, or of all that there are."""
        first = self.n_distance - count
        if first <= 0:
            return self
        r_HKE = None if self.r_HKE is None else self.r_HKE[..., first:]
        number_H1E = None if self.number_H1E is None else self.number_H1E[..., first:]
        return replace(self, r_HKE=r_HKE, number_H1E=number_H1E)


AT_ONCE = {"cpu": 1 << 19}
"""Scores computed at once: as many as stay in the caches of a few cores while they are changed."""

AT_ONCE_ELSEWHERE = 1 << 24

Piece = tuple[slice, slice]
"""All rows of some heads, or some rows of one head."""


class Scratch:
    """Places for what is only needed for a moment, used again by every layer: memory that is new to
    a process takes longer to touch than to fill."""

    def __init__(self) -> None:
        self.places: dict[str, Tensor] = {}

    def lend(self, name: str, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """A tensor of any content, until the next one of this name is lent."""
        count, place = math.prod(shape), self.places.get(name)
        if place is None or place.numel() < count or place.dtype != like.dtype:
            # As a result of inference_mode, it could be written to in no other.
            with torch.inference_mode(False):
                place = torch.empty(count, dtype=like.dtype, device=like.device)
            self.places[name] = place
        return place[:count].view(shape)


def attend(
    q_BLHK: Tensor,
    k_BSHK: Tensor,
    value_BSHK: Tensor,
    terms: Prepared,
    visible: Band | Ragged,
    dropatt: float,
    scratch: Scratch,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    assert dropatt == 0, "evaluation drops nothing"
    q_HBLK, seen_len = q_BLHK.permute(2, 0, 1, 3), k_BSHK.size(1)
    # A cache may be read under another autocast than it was written under.
    q_HBLK = q_HBLK.to(k_BSHK.dtype)
    content_HBLK, distance_HBLK = (over_sqrt_k(q_HBLK, u) for u in (terms.u_H11K, terms.v_H11K))
    k_HBKS, value_HBSK = k_BSHK.permute(2, 0, 3, 1), value_BSHK.permute(2, 0, 1, 3)
    out_HBLK = torch.empty_like(content_HBLK)
    for piece in pieces(q_HBLK, seen_len):
        score_HBLS = by_distance(distance_HBLK[piece], seen_len, terms, piece, scratch)
        score_XLS = score_HBLS.flatten(0, 1)
        score_XLS.baddbmm_(content_HBLK[piece].flatten(0, 1), k_HBKS[piece].flatten(0, 1))
        visible.hide_(score_HBLS, piece[1])
        weight_XLS = scratch.lend("weights", score_XLS.shape, score_XLS)
        torch.softmax(score_XLS, dim=-1, out=weight_XLS)
        out_XLK = out_HBLK[piece].flatten(0, 1)
        torch.bmm(weight_XLS, value_HBSK[piece].flatten(0, 1), out=out_XLK)
    return out_HBLK.permute(1, 2, 0, 3)


def pieces(q_HBLK: Tensor, seen_len: int) -> Iterator[Piece]:
    """What is computed at once: a matrix for every core, and about AT_ONCE scores."""
    H, B, L, _ = q_HBLK.shape
    n_core = torch.get_num_threads()
    n_matrix = AT_ONCE.get(q_HBLK.device.type, AT_ONCE_ELSEWHERE) // (L * seen_len)
    n_matrix = max(n_matrix // n_core, 1) * n_core
    n_head, n_row = max(n_matrix // B, 1), min(n_matrix, B)
    for head in range(0, H, n_head):
        for row in range(0, B, n_row):
            yield slice(head, head + n_head), slice(row, row + n_row)


def over_sqrt_k(q_HBLK: Tensor, bias_H11K: Tensor | None) -> Tensor:
    """Queries over sqrt(K) and a bias that is already, head by head."""
    scale, place = q_HBLK.size(-1) ** -0.5, q_HBLK.new_empty(q_HBLK.shape)
    if bias_H11K is None:
        return torch.mul(q_HBLK, scale, out=place)
    return torch.add(bias_H11K, q_HBLK, alpha=scale, out=place)


def by_distance(
    q_HBLK: Tensor, seen_len: int, terms: Prepared, piece: Piece, scratch: Scratch
) -> Tensor:
    """(b) + (d) of some heads and rows, moved to the states that they meet: score_HBLS."""
    score_HBLS = scratch.lend("scores", (*q_HBLK.shape[:3], seen_len), q_HBLK)
    if not terms.n_distance:
        return score_HBLS.zero_()
    near_HBLE = near(q_HBLK, terms, piece[0], scratch)
    n_far = seen_len + 1 - near_HBLE.size(-1)
    score_HBLS[..., n_far:] = shift(near_HBLE)
    if n_far:
        score_HBLS[..., :n_far] = near_HBLE[..., :1]
    return score_HBLS


def near(q_HBLK: Tensor, terms: Prepared, heads: slice, scratch: Scratch) -> Tensor:
    """(b) + (d) by distance: score_HBLE."""
    H, B, L, _ = q_HBLK.shape
    number_H1E = None if terms.number_H1E is None else terms.number_H1E[heads]
    if terms.r_HKE is None:
        return number_H1E[:, None].expand(H, B, L, -1)
    near_HYE = scratch.lend("by distance", (H, B * L, terms.r_HKE.size(-1)), q_HBLK)
    torch.bmm(q_HBLK.flatten(1, 2), terms.r_HKE[heads], out=near_HYE)
    near_HYE = near_HYE if number_H1E is None else near_HYE.add_(number_H1E)
    return near_HYE.view(H, B, L, -1)
