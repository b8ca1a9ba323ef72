"""What a segment leaves behind for the next one, as a value (Section 3.2).

B rows   L segment   M remembered   S = M + L   T = S + 1   D width
N layers
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, get_args

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require
from .config import SameLength
from .positions import DistanceTerms

SAME_LENGTHS = (None, *get_args(get_args(SameLength)[0]))
"""What `same_length` may be; a saved memory has the place in this list."""


@dataclass(frozen=True)
class Memory:
    """The last M hidden states that each layer reads, newest last, without gradient.

    The shape is constant from the first segment on. Only the newest `filled_B` states of a row
    have been written; the others are masked by position and contribute nothing. How far back a
    text is read goes with what is remembered of it, and may differ from training.
    """

    h_NBMD: Tensor
    filled_B: Tensor
    clamp_len: int | None = None
    """Greatest distance told apart; None, all are."""
    same_length: SameLength = None
    """How many states each query sees; None, all that are there."""

    @staticmethod
    def empty(
        n_layer: int,
        batch_size: int,
        mem_len: int,
        d_model: int,
        *,
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
    ) -> Memory:
        """A memory of `mem_len` places in which nothing is filled."""
        require(mem_len >= 0, "mem_len", mem_len, "0 (no memory) or more")
        shape = (n_layer, batch_size, mem_len, d_model)
        return Memory(
            torch.zeros(shape, dtype=dtype, device=device),
            torch.zeros(batch_size, dtype=torch.long, device=device),
        )

    @property
    def batch_size(self) -> int:
        """Rows B."""
        return self.h_NBMD.size(1)

    @property
    def mem_len(self) -> int:
        """Places M."""
        return self.h_NBMD.size(2)

    def to(self, *args, **kwargs) -> Memory:
        """The same memory elsewhere, or with its states in another precision."""
        h_NBMD = self.h_NBMD.to(*args, **kwargs)
        return replace(self, h_NBMD=h_NBMD, filled_B=self.filled_B.to(h_NBMD.device))

    def read_with(self, clamp_len: int | None, same_length: SameLength) -> Memory:
        """The same states, read back as far as this."""
        return replace(self, clamp_len=clamp_len, same_length=same_length)

    def ready(self, tgt_len: int, positions: nn.Module) -> Memory:
        """The memory to read a segment with: this one."""
        return self

    def terms(self, tgt_len: int, positions: nn.Module) -> list[DistanceTerms]:
        """What distance adds in each layer."""
        return positions(self.distances(tgt_len))

    def layers(self, tgt_len: int) -> list[Remembered]:
        """What each layer reads of the past."""
        return [Remembered(h_BMD) for h_BMD in self.h_NBMD]

    def rows(self, index_B: Tensor | slice) -> Memory:
        """What these rows remember, in this order; one may be asked for twice."""
        return replace(self, h_NBMD=self.h_NBMD[:, index_B], filled_B=self.filled_B[index_B])

    def tensors(self) -> dict[str, Tensor]:
        """All that it is, to be saved."""
        clamp_len = -1 if self.clamp_len is None else self.clamp_len
        return {
            "h_NBMD": self.h_NBMD,
            "filled_B": self.filled_B,
            "clamp_len": torch.tensor(clamp_len),
            "same_length": torch.tensor(SAME_LENGTHS.index(self.same_length)),
        }

    @staticmethod
    def of_tensors(tensors: dict[str, Tensor]) -> Memory:
        """The memory that `tensors` gave."""
        clamp_len = int(tensors["clamp_len"])
        same_length = SAME_LENGTHS[int(tensors["same_length"])]
        memory = Memory(tensors["h_NBMD"], tensors["filled_B"])
        return memory.read_with(None if clamp_len < 0 else clamp_len, same_length)

    def resized(self, mem_len: int) -> Memory:
        """The newest of these states in `mem_len` places."""
        require(mem_len >= 0, "mem_len", mem_len, "0 (no memory) or more")
        if mem_len == self.mem_len:
            return self
        kept = min(mem_len, self.mem_len)
        newest = self.h_NBMD.narrow(2, self.mem_len - kept, kept)
        h_NBMD = F.pad(newest, (0, 0, mem_len - kept, 0))
        return replace(self, h_NBMD=h_NBMD, filled_B=self.filled_B.clamp(max=mem_len))

    def reach(self, tgt_len: int, past_BL: Tensor | None = None) -> Tensor:
        """How many states back each query of a segment may look: reach_BL.

        Over what is filled, and no further than same_length says; and given `past_BL`, how many
        tokens of its own text stand before each token, not over the start of that text.
        """
        return reach(self.filled_B, tgt_len, span(self.same_length, self.mem_len), past_BL)

    def visible(self, reach_BL: Tensor) -> Tensor:
        """Which of the S states each of the L queries may see: visible_BLS, True where it may."""
        return visible(reach_BL, self.mem_len)

    def distances(self, tgt_len: int) -> Tensor:
        """What each of the T = S + 1 distances is taken for, farthest first: distance_T."""
        farthest, device = self.mem_len + tgt_len, self.filled_B.device
        return torch.arange(farthest, -1, -1, device=device).clamp(min=0, max=self.clamp_len)

    def remember(self, states: Sequence[Tensor], reach_BL: Tensor, again: int = 0) -> Memory:
        """The memory after a segment: the last M of what was remembered and what is new.

        The last `again` tokens are left out, because the next segment reads them again. What the
        first of these could not see, or else the segment's last query, no later one will.
        """
        h_NBLD = torch.stack([state.detach() for state in states])
        end, mem_len = h_NBLD.size(2) - again, self.mem_len
        new = min(end, mem_len)
        old_NBMD = self.h_NBMD.narrow(2, new, mem_len - new).to(h_NBLD.dtype)
        new_NBMD = h_NBLD.narrow(2, end - new, new)
        h_NBMD = torch.cat([old_NBMD, new_NBMD], dim=2)
        return replace(self, h_NBMD=h_NBMD, filled_B=filled(reach_BL, again, mem_len))


class Remembered(NamedTuple):
    """The states that one layer reads of the past."""

    h_BMD: Tensor

    def seen(
        self, h_BLD: Tensor, terms: DistanceTerms, norm: nn.Module, project: Callable
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The segment's states, as they are and normalised; keys and values of all that is seen.

        All that is seen is [SG(memory) o h] (Section 3.2).
        """
        memory_BMD, h_BLD = terms.placed(self.h_BMD, h_BLD)
        seen_BSD = norm(torch.cat([memory_BMD.to(h_BLD.dtype), h_BLD], dim=1))
        newest_BLD = seen_BSD.narrow(1, memory_BMD.size(1), h_BLD.size(1))
        return h_BLD, newest_BLD, *project(seen_BSD)

    def kernel(self, attend: Callable) -> Callable:
        """How it is attended to: as the network's config says."""
        return attend


