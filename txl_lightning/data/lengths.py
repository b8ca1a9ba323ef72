"""How long the segments of a pass are."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Lengths(Protocol):
    """Where the segments of each pass begin and end."""

    def count(self, total: int, n_pass: int) -> int:
        """Segments in a pass whose rows have `total` targets."""

    def find(self, total: int, index: int) -> tuple[int, int, int]:
        """Segment `index` of an endless reading: its pass, and its first and last place there."""


@dataclass(frozen=True)
class Fixed:
    """tgt_len tokens each; the last of a pass is shorter."""

    tgt_len: int

    def count(self, total: int, n_pass: int) -> int:
        return -(-total // self.tgt_len)

    def find(self, total: int, index: int) -> tuple[int, int, int]:
        n_pass, nth = divmod(index, self.count(total, 0))
        return n_pass, nth * self.tgt_len, min((nth + 1) * self.tgt_len, total)


class Varied:
    """Normal around tgt_len, and around half of it once in twenty (the original's varlen).

    Each pass draws from a generator of its own, so that any segment can be found again.
    """

    DEVIATION = 5
    SHORTEST = 5
    LONGER = 3 * DEVIATION

    def __init__(self, tgt_len: int, seed: int) -> None:
        self.tgt_len, self.seed = tgt_len, seed
        self._total = self._n_pass = self._first = 0
        self._ends = np.empty(0, np.int64)

    def count(self, total: int, n_pass: int) -> int:
        return len(self.ends(total, n_pass))

    def find(self, total: int, index: int) -> tuple[int, int, int]:
        if total != self._total or index < self._first:
            self._open(total, 0, 0)
        while index >= self._first + len(self._ends):
            self._open(total, self._n_pass + 1, self._first + len(self._ends))
        nth = index - self._first
        return self._n_pass, int(self._ends[nth - 1]) if nth else 0, int(self._ends[nth])

    def ends(self, total: int, n_pass: int) -> np.ndarray:
        """Where each segment of a pass ends."""
        rng = np.random.default_rng((self.seed, n_pass))
        n_drawn = total // self.SHORTEST + 1
        centre = np.where(rng.random(n_drawn) < 0.95, self.tgt_len, self.tgt_len / 2)
        drawn = rng.normal(centre, self.DEVIATION).astype(np.int64)
        ends = drawn.clip(self.SHORTEST, self.tgt_len + self.LONGER).cumsum()
        return np.append(ends[ends < total], total)

    def _open(self, total: int, n_pass: int, first: int) -> None:
        """Keep the ends of one pass, whose first segment is number `first`."""
        self._total, self._n_pass, self._first = total, n_pass, first
        self._ends = self.ends(total, n_pass)
