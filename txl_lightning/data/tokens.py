"""Tokens by position in a text; reading orders and segment lengths.

A checkpoint keeps how many segments were read, and the settings. So a change of what is drawn here
would make resumed runs read other tokens, unnoticed.

B rows   L positions in each
"""

from bisect import bisect_right
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
from numpy import ndarray

from ..errors import DataError, require_at_least

# Positions in the text, and tokens of the same document before each: both [B, L].
Places = tuple[ndarray, ndarray]
QuestionAnswer = tuple[ndarray, ndarray]  # ids of an example: the question, and the answer
DEVIATION = 5  # of the lengths of varlen, in tokens, as in the original
SHORTEST = 5  # length of varlen, in tokens, as in the original


@dataclass(frozen=True)
class TextTokens:
    """Tokens in an array, with the position where each document begins."""

    ids: ndarray
    starts: ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    row_multiple = 1  # row boundaries are multiples of this number of tokens
    n_unscored = 1  # first tokens of a document, which are not targets

    def __len__(self) -> int:
        return len(self.ids)

    def ids_at(self, position_BL: ndarray) -> ndarray:
        return self.ids[position_BL]

    def doc_position(self, position_BL: ndarray) -> ndarray:
        """Return the number of tokens of the same document before each position."""
        return position_BL - self.starts[np.searchsorted(self.starts, position_BL, "right") - 1]


@dataclass(frozen=True)
class Examples:
    """A task's examples, the same in each pass; their last `answer_len` tokens are scored."""

    draw: Callable[[np.random.Generator], QuestionAnswer]
    seed: tuple[int, int]
    n_example: int
    row_multiple: int
    answer_len: int

    @property
    def n_unscored(self) -> int:
        return self.row_multiple - self.answer_len

    def __len__(self) -> int:
        return self.n_example * self.row_multiple

    def ids_at(self, position_BL: ndarray) -> ndarray:
        nth_BL, column_BL = np.divmod(position_BL, self.row_multiple)
        unique_N, which_BL = np.unique(nth_BL, return_inverse=True)
        examples = np.stack([self.draw_example(int(nth)) for nth in unique_N])
        return examples[which_BL.reshape(position_BL.shape), column_BL]

    def doc_position(self, position_BL: ndarray) -> ndarray:
        return position_BL % self.row_multiple

    def draw_example(self, nth: int) -> ndarray:
        return np.concatenate(self.draw(np.random.default_rng((*self.seed, nth))))


Tokens = TextTokens | Examples  # tokens that can be read at any position, counted from 0


@dataclass(frozen=True)
class TextOrder:
    """Row b is the b-th part of the text; columns before the text repeat its first token."""

    tokens: Tokens

    def find_places(self, n_pass: int, row_B1: ndarray, column_1L: ndarray, row_len: int) -> Places:
        position_BL = np.maximum(row_B1 * row_len + column_1L, 0)
        return position_BL, self.tokens.doc_position(position_BL)


@dataclass(frozen=True)
class RolledOrder:
    """Rows start at another offset in each pass (NVIDIA's roll); no attention across the seam."""

    tokens: Tokens
    seed: int

    def find_places(self, n_pass: int, row_B1: ndarray, column_1L: ndarray, row_len: int) -> Places:
        shift_B = np.random.default_rng((self.seed, n_pass)).integers(row_len, size=len(row_B1))
        column_BL = (column_1L + shift_B[:, None]) % row_len
        position_BL = row_B1 * row_len + column_BL
        return position_BL, np.minimum(column_BL, self.tokens.doc_position(position_BL))


class ShuffledOrder:
    """The documents are read in another order in each pass."""

    def __init__(self, text: TextTokens, seed: int) -> None:
        self.text = text
        self.seed = seed
        self.starts = text.starts
        # 32 bits save half the memory: a corpus of sentences has tens of millions.
        self.lengths = np.diff(self.starts, append=len(text)).astype(np.uint32)
        self._pass = -1

    def find_places(self, n_pass: int, row_B1: ndarray, column_1L: ndarray, row_len: int) -> Places:
        if self._pass != n_pass:
            self._shuffle(n_pass)
        position_BL = np.maximum(row_B1 * row_len + column_1L, 0)
        nth_BL = np.searchsorted(self._firsts, position_BL, side="right") - 1
        doc_pos_BL = position_BL - self._firsts[nth_BL]
        return self.starts[self._documents[nth_BL]] + doc_pos_BL, doc_pos_BL

    def _shuffle(self, n_pass: int) -> None:
        rng = np.random.default_rng((self.seed, n_pass))
        self._documents = rng.permutation(np.arange(len(self.lengths), dtype=np.uint32))
        lengths = self.lengths[self._documents]
        self._firsts = np.cumsum(lengths, dtype=np.int64)
        self._firsts -= lengths
        self._pass = n_pass