def span(same_length: SameLength, mem_len: int) -> int | None:
    """Most states before itself that a query may see; None, all.

    Without a memory, all: equally many would be none but its own.
    """
    if not mem_len or same_length is None:
        return None
    return mem_len - 1 if same_length == "mem_len" else mem_len


def reach(filled_B: Tensor, tgt_len: int, far: int | None, past_BL: Tensor | None) -> Tensor:
    """How many states back each query may look: reach_BL."""
    segment_L = torch.arange(tgt_len, device=filled_B.device)
    held_BL = (filled_B[:, None] + segment_L).clamp(min=0, max=far)
    return held_BL if past_BL is None else torch.minimum(held_BL, past_BL)


def visible(reach_BL: Tensor, mem_len: int) -> Tensor:
    """Which of the S states each of the L queries may see: visible_BLS, True where it may."""
    tgt_len, device = reach_BL.size(1), reach_BL.device
    query_L1 = torch.arange(tgt_len, device=device)[:, None] + mem_len
    distance_LS = query_L1 - torch.arange(mem_len + tgt_len, device=device)
    return (distance_LS >= 0) & (distance_LS <= reach_BL[:, :, None])


def filled(reach_BL: Tensor, again: int, mem_len: int) -> Tensor:
    """Places filled after a segment whose last `again` tokens are read again: filled_B."""
    before_B = reach_BL[:, -again] if again else reach_BL[:, -1] + 1
    return before_B.clamp(max=mem_len)
