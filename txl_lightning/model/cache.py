"""Keys and values of what was read, kept instead of hidden states: the memory of evaluation.

While weights stay, so do the keys and values that a layer makes of a state and of a distance. So
they are made once, where `Memory` makes those of all M states again for every segment.

B rows   L segment   M remembered   S = M + L seen   T = S + 1 distances
N layers   H heads   K head width   D width   C places of a buffer
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor, nn

from ..errors import require
from .config import SameLength
from .kernels.inference import Band, Prepared, Ragged, Scratch, attend
from .memory import SAME_LENGTHS, Memory, filled, reach, span, visible

SLACK = 256
"""Tokens at least for which a buffer has room, before what is remembered is moved to another, and
for which there are terms."""


class Buffer:
    """Where keys and values are written, each place once; `used` places are."""

    def __init__(
        self, k_NHBKC: Tensor, v_NHBCK: Tensor, used: int, scratch: Scratch | None = None
    ) -> None:
        self.k_NHBKC, self.v_NHBCK, self.used = k_NHBKC, v_NHBCK, used
        self.scratch = scratch or Scratch()

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: torch.dtype, device: torch.device | str) -> Buffer:
        """Places that nothing is written to; they take no memory until it is. N, H, B, C, K."""
        *NHB, C, K = shape
        # As a result of inference_mode, it could be written to in no other.
        with torch.inference_mode(False):
            k_NHBKC = torch.empty(*NHB, K, C, dtype=dtype, device=device)
            v_NHBCK = torch.empty(*NHB, C, K, dtype=dtype, device=device)
        return Buffer(k_NHBKC, v_NHBCK, 0)

    def places(self, start: int, stop: int) -> tuple[Tensor, Tensor]:
        """Keys and values in some places."""
        return self.k_NHBKC[..., start:stop], self.v_NHBCK[..., start:stop, :]

    def copied(self, start: int, stop: int, n_place: int, rows_B: Tensor | None = None) -> Buffer:
        """What is in some places, of all rows or those that are named, in another buffer."""
        parts = self.places(start, stop)
        if rows_B is not None:
            parts = tuple(part.index_select(2, rows_B) for part in parts)
        N, H, B, used, K = parts[1].shape
        new = Buffer.empty((N, H, B, n_place, K), parts[0].dtype, parts[0].device)
        for place, part in zip(new.places(0, used), parts, strict=True):
            place.copy_(part)
        return Buffer(new.k_NHBKC, new.v_NHBCK, used, self.scratch)


class CachedLayer(NamedTuple):
    """One layer's keys and values, with room for the segment's at the end."""

    k_HBKS: Tensor
    v_HBSK: Tensor
    scratch: Scratch

    def seen(
        self, h_BLD: Tensor, terms: Prepared, norm: nn.Module, project: Callable
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The segment's states, as they are and normalised; keys and values of all that is seen."""
        normed_BLD = norm(h_BLD)
        seen = self.k_HBKS.permute(1, 3, 0, 2), self.v_HBSK.permute(1, 2, 0, 3)
        for seen_BSHK, new_BLHK in zip(seen, project(normed_BLD), strict=True):
            seen_BSHK[:, -new_BLHK.size(1) :] = new_BLHK
        return h_BLD, normed_BLD, *seen

    def kernel(self, _: Callable) -> Callable:
        """How it is attended to, whatever kernel the network trains with."""
        return partial(attend, scratch=self.scratch)


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
    terms_N: tuple[Prepared, ...] = ()
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
        index_B = index_B.to(self.filled_B.device)
        buffer = self.buffer.copied(self.end - self.held, self.end, self.n_place(1), index_B)
        return replace(self, buffer=buffer, end=self.held, filled_B=self.filled_B[index_B])

    def tensors(self) -> dict[str, Tensor]:
        """All that it is, to be saved."""
        k_NHBKM, v_NHBMK = self.buffer.places(self.end - self.held, self.end)
        clamp_len = -1 if self.clamp_len is None else self.clamp_len
        return {
            "k_NHBKM": k_NHBKM,
            "v_NHBMK": v_NHBMK,
            "filled_B": self.filled_B,
            "mem_len": torch.tensor(self.mem_len),
            "clamp_len": torch.tensor(clamp_len),
            "same_length": torch.tensor(SAME_LENGTHS.index(self.same_length)),
        }

    @staticmethod
    def of_tensors(tensors: dict[str, Tensor]) -> KeyValueCache:
        """The cache that `tensors` gave; its buffer is full."""
        k_NHBKM, v_NHBMK, filled_B = (tensors[name] for name in ("k_NHBKM", "v_NHBMK", "filled_B"))
        mem_len, clamp_len = int(tensors["mem_len"]), int(tensors["clamp_len"])
        held = v_NHBMK.size(3)
        is_even = bool((filled_B == held).all())
        buffer = Buffer(k_NHBKM, v_NHBMK, held)
        cache = KeyValueCache(buffer, held, held, filled_B, mem_len, is_even=is_even)
        same_length = SAME_LENGTHS[int(tensors["same_length"])]
        return cache.read_with(None if clamp_len < 0 else clamp_len, same_length)

    def n_place(self, tgt_len: int) -> int:
        """Places of a buffer: it is moved when as much was read as it remembers, or more."""
        return self.mem_len + max(self.mem_len, 2 * tgt_len, SLACK)

    def ready(self, tgt_len: int, positions: nn.Module) -> KeyValueCache:
        """The same, with room for a segment and with terms for its distances.

        Raises:
            ValueError: gradients are asked for, or the network is in training mode.
        """
        if torch.is_grad_enabled():
            raise ValueError("a KeyValueCache has no gradient; use torch.inference_mode or no_grad")
        if positions.training:
            raise ValueError("a KeyValueCache is for evaluation; call the network's eval() first")
        return self._with_room(tgt_len)._with_terms(tgt_len, positions)

    def _with_room(self, tgt_len: int) -> KeyValueCache:
        fits = self.end + tgt_len <= self.buffer.v_NHBCK.size(3)
        # Another cache that follows this one may have written beyond its end.
        if fits and self.buffer.used == self.end:
            return self
        buffer = self.buffer.copied(self.end - self.held, self.end, self.n_place(tgt_len))
        return replace(self, buffer=buffer, end=self.held)

    def _with_terms(self, tgt_len: int, positions: nn.Module) -> KeyValueCache:
        kept = self.terms_N
        if kept and kept[0].n_distance >= self._n_distance(self.held, tgt_len):
            return self
        # Not of fewer tokens: a text that is taken up again would have terms of other bits.
        count = self._n_distance(self.mem_len, max(tgt_len, SLACK))
        distance_E = torch.arange(count - 1, -1, -1, device=self.filled_B.device)
        if self.clamp_len is not None:
            distance_E = distance_E.clamp(max=self.clamp_len)
        values = self.buffer.v_NHBCK
        terms_N = tuple(Prepared.of(terms, values) for terms in positions(distance_E))
        return replace(self, terms_N=terms_N)

    def _n_distance(self, held: int, tgt_len: int) -> int:
        """Distances that a kernel must have, the farthest L all beyond clamp_len."""
        all_of_them = held + tgt_len + 1
        return all_of_them if self.clamp_len is None else min(all_of_them, self.clamp_len + tgt_len)

    def terms(self, tgt_len: int, positions: nn.Module) -> list[Prepared]:
        """What distance adds in each layer, for the states that can be seen."""
        count = self._n_distance(self.held, tgt_len)
        return [terms.nearest(count) for terms in self.terms_N]

    def layers(self, tgt_len: int) -> list[CachedLayer]:
        """What each layer reads, with room for the segment."""
        start, stop = self.end - self.held, self.end + tgt_len
        self.buffer.used = stop
        places, scratch = self.buffer.places(start, stop), self.buffer.scratch
        return [CachedLayer(*layer, scratch) for layer in zip(*places, strict=True)]

    def reach(self, tgt_len: int, past_BL: Tensor | None = None) -> Band | Tensor:
        """How many states back each query may look: reach_BL, or a band if all rows' look alike."""
        far = span(self.same_length, self.mem_len)
        if self.is_even and (past_BL is None or self._is_within(past_BL)):
            return Band(tgt_len, self.held + tgt_len, far, self.buffer.v_NHBCK)
        return reach(self.filled_B, tgt_len, far, past_BL)

    def _is_within(self, past_BL: Tensor) -> bool:
        """Whether no row's text begins within what is held."""
        held_L = torch.arange(past_BL.size(1), device=past_BL.device) + self.held
        return bool((past_BL >= held_L).all())

    def visible(self, reach_BL: Band | Tensor) -> Band | Ragged:
        """Which of the S states each of the L queries may see."""
        even = isinstance(reach_BL, Band)
        return reach_BL if even else Ragged(~visible(reach_BL, self.held))

    def remember(
        self, states: Sequence[Tensor], reach_BL: Band | Tensor, again: int = 0
    ) -> KeyValueCache:
        """The cache after a segment; its last `again` tokens are left out, to be read again."""
        new = states[0].size(1) - again
        held = min(self.held + new, self.mem_len)
        self.buffer.used = end = self.end + new
        if isinstance(reach_BL, Band):
            filled_B, is_even = torch.full_like(self.filled_B, held), True
        else:
            filled_B = filled(reach_BL, again, self.mem_len)
            is_even = bool((filled_B == held).all())
        return replace(self, end=end, held=held, filled_B=filled_B, is_even=is_even)


AnyMemory = Memory | KeyValueCache
"""What a network may remember by."""
