"""Keys and values of what was read, kept instead of hidden states: the memory of evaluation.

While weights stay, so do the keys and values that a layer makes of a state and of a distance. So
they are made once, where `Memory` makes those of all M states again for every segment.

B rows   L segment   M remembered   S = M + L seen   T = S + 1 distances
N layers   H heads   K head width   D width   C places of a buffer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .config import SameLength, require
from .kernels import inference
from .kernels.inference import Band
from .memory import SAME_LENGTHS, filled, reach, span, visible
from .positions import DistanceTerms

SLACK = 256
"""Tokens at least for which a buffer has room, before what is remembered is moved to another."""


class Buffer:
    """Where keys and values are written, each place once; `used` places are."""

    def __init__(self, k_NHBCK: Tensor, v_NHBCK: Tensor, used: int) -> None:
        self.k_NHBCK, self.v_NHBCK, self.used = k_NHBCK, v_NHBCK, used

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Buffer:
        """Places that nothing is written to; they take no memory until it is."""
        # As a result of inference_mode, it could be written to in no other.
        with torch.inference_mode(False):
            k_NHBCK, v_NHBCK = (torch.empty(shape, dtype=dtype, device=device) for _ in range(2))
        return Buffer(k_NHBCK, v_NHBCK, 0)

    def copied(self, start: int, stop: int, n_place: int, rows_B: Tensor | None = None) -> Buffer:
        """What is in some places, of all rows or those that are named, in another buffer."""
        parts = [whole[..., start:stop, :] for whole in (self.k_NHBCK, self.v_NHBCK)]
        parts = parts if rows_B is None else [part.index_select(2, rows_B) for part in parts]
        N, H, B, used, K = parts[0].shape
        buffer = Buffer.empty((N, H, B, n_place, K), parts[0].dtype, parts[0].device)
        for whole, part in zip((buffer.k_NHBCK, buffer.v_NHBCK), parts, strict=True):
            whole[..., :used, :] = part
        buffer.used = used
        return buffer


class CachedLayer(NamedTuple):
    """One layer's keys and values, with room for the segment's at the end."""

    k_HBSK: Tensor
    v_HBSK: Tensor

    def seen(
        self, h_BLD: Tensor, terms: DistanceTerms, norm: nn.Module, project: Callable
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The segment's states, as they are and normalised; keys and values of all that is seen."""
        normed_BLD = norm(h_BLD)
        new = [part_BLHK.permute(2, 0, 1, 3) for part_BLHK in project(normed_BLD)]
        for whole_HBSK, part_HBLK in zip(self, new, strict=True):
            whole_HBSK[:, :, -part_HBLK.size(2) :] = part_HBLK
        k_BSHK, value_BSHK = (whole_HBSK.permute(1, 2, 0, 3) for whole_HBSK in self)
        return h_BLD, normed_BLD, k_BSHK, value_BSHK

    def kernel(self, attend: Callable) -> Callable:
        """How it is attended to, whatever kernel the network trains with."""
        return inference.attend


