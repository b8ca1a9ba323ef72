"""One long text -> B contiguous rows -> segments; positions are computed, not stored.

B rows   L tokens in the segment   T = L + 1
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from ..errors import require, require_at_least
from .tokens import FixedLengths, ReadingOrder, SegmentLengths, TextOrder, TextTokens, Tokens

TENSORS = ("tokens_BL", "targets_BL", "doc_pos_BL")
IGNORED = -100  # target that is not scored; F.cross_entropy ignores it


# A tuple, because Lightning rebuilds batches to convert them and cannot rebuild frozen classes.
class Segment(NamedTuple):
    """The next few tokens of every row, and the token that follows each of them.

    A loader of segments keeps memory: row b of a segment continues row b of the one before. A token
    whose doc_pos_BL is 0 begins a document; the first token here continues 4 tokens of its row.

    >>> ids_BT = torch.arange(10).reshape(2, 5)
    >>> doc_pos_BL = torch.arange(4, 8).expand(2, 4)
    >>> Segment(ids_BT[:, :-1], ids_BT[:, 1:], doc_pos_BL, index=1, loss_denominator=8.0).new_len
    4
    """

    tokens_BL: Tensor
    targets_BL: Tensor
    """The token after each new token; IGNORED where none is predicted, as at the start of a
    document. The first n_context tokens were read before, and have no targets."""
    doc_pos_BL: Tensor
    """Number of tokens of the same row and document before each token, which it may attend to."""
    index: int  # segments read before this one
    loss_denominator: float  # scored targets of all ranks, divided by the number of ranks
    n_reread: int = 0  # last tokens, read again by the next one (ext_len); memory ends before them
    host_targets_BL: Tensor | None = None
    """The targets on the host, for a softmax that reads them; None if they are there already."""

    @staticmethod
    def from_batch(batch: Any, n_token: int) -> Segment:
        """Return a segment, made of (tokens_BL, targets_BL) if necessary; each row is a document.

        A batch of another kind, or with ids that are not below n_token, is a ValueError.
        """
        if isinstance(batch, Segment):
            targets_BL = batch.targets_BL
            on_host = targets_BL if batch.host_targets_BL is None else batch.host_targets_BL
            # To ask a GPU would take time in each step.
            if batch.tokens_BL.is_cpu:
                require_ids(batch.tokens_BL.flatten(), n_token)
            if on_host.is_cpu:
                require_ids(on_host[on_host != IGNORED], n_token)
            return batch
        pair = batch if isinstance(batch, tuple | list) and len(batch) == 2 else (None, None)
        expected = "(tokens, targets): two int64 tensors of one shape [rows, tokens]"
        is_pair = all(isinstance(part, Tensor) and part.dtype == torch.long for part in pair)
        require(is_pair, "batch", f"a {type(batch).__name__}", expected)
        tokens_BL, targets_BL = pair
        shapes = f"shapes {[*tokens_BL.shape]} and {[*targets_BL.shape]}"
        is_batch = tokens_BL.dim() == 2 and tokens_BL.shape == targets_BL.shape
        require(is_batch, "batch", shapes, expected)
        require_ids(tokens_BL.flatten(), n_token)
        require_ids(targets_BL[targets_BL != IGNORED], n_token)
        doc_pos_BL = torch.arange(tokens_BL.size(1), device=tokens_BL.device).expand_as(tokens_BL)
        return Segment(*pair, doc_pos_BL, 0, float((targets_BL != IGNORED).sum()))

    @property
    def new_len(self) -> int:
        """Number of tokens per row that no earlier segment has read."""
        return self.targets_BL.size(1)

    @property
    def n_context(self) -> int:
        """Number of first tokens per row that earlier segments have read (ext_len)."""
        return self.tokens_BL.size(1) - self.new_len

    def to(self, device: torch.device | str, **kwargs: Any) -> Segment:
        # Lightning asks for copies without waiting only of tensors.
        options = {"non_blocking": self.tokens_BL.is_pinned()} | kwargs
        tensors = {name: getattr(self, name).to(device, **options) for name in TENSORS}
        on_host = self.targets_BL if self.targets_BL.is_cpu else self.host_targets_BL
        return self._replace(**tensors, host_targets_BL=on_host)

    def pin_memory(self) -> Segment:
        """Return the segment in pinned memory, from which GPU copies are asynchronous."""
        return self._replace(**{name: getattr(self, name).pin_memory() for name in TENSORS})

    def rows(self, which: slice) -> Segment:
        """Return some rows of the segment; loss_denominator still counts all rows."""
        on_host = None if self.host_targets_BL is None else self.host_targets_BL[which]
        tensors = {name: getattr(self, name)[which] for name in TENSORS}
        return self._replace(**tensors, host_targets_BL=on_host)

    def cut(self, part_len: int) -> list[Segment]:
        """Return parts of part_len tokens in order, each of which is read after the one before.

        loss_denominator still counts all. ValueError if tokens are read again.
        """
        n_again = self.n_context + self.n_reread
        expected = "0, as model.gradient_segments is above 1"
        require(n_again == 0, "tokens of a segment that are read again", n_again, expected)
        split = {name: getattr(self, name).split(part_len, dim=1) for name in TENSORS}
        if self.host_targets_BL is not None:
            split["host_targets_BL"] = self.host_targets_BL.split(part_len, dim=1)
        parts = zip(*split.values(), strict=True)
        return [self._replace(**dict(zip(split, part, strict=True))) for part in parts]

    def choose_targets(self, head: Any) -> Tensor:
        """Return the targets where a network's softmax reads them: on its device, or the host."""
        use_host = getattr(head, "reads_targets", False) and self.host_targets_BL is not None
        return self.host_targets_BL if use_host else self.targets_BL


