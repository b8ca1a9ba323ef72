"""One long text -> B continuing rows -> segments. The position is arithmetic.

B rows   L tokens in the segment
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .errors import DataError


class Segment(NamedTuple):
    """The next few tokens of every row, and the tokens that follow each of them.

    A tuple, because Lightning rebuilds batches to convert them and cannot rebuild frozen classes.
    """

    tokens_BL: Tensor
    targets_BL: Tensor
    fresh_B: Tensor
    """True where a row starts afresh: what is remembered of it must be forgotten."""
    index: int
    """How many segments were read before this one."""
    n_target: int
    """Targets read up to the end of this segment, over all ranks and passes."""

    def to(self, device: torch.device | str, **kwargs) -> Segment:
        """The same segment elsewhere."""
        tensors = ("tokens_BL", "targets_BL", "fresh_B")
        return self._replace(**{name: getattr(self, name).to(device, **kwargs) for name in tensors})


@dataclass(frozen=True)
class OrderedStream:
    """A text read in B rows at once, each row a contiguous part of it.

    Row b of a segment continues row b of the one before. The text's last len % B tokens are not
    read; a row's first token is never a target, every other one is a target exactly once; the last
    segment is shorter (the original's LMOrderedIterator).

    Args:
        ids: the text.
        batch_size: rows B over all ranks.
        tgt_len: tokens L in a segment.
        rank, world_size: this process reads rows rank * B / world_size and following.
    """

    ids: np.ndarray
    batch_size: int
    tgt_len: int
    rank: int = 0
    world_size: int = 1

    @property
    def row_len(self) -> int:
        """Tokens in a row."""
        return len(self.ids) // self.batch_size

    @property
    def n_scored(self) -> int:
        """Targets in one pass, over all ranks."""
        return self.batch_size * (self.row_len - 1)

    def __len__(self) -> int:
        """Segments in one pass."""
        return -(-(self.row_len - 1) // self.tgt_len)

    def segment(self, index: int) -> Segment:
        """Segment `index` of an endless reading that starts over after each pass."""
        n_pass, index_in_pass = divmod(index, len(self))
        start = index_in_pass * self.tgt_len
        stop = min(start + self.tgt_len, self.row_len - 1)
        rows = self.batch_size // self.world_size
        first = self.rank * rows * self.row_len
        rows_BR = self.ids[first : first + rows * self.row_len].reshape(rows, self.row_len)
        window_BL = torch.from_numpy(rows_BR[:, start : stop + 1].astype(np.int64))
        fresh_B = torch.full((rows,), start == 0)
        n_target = n_pass * self.n_scored + self.batch_size * stop
        return Segment(window_BL[:, :-1], window_BL[:, 1:], fresh_B, index, n_target)


class TrainingLoader:
    """The stream without end, able to continue from where training was.

    Its state is what the model has learnt from, not what was fetched: `commit` after each step.

    Args:
        stream: what to read.
        text: a name of the text, by which a state is known to be of another one.
    """

    def __init__(self, stream: OrderedStream, text: str = "") -> None:
        self.stream = stream
        self.consumed = 0
        self.read_as = {
            "text": text,
            "tokens": len(stream.ids),
            "batch_size": stream.batch_size,
            "tgt_len": stream.tgt_len,
        }

    def __len__(self) -> int:
        """Endless, in a number: without one, Lightning fetches ahead of what it trains on."""
        return sys.maxsize

    def __iter__(self) -> Iterator[Segment]:
        index = self.consumed
        while True:
            yield self.stream.segment(index)
            index += 1

    def commit(self, segment: Segment) -> None:
        """The step on this segment is done."""
        self.consumed = segment.index + 1

    def state_dict(self) -> dict[str, Any]:
        """Where to continue, in which text, read how."""
        return {"consumed": self.consumed, **self.read_as}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue there; a text that is read in another way starts from its beginning."""
        changed = [
            f"{name} was {state.get(name)}, is {value}"
            for name, value in self.read_as.items()
            if state.get(name) != value
        ]
        if changed:
            warnings.warn(f"reading from the start of the text: {'; '.join(changed)}", stacklevel=2)
        self.consumed = 0 if changed else state["consumed"]


class EvaluationLoader:
    """One pass over the stream, from its beginning each time."""

    def __init__(self, stream: OrderedStream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Segment]:
        return map(self.stream.segment, range(len(self)))


def check_length(part: str, n_token: int, batch_size: int, tgt_len: int, fix: str) -> None:
    """Refuse a text that cannot fill one segment of every row.

    Raises:
        DataError: with the arithmetic, and `fix` for what to do.
    """
    needed = batch_size * (tgt_len + 1)
    if n_token < needed:
        raise DataError(
            f"{part}: {n_token} tokens are too few for {batch_size} rows of {tgt_len} + 1 "
            f"({batch_size} x {tgt_len + 1} = {needed}); {fix}"
        )
