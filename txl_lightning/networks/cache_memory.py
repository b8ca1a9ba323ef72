"""The cache of a model of transformers as a memory: a value, which nothing overwrites.

B rows   M tokens in memory
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor

from ..model.config import ContextLengths
from ..model.parts import move

KEYS = (".keys", ".values")
"""Ends of the names of tensors with a dimension for tokens, which is the third."""


@dataclass(frozen=True)
class CacheMemory:
    """The content of the cache after a segment.

    Args:
        cached: Keys, values and states of the layers, by name; none before anything was read.
        filled_B: Newest tokens of M that count in each row.
        position_B: Position of the next token of each row.
        mem_len: Tokens whose keys and values are kept; 0: nothing is carried.
        has_gradient: False: the tensors have no gradient into the segment before.
    """

    cached: dict[str, Tensor]
    filled_B: Tensor
    position_B: Tensor
    mem_len: int
    has_gradient: bool = False

    @property
    def batch_size(self) -> int:
        return len(self.filled_B)

    @property
    def n_kept(self) -> int:
        """Number M of tokens whose keys are in memory; in some rows, not all count."""
        lengths = (self.cached[name].size(2) for name in self.cached if name.endswith(KEYS))
        return next(lengths, 0)

    def tensors(self) -> dict[str, Tensor]:
        return {**self.cached, "filled_B": self.filled_B, "position_B": self.position_B}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        cached = dict(tensors)
        filled_B = cached.pop("filled_B")
        position_B = cached.pop("position_B")
        return replace(self, cached=cached, filled_B=filled_B, position_B=position_B)

    def change_each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a memory with each tensor changed."""
        tensors = self.tensors()
        return self.restore({name: change(tensors[name]) for name in tensors})

    def rows(self, index_B: Tensor | slice) -> Self:
        return self.change_each(lambda tensor: tensor[index_B])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        return self.change_each(lambda tensor: move(tensor, *args, **kwargs))

    def resize(self, lengths: ContextLengths) -> Self:
        return replace(self, mem_len=lengths.mem_len).end_segment()

    def keep_gradient(self) -> Self:
        """Return a memory whose next ones have a gradient into the segments before."""
        return replace(self, has_gradient=True)

    def end_segment(self) -> Self:
        """Return the memory for the next segment: cut to mem_len, and perhaps without gradient."""
        if not self.mem_len:
            none_B = torch.zeros_like(self.filled_B)
            return replace(self, cached={}, filled_B=none_B, position_B=none_B)
        memory = self if self.has_gradient else self.change_each(Tensor.detach)
        n_cut = max(self.n_kept - self.mem_len, 0)
        named = memory.cached.items()
        cut = {name: tensor[:, :, n_cut:] for name, tensor in named if name.endswith(KEYS)}
        cached = {**memory.cached, **cut}
        return replace(memory, cached=cached, filled_B=self.filled_B.clamp(max=self.mem_len))

    def forget_states(self, begins_B: Tensor) -> Self:
        """Return a memory whose recurrent states are zero in rows where a document begins."""
        cached = dict(self.cached)
        for name in cached:
            if not name.endswith(KEYS):
                begins = begins_B.view(-1, *[1] * (cached[name].dim() - 1))
                cached[name] = torch.where(begins, 0, cached[name])
        return replace(self, cached=cached)