def require_ids(ids_X: Tensor, n_token: int) -> None:
    """Refuse ids outside the vocabulary, after which a GPU would compute nothing more."""
    low, high = torch.cat([ids_X.long(), ids_X.new_zeros(1).long()]).aminmax()
    found = f"ids from {int(low)} to {int(high)}"
    known = f"ids from 0 to {n_token - 1}"
    require(0 <= int(low) <= int(high) < n_token, "batch", found, known)


def share_rows(n_row: int, part: int, n_part: int) -> slice:
    """Return the rows of one of n_part parts, whose numbers of rows differ by at most one.

    The first part always has a row: rank 0 alone measures the loss by position.

    >>> [share_rows(10, part, 4) for part in range(4)]
    [slice(0, 3, None), slice(3, 5, None), slice(5, 8, None), slice(8, 10, None)]
    """
    # Quotients rounded up.
    return slice(-(-part * n_row // n_part), -(-(part + 1) * n_row // n_part))


@dataclass(frozen=True)
class Stream:
    """A text read in B parallel rows, each a contiguous part of it; iterable over one pass.

    Row b of a segment continues row b of the previous one. The first token of a row or document
    is never a target. Every other one is a target once in each pass (for a whole text in
    order: the original's LMOrderedIterator).

    >>> stream = Stream.from_tokens(torch.arange(9).numpy(), batch_size=2, tgt_len=2)
    >>> [segment.tokens_BL.tolist() for segment in stream]
    [[[0, 1], [4, 5]], [[2], [6]]]

    Args:
        tokens: the text.
        batch_size: rows B over all ranks.
        lengths: where segments begin and end.
        order: the order in which tokens are read; by default as in the text.
        warmup_len: unscored tokens that a row reads before its own; the first row has none.
        ext_len: unscored tokens that a segment reads again; the first of a pass has none.
        n_token: read only the first n_token tokens; None is all.
        drop_last: leave out the last tokens, which do not fill all rows. Otherwise the last row is
            padded with its last token; padding is not scored.
        rank, world_size: this process scores its share of the rows (`share_rows`). Without one it
            reads the first row, because all ranks must call the network, and scores nothing.
    """

    tokens: Tokens
    batch_size: int
    lengths: SegmentLengths
    order: ReadingOrder | None = None
    warmup_len: int = 0
    ext_len: int = 0
    n_token: int | None = None
    drop_last: bool = True
    rank: int = 0
    world_size: int = 1

    def __post_init__(self) -> None:
        require_at_least(self, batch_size=1, warmup_len=0, ext_len=0, n_token=1)

    @staticmethod
    def from_tokens(ids: ArrayLike, batch_size: int, tgt_len: int, ext_len: int = 0) -> Stream:
        """Return the stream of a text's ids, one after the other; ValueError if they are too few,
        or no whole numbers."""
        ids = np.asarray(ids)
        found = f"{ids.dtype.name} of shape {[*ids.shape]}"
        is_text = ids.ndim == 1 and (ids.dtype.kind in "iu" or not len(ids))
        require(is_text, "ids", found, "whole numbers of one dimension")
        stream = Stream(TextTokens(ids), batch_size, FixedLengths(tgt_len), ext_len=ext_len)
        expected = f"at least {2 * batch_size}, two for each row"
        require(stream.row_len > 1, "ids", f"number {len(ids)}", expected)
        return stream

    @property
    def end(self) -> int:
        """Position after the last token that is read."""
        return len(self.tokens) if self.n_token is None else min(self.n_token, len(self.tokens))

    @property
    def row_len(self) -> int:
        """Tokens in a row, without its warm-up."""
        unit = self.batch_size * self.tokens.row_multiple
        n_unit = self.end // unit if self.drop_last else -(-self.end // unit)
        return n_unit * self.tokens.row_multiple

    @property
    def n_target(self) -> int:
        """Number of targets of a row in a pass, scored or not."""
        return self.warmup_len + self.row_len - 1

    def __len__(self) -> int:
        """Return the number of segments in the first pass."""
        return self.lengths.count_segments(self.n_target, 0)

    def __iter__(self) -> Iterator[Segment]:
        return map(self.segment, range(len(self)))

    def segment(self, index: int) -> Segment:
        """Return segment `index` of an endless sequence of passes."""
        n_pass, start, stop = self.lengths.find_bounds(self.n_target, index)
        n_context = min(self.ext_len, start)
        column_1T = np.arange(start - n_context, stop + 1)[None] - self.warmup_len
        row_B1 = np.arange(self.batch_size)[:, None]
        order = self.order or TextOrder(self.tokens)
        position_BT, doc_pos_BT = order.find_places(n_pass, row_B1, column_1T, self.row_len)
        doc_pos_BT = np.minimum(doc_pos_BT, column_1T + self.warmup_len)
        new = slice(n_context + 1, None)
        target_BL = position_BT[:, new]
        is_target_BL = doc_pos_BT[:, new] >= self.tokens.n_unscored
        scored_BL = is_target_BL & (column_1T[:, new] >= 0) & (target_BL < self.end)
        own = share_rows(self.batch_size, self.rank, self.world_size)
        scored_own_BL = scored_BL & (own.start <= row_B1) & (row_B1 < own.stop)
        rows = own if own.start < own.stop else slice(1)
        ids_BT = self.tokens.ids_at(np.minimum(position_BT[rows], self.end - 1)).astype(np.int64)
        return Segment(
            tokens_BL=torch.from_numpy(ids_BT[:, :-1].copy()),
            targets_BL=torch.from_numpy(np.where(scored_own_BL[rows], ids_BT[:, new], IGNORED)),
            doc_pos_BL=torch.from_numpy(doc_pos_BT[rows, :-1].astype(np.int64)),
            index=index,
            loss_denominator=int(scored_BL.sum()) / self.world_size,
            # Also at the end of a pass, where nothing is read again. The next segment's doc_pos_BL
            # starts at 0, so that it does not attend to memory.
            n_reread=min(self.ext_len, stop),
        )

    def count_segments(self, n_pass: int) -> int:
        """Return the segments of the first n_pass passes."""
        return self.lengths.count_all(self.n_target, n_pass)

    def count_targets(self, n_segment: int) -> int:
        """Return the targets in the first n_segment segments, over all ranks and passes."""
        if not n_segment:
            return 0
        n_pass, _, stop = self.lengths.find_bounds(self.n_target, n_segment - 1)
        return self.batch_size * (n_pass * self.n_target + stop)


@dataclass(eq=False)
class TrainingLoader:
    """The endless training stream, which can resume.

    Its state counts the segments trained on, not the segments fetched: `commit` after each.
    """

    stream: Stream
    # Settings of reading; a state with other settings is not used.
    read_as: Mapping[str, Any] = field(default_factory=dict)
    n_segment: int | None = None  # repeat only the first ones (Lightning's overfit_batches)
    consumed: int = 0
    n_before: int = 0  # targets of this text that were read before the settings changed

    def __len__(self) -> int:
        # It is endless, but without a length Lightning would prefetch batches.
        return sys.maxsize

    def __iter__(self) -> Iterator[Segment]:
        for index in count(self.consumed):
            nth = index % self.n_segment if self.n_segment else index
            yield self.stream.segment(nth)._replace(index=index)

    def count_segments(self, n_pass: int) -> int:
        return n_pass * self.n_segment if self.n_segment else self.stream.count_segments(n_pass)

    def count_targets(self, n_segment: int) -> int:
        n_round, nth = divmod(n_segment, self.n_segment or sys.maxsize)
        repeated = n_round * self.stream.count_targets(self.n_segment or 0)
        return repeated + self.stream.count_targets(nth)

    def commit(self, segment: Segment) -> None:
        self.consumed = segment.index + 1

    def state_dict(self) -> dict[str, Any]:
        n_read = self.n_before + self.count_targets(self.consumed)
        counts = {"consumed": self.consumed, "n_before": self.n_before, "n_read": n_read}
        return {"read_as": self.read_as} | counts

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the position; if the reading settings changed, start from the beginning."""
        changed = self.find_changes(state["read_as"])
        if changed:
            values = (f"{n} was {was}, is {self.read_as.get(n)}" for n, was in changed.items())
            warnings.warn(f"reading from the start of the text: {'; '.join(values)}", stacklevel=2)
        self.consumed, self.n_before = self.find_position(state)

    def find_position(self, state: Mapping[str, Any]) -> tuple[int, int]:
        """Return the segments that were read as now, and the targets that were read otherwise."""
        changed = self.find_changes(state["read_as"])
        if not changed:
            return state["consumed"], state.get("n_before", 0)
        # Of another text nothing was read.
        return 0, 0 if "text" in changed else state.get("n_read", 0)

    def find_changes(self, read_as: Mapping[str, Any]) -> dict[str, Any]:
        """Return the former values of reading settings that have changed."""
        before = {"ext_len": 0, "restart_len": None, "gradient_segments": 1} | read_as
        now = {"overfit_batches": None} | self.read_as
        return {n: before.get(n) for n, value in now.items() if before.get(n) != value}