@dataclass(frozen=True)
class KeyValueCache:
    """The keys and values of the last M states of each layer; used wherever `Memory` is.

    For `torch.inference_mode` or `no_grad`, in eval mode, and for weights that stay as they are. It
    is a value: what it holds is never changed, though a buffer is shared with the caches that
    follow it, which write to places beyond its own.
    """

    buffer: Buffer
    end: int
    held: int
    """Places before `end` that are remembered: at most M, as many as the fullest row's."""
    filled_B: Tensor
    mem_len: int
    clamp_len: int | None = None
    same_length: SameLength = None
    is_even: bool = True
    """Whether all rows remember `held` states."""
    terms_N: tuple[DistanceTerms, ...] = ()
    """What distance adds, for as many distances as were asked for so far."""

    @staticmethod
    def empty(
        shape: tuple[int, int, int, int],
        mem_len: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str,
    ) -> KeyValueCache:
        """Nothing remembered; `shape` is N, B, H, K."""
        require(mem_len >= 0, "mem_len", mem_len, "0 (no memory) or more")
        N, B, H, K = shape
        filled_B = torch.zeros(B, dtype=torch.long, device=device)
        return KeyValueCache(Buffer.empty((N, H, B, 0, K), dtype, device), 0, 0, filled_B, mem_len)

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return len(self.filled_B)

    def read_with(self, clamp_len: int | None, same_length: SameLength) -> KeyValueCache:
        """The same states, read back as far as this."""
        return replace(self, clamp_len=clamp_len, same_length=same_length, terms_N=())

    def rows(self, index_B: Tensor) -> KeyValueCache:
        """The rows that are named, in that order."""
        buffer = self.buffer.copied(self.end - self.held, self.end, self.n_place(1), index_B)
        return replace(self, buffer=buffer, end=self.held, filled_B=self.filled_B[index_B])

    def tensors(self) -> dict[str, Tensor]:
        """All that it is, to be saved."""
        start, buffer = self.end - self.held, self.buffer
        k, v = (whole[..., start : self.end, :] for whole in (buffer.k_NHBCK, buffer.v_NHBCK))
        clamp_len = -1 if self.clamp_len is None else self.clamp_len
        return {
            "k_NHBMK": k,
            "v_NHBMK": v,
            "filled_B": self.filled_B,
            "mem_len": torch.tensor(self.mem_len),
            "clamp_len": torch.tensor(clamp_len),
            "same_length": torch.tensor(SAME_LENGTHS.index(self.same_length)),
        }

    @staticmethod
    def of_tensors(tensors: dict[str, Tensor]) -> KeyValueCache:
        """The cache that `tensors` gave; its buffer is full."""
        k, v, filled_B = (tensors[name] for name in ("k_NHBMK", "v_NHBMK", "filled_B"))
        held, mem_len, clamp_len = k.size(3), int(tensors["mem_len"]), int(tensors["clamp_len"])
        is_even = bool((filled_B == held).all())
        buffer = Buffer(k, v, held)
        cache = KeyValueCache(buffer, held, held, filled_B, mem_len, is_even=is_even)
        same_length = SAME_LENGTHS[int(tensors["same_length"])]
        return cache.read_with(None if clamp_len < 0 else clamp_len, same_length)

    def n_place(self, tgt_len: int) -> int:
        """Places of a buffer: it is moved when as much was read as it remembers, or more."""
        return self.mem_len + max(self.mem_len, 2 * tgt_len, SLACK)

    def ready(self, tgt_len: int, positions: nn.Module) -> KeyValueCache:
        """The same, with room for a segment and with terms for its distances.

        Raises:
            ValueError: gradients are asked for.
        """
        if torch.is_grad_enabled():
            raise ValueError("a KeyValueCache has no gradient; use torch.inference_mode or no_grad")
        return self._with_room(tgt_len)._with_terms(tgt_len, positions)

    def _with_room(self, tgt_len: int) -> KeyValueCache:
        fits = self.end + tgt_len <= self.buffer.k_NHBCK.size(3)
        # Another cache that follows this one may have written beyond its end.
        if fits and self.buffer.used == self.end:
            return self
        buffer = self.buffer.copied(self.end - self.held, self.end, self.n_place(tgt_len))
        return replace(self, buffer=buffer, end=self.held)

    def _with_terms(self, tgt_len: int, positions: nn.Module) -> KeyValueCache:
        needed, kept = self._told_apart(self.held + tgt_len), self.terms_N
        if kept and kept[0].n_distance > needed:
            return self
        farthest = self._told_apart(self.mem_len + tgt_len)
        distance_T = torch.arange(farthest, -1, -1, device=self.filled_B.device)
        return replace(self, terms_N=tuple(terms.laid_out() for terms in positions(distance_T)))

    def _told_apart(self, distance: int) -> int:
        """The greatest distance that has terms of its own, up to this one."""
        return distance if self.clamp_len is None else min(distance, self.clamp_len)

    def terms(self, tgt_len: int, positions: nn.Module) -> list[DistanceTerms]:
        """What distance adds in each layer, for the states that can be seen."""
        return [terms.nearest(self.held + tgt_len + 1) for terms in self.terms_N]

    def layers(self, tgt_len: int) -> list[CachedLayer]:
        """What each layer reads, with room for the segment."""
        start, stop = self.end - self.held, self.end + tgt_len
        self.buffer.used = stop
        k, v = (whole[..., start:stop, :] for whole in (self.buffer.k_NHBCK, self.buffer.v_NHBCK))
        return [CachedLayer(*layer) for layer in zip(k, v, strict=True)]

    def reach(self, tgt_len: int, past_BL: Tensor | None = None) -> Band | Tensor:
        """How many states back each query may look: reach_BL, or a band if all rows' look alike."""
        far = span(self.same_length, self.mem_len)
        if self.is_even and (past_BL is None or self._is_within(past_BL)):
            return Band(tgt_len, self.held + tgt_len, far, self.filled_B.device)
        return reach(self.filled_B, tgt_len, far, past_BL)

    def _is_within(self, past_BL: Tensor) -> bool:
        """Whether no row's text begins within what is held."""
        held_L = torch.arange(past_BL.size(1), device=past_BL.device) + self.held
        return bool((past_BL >= held_L).all())

    def visible(self, reach_BL: Band | Tensor) -> Band | Tensor:
        """Which of the S states each of the L queries may see."""
        return reach_BL if isinstance(reach_BL, Band) else visible(reach_BL, self.held)

    def remember(
        self, states: Sequence[Tensor], reach_BL: Band | Tensor, again: int = 0
    ) -> KeyValueCache:
        """The cache after a segment; its last `again` tokens are left out, to be read again."""
        new = states[0].size(1) - again
        held = min(self.held + new, self.mem_len)
        self.buffer.used = end = self.end + new
        even = isinstance(reach_BL, Band)
        count = torch.full_like(self.filled_B, held)
        filled_B = count if even else filled(reach_BL, again, self.mem_len)
        return replace(self, end=end, held=held, filled_B=filled_B, is_even=even)
