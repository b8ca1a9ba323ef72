"""In which order a text is read in each pass: a place in the rows -> a place in the text.

B rows   L places in each
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np

from .tokens import Text, Tokens


class Order(Protocol):
    """Which token stands at a place of a row; a pass that is read again is the same."""

    def locate(
        self, n_pass: int, row_B1: np.ndarray, place_1L: np.ndarray, row_len: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Places in the text, and how many tokens before each of them belong with it: both [B, L].

        A place before the text's beginning is taken for its first token.
        """


@dataclass(frozen=True)
class InOrder:
    """Row b is the b-th part of the text, in every pass."""

    tokens: Tokens

    def locate(
        self, n_pass: int, row_B1: np.ndarray, place_1L: np.ndarray, row_len: int
    ) -> tuple[np.ndarray, np.ndarray]:
        at_BL = np.maximum(row_B1 * row_len + place_1L, 0)
        return at_BL, self.tokens.depth(at_BL)


@dataclass(frozen=True)
class Rolled:
    """Each row starts at another place in each pass and goes on at its beginning (NVIDIA's roll).

    Nothing is seen across that seam.
    """

    tokens: Tokens
    seed: int

    def locate(
        self, n_pass: int, row_B1: np.ndarray, place_1L: np.ndarray, row_len: int
    ) -> tuple[np.ndarray, np.ndarray]:
        shift_B = np.random.default_rng((self.seed, n_pass)).integers(row_len, size=len(row_B1))
        place_BL = (place_1L + shift_B[:, None]) % row_len
        at_BL = row_B1 * row_len + place_BL
        return at_BL, np.minimum(place_BL, self.tokens.depth(at_BL))


class Shuffled:
    """The documents follow each other in another order in each pass."""

    def __init__(self, text: Text, seed: int) -> None:
        self.text, self.seed = text, seed
        # Half the bytes: a corpus of sentences has tens of millions.
        self.lengths = np.diff(self.text.starts, append=len(self.text)).astype(np.uint32)
        self._pass = -1

    def locate(
        self, n_pass: int, row_B1: np.ndarray, place_1L: np.ndarray, row_len: int
    ) -> tuple[np.ndarray, np.ndarray]:
        self._shuffle(n_pass)
        at_BL = np.maximum(row_B1 * row_len + place_1L, 0)
        nth_BL = np.searchsorted(self._firsts, at_BL, side="right") - 1
        depth_BL = at_BL - self._firsts[nth_BL]
        return self.text.starts[self._documents[nth_BL]] + depth_BL, depth_BL

    def _shuffle(self, n_pass: int) -> None:
        """Which document is the n-th of a pass, and where it begins there; kept for the pass."""
        if self._pass != n_pass:
            rng = np.random.default_rng((self.seed, n_pass))
            self._documents = rng.permutation(np.arange(len(self.lengths), dtype=np.uint32))
            lengths = self.lengths[self._documents]
            self._firsts = np.cumsum(lengths, dtype=np.int64)
            self._firsts -= lengths
            self._pass = n_pass
