"""One long text -> B continuing rows -> segments. The position is arithmetic.

B rows   L tokens in the segment
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .lengths import Fixed, Lengths
from .orders import InOrder, Order
from .tokens import Text, Tokens


class Segment(NamedTuple):
    """The next few tokens of every row, and the tokens that follow each of them.

    A tuple, because Lightning rebuilds batches to convert them and cannot rebuild frozen classes.
    """

    tokens_BL: Tensor
    targets_BL: Tensor
    past_BL: Tensor
    """How many tokens before each token may be seen: to the start of its row or document."""
    scored_BL: Tensor
    """True where the target is to be predicted: something of its document stands before it."""
    index: int
    """How many segments were read before this one."""
    n_target: int
    """Targets read up to the end of this segment, over all ranks and passes."""
    n_scored: float
    """Scored targets of this segment over all ranks, shared equally among them and their chunks."""
    chunk: int = 0
    """Which of its rows these are, where a segment is read in chunks."""
    n_chunk: int = 1
    """How many chunks there are."""
    reread: int = 0
    """How many of its first tokens the segment before has read: unscored, they are context."""
    again: int = 0
    """How many of its last tokens the next segment reads again."""

    @property
    def new_len(self) -> int:
        """Targets of a row that no segment before has read."""
        return self.targets_BL.size(1) - self.reread

    @property
    def is_whole(self) -> bool:
        """Whether nothing of this segment is left to read."""
        return self.chunk + 1 == self.n_chunk

    def to(self, device: torch.device | str, **kwargs) -> Segment:
        """The same segment elsewhere."""
        return self._replace(**{name: getattr(self, name).to(device, **kwargs) for name in TENSORS})

    def rows(self, which: slice) -> Segment:
        """The same segment of some rows only."""
        return self._replace(**{name: getattr(self, name)[which] for name in TENSORS})


TENSORS = ("tokens_BL", "targets_BL", "past_BL", "scored_BL")
"""The fields of a segment that have rows."""


@dataclass(frozen=True)
class Stream:
    """A text read in B rows at once, each row a contiguous part of it.

    Row b of a segment continues row b of the one before. The text's last len % B tokens are not
    read; a row's or document's first token is never a target, every other one is a target exactly
    once in a pass (for a whole text in order: the original's LMOrderedIterator).

    Args:
        tokens: what to read.
        batch_size: rows B over all ranks.
        lengths: where segments begin and end.
        order: which token stands where; left out, the text's own order.
        warmup_len: tokens before its own that a row reads first without being scored. Before the
            text's beginning there are none: the first row starts with an empty memory.
        ext_len: tokens of the segments before that each reads again before its own, unscored; at
            the beginning of a pass there are none.
        rank, world_size: this process reads rows rank * B / world_size and following.
    """

    tokens: Tokens
    batch_size: int
    lengths: Lengths
    order: Order | None = None
    warmup_len: int = 0
    ext_len: int = 0
    rank: int = 0
    world_size: int = 1
    n_chunk: ClassVar[int] = 1

    @staticmethod
    def of(ids: np.ndarray, batch_size: int, tgt_len: int, ext_len: int = 0) -> Stream:
        """One text in order, in segments of tgt_len."""
        return Stream(Text(ids), batch_size, Fixed(tgt_len), ext_len=ext_len)

    @property
    def row_len(self) -> int:
        """Tokens in a row, without its warm-up."""
        grain = self.tokens.grain
        return len(self.tokens) // (self.batch_size * grain) * grain

    @property
    def total(self) -> int:
        """Targets of a row in a pass, scored or not."""
        return self.warmup_len + self.row_len - 1

    def __len__(self) -> int:
        """Segments in the first pass."""
        return self.lengths.count(self.total, 0)

    def segment(self, index: int) -> Segment:
        """Segment `index` of an endless reading that starts over after each pass."""
        n_pass, start, stop = self.lengths.find(self.total, index)
        reread = min(self.ext_len, start)
        place_1T = np.arange(start - reread, stop + 1)[None] - self.warmup_len
        row_B1 = np.arange(self.batch_size)[:, None]
        order = self.order or InOrder(self.tokens)
        at_BT, depth_BT = order.locate(n_pass, row_B1, place_1T, self.row_len)
        past_BT = np.minimum(depth_BT, place_1T + self.warmup_len)
        target_BL = at_BT[:, 1:]
        scored_BL = (past_BT[:, 1:] > 0) & (place_1T[:, 1:] >= 0) & self.tokens.scored(target_BL)
        scored_BL[:, :reread] = False
        ids_BT = self.tokens.read(at_BT[self._rows])
        return Segment(
            tokens_BL=tensor(ids_BT[:, :-1]),
            targets_BL=tensor(ids_BT[:, 1:]),
            past_BL=tensor(past_BT[self._rows, :-1]),
            scored_BL=torch.from_numpy(scored_BL[self._rows]),
            index=index,
            n_target=self.batch_size * (n_pass * self.total + stop),
            n_scored=int(scored_BL.sum()) / self.world_size,
            reread=reread,
            again=min(self.ext_len, stop) if stop < self.total else 0,
        )

    @property
    def _rows(self) -> slice:
        """The rows of this rank."""
        share = self.batch_size // self.world_size
        return slice(self.rank * share, (self.rank + 1) * share)


class Repeated:
    """The first few segments of a stream, over and over (Lightning's overfit_batches)."""

    n_chunk = 1

    def __init__(self, stream: Stream, n_segment: int) -> None:
        self.stream, self.n_segment = stream, n_segment

    def segment(self, index: int) -> Segment:
        """Segment `index` of an endless reading."""
        n_pass, nth = divmod(index, self.n_segment)
        segment, last = self.stream.segment(nth), self.stream.segment(self.n_segment - 1)
        n_target = n_pass * last.n_target + segment.n_target
        again = segment.again if nth + 1 < self.n_segment else 0
        return segment._replace(index=index, n_target=n_target, again=again)


class Chunked:
    """Each segment in chunks of its rows, one after the other, for one small batch each.

    The chunks of all ranks are shares like those of as many ranks more: where their losses are
    averaged, and their gradients, these are the segment's.

    Args:
        stream: what is read whole.
        n_chunk: chunks of a segment.
        batch_size: rows of a segment over all ranks.
    """

    def __init__(self, stream: Segments, n_chunk: int, batch_size: int) -> None:
        self.stream, self.n_chunk, self.batch_size = stream, n_chunk, batch_size
        # Or a segment would be read once for each of its chunks.
        self._whole = lru_cache(maxsize=1)(stream.segment)

    def segment(self, index: int) -> Segment:
        """Chunk `index` of an endless reading."""
        nth, chunk = divmod(index, self.n_chunk)
        whole = self._whole(nth)
        share = len(whole.tokens_BL) // self.n_chunk
        rows = slice(chunk * share, (chunk + 1) * share)
        n_left = (self.n_chunk - 1 - chunk) * self.batch_size // self.n_chunk
        return whole.rows(rows)._replace(
            n_target=whole.n_target - n_left * whole.new_len,
            n_scored=whole.n_scored / self.n_chunk,
            chunk=chunk,
            n_chunk=self.n_chunk,
        )


class Segments(Protocol):
    """What a training loader reads from."""

    n_chunk: int
    """In how many chunks each segment comes."""

    def segment(self, index: int) -> Segment:
        """Segment `index` of an endless reading, or its chunk, where it comes in chunks."""


class TrainingLoader:
    """The stream without end, able to continue from where training was.

    Its state is what the model has learnt from, not what was fetched: `commit` after each step. It
    counts whole segments: one of which only some chunks were read is read again.

    Args:
        stream: what to read.
        read_as: how it is read; a state that was read otherwise says nothing about this stream.
    """

    def __init__(self, stream: Segments, read_as: Mapping[str, Any] | None = None) -> None:
        self.stream = stream
        self.consumed = 0
        self.saved_chunks = self.n_chunk
        self.read_as = dict(read_as or {})

    @property
    def n_chunk(self) -> int:
        """In how many chunks each segment comes."""
        return self.stream.n_chunk

    def __len__(self) -> int:
        """Endless, in a number: without one, Lightning fetches ahead of what it trains on."""
        return sys.maxsize

    def __iter__(self) -> Iterator[Segment]:
        index = self.consumed * self.n_chunk
        while True:
            yield self.stream.segment(index)
            index += 1

    def commit(self, segment: Segment) -> None:
        """The step on this segment or chunk is done."""
        self.consumed = segment.index + segment.is_whole

    def state_dict(self) -> dict[str, Any]:
        """Where to continue, in which text, read how."""
        return {"consumed": self.consumed, "read_as": self.read_as, "n_chunk": self.n_chunk}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue there; a text that is read in another way starts from its beginning."""
        was = {"ext_len": 0} | state["read_as"]
        self.saved_chunks = state.get("n_chunk", 1)
        changed = [
            f"{name} was {was.get(name)}, is {value}"
            for name, value in self.read_as.items()
            if was.get(name) != value
        ]
        if changed:
            warnings.warn(f"reading from the start of the text: {'; '.join(changed)}", stacklevel=2)
        self.consumed = 0 if changed else state["consumed"]


class EvaluationLoader:
    """One pass over the stream, from its beginning each time."""

    def __init__(self, stream: Stream) -> None:
        self.stream = stream

    def __len__(self) -> int:
        return len(self.stream)

    def __iter__(self) -> Iterator[Segment]:
        return map(self.stream.segment, range(len(self)))


def tensor(ids: np.ndarray) -> Tensor:
    """The numbers as torch's embeddings want them, in memory of their own."""
    return torch.from_numpy(ids.astype(np.int64))


def check_length(part: str, stream: Stream, tgt_len: int, fix: str) -> None:
    """Refuse a text that cannot fill one segment of every row.

    Raises:
        ValueError: with the arithmetic, and `fix` for what to do.
    """
    batch_size, grain = stream.batch_size, stream.tokens.grain
    shortest = -(-(tgt_len + 1) // grain) * grain
    if stream.row_len < shortest:
        unit = "" if grain == 1 else f", in whole examples of {grain}"
        raise ValueError(
            f"{part}: {len(stream.tokens)} tokens are too few for {batch_size} rows of {tgt_len} + "
            f"1{unit} ({batch_size} x {shortest} = {batch_size * shortest}); {fix}"
        )