@dataclass(frozen=True)
class RestartedOrder:
    """Another order, in which a document begins at a random column of every restart_len."""

    order: TextOrder | RolledOrder | ShuffledOrder
    restart_len: int
    seed: int

    def find_places(self, n_pass: int, row_B1: ndarray, column_1L: ndarray, row_len: int) -> Places:
        position_BL, doc_pos_BL = self.order.find_places(n_pass, row_B1, column_1L, row_len)
        first, last = column_1L[0, [0, -1]] // self.restart_len
        # The last beginning before the segment is in the same part of the row, or the one before.
        for part in range(max(first - 1, 0), last + 1):
            rng = np.random.default_rng((self.seed, n_pass, part))
            begin_B1 = part * self.restart_len + rng.integers(self.restart_len, size=row_B1.shape)
            since_BL = column_1L - begin_B1
            doc_pos_BL = np.where(since_BL < 0, doc_pos_BL, np.minimum(doc_pos_BL, since_BL))
        return position_BL, doc_pos_BL


ReadingOrder = TextOrder | RolledOrder | ShuffledOrder | RestartedOrder
"""Maps row and column to a position in the text, for each pass; the mapping is deterministic."""


def make_order(name: str, tokens: Tokens, restart_len: int | None, seed: int) -> ReadingOrder:
    """Return the order of a name; DataError if a text in one piece is to be shuffled."""
    order: ReadingOrder = TextOrder(tokens)
    if name == "rolled":
        order = RolledOrder(tokens, seed)
    elif name == "shuffled":
        if len(tokens.starts) < 2:
            fix = "give a folder or tar of documents, or set data.document_unit to lines"
            raise DataError(f"data.order: invalid shuffled for a text in one piece; {fix}")
        order = ShuffledOrder(tokens, seed)
    return RestartedOrder(order, restart_len, seed) if restart_len else order


@dataclass(frozen=True)
class FixedLengths:
    """tgt_len tokens each; the last segment of a pass, with `total` targets per row, is shorter."""

    tgt_len: int

    def __post_init__(self) -> None:
        require_at_least(self, tgt_len=1)

    def count_segments(self, total: int, n_pass: int) -> int:
        return -(-total // self.tgt_len)

    def count_all(self, total: int, n_pass: int) -> int:
        """Return the segments of the first n_pass passes."""
        return n_pass * self.count_segments(total, 0)

    def find_bounds(self, total: int, index: int) -> tuple[int, int, int]:
        """Return pass, first column and end of segment `index` in an endless sequence of passes."""
        n_pass, nth = divmod(index, self.count_segments(total, 0))
        return n_pass, nth * self.tgt_len, min((nth + 1) * self.tgt_len, total)


@dataclass(frozen=True)
class VarlenLengths:
    """Normally distributed around tgt_len, or around tgt_len / 2 in 5 % (the original's varlen)."""

    tgt_len: int
    seed: int
    firsts: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)
    """Index of the first segment of each pass that is known, by the targets of a row."""

    def count_segments(self, total: int, n_pass: int) -> int:
        return len(draw_ends(self, total, n_pass))

    def count_all(self, total: int, n_pass: int) -> int:
        return sum(self.count_segments(total, nth) for nth in range(n_pass))

    def find_bounds(self, total: int, index: int) -> tuple[int, int, int]:
        firsts = self.firsts.setdefault(total, [0])
        while firsts[-1] <= index:
            firsts.append(firsts[-1] + self.count_segments(total, len(firsts) - 1))
        n_pass = bisect_right(firsts, index) - 1
        ends = draw_ends(self, total, n_pass)
        nth = index - firsts[n_pass]
        return n_pass, int(ends[nth - 1]) if nth else 0, int(ends[nth])


SegmentLengths = FixedLengths | VarlenLengths


@lru_cache(maxsize=4)
def draw_ends(lengths: VarlenLengths, total: int, n_pass: int) -> ndarray:
    """Return the column where each segment of a pass ends."""
    rng = np.random.default_rng((lengths.seed, n_pass))
    n_drawn = total // SHORTEST + 1
    centre = np.where(rng.random(n_drawn) < 0.95, lengths.tgt_len, lengths.tgt_len / 2)
    lens = rng.normal(centre, DEVIATION).astype(np.int64)
    ends = lens.clip(SHORTEST, lengths.tgt_len + 3 * DEVIATION).cumsum()
    return np.append(ends[ends < total], total)
