"""Tokens by their position in a text, and where the text's documents begin.

B rows   L positions in each
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class Tokens(Protocol):
    """Tokens that can be read at any position, counted from 0."""

    row_multiple: int
    """Rows are cut at multiples of this many tokens."""

    def __len__(self) -> int: ...

    def ids_at(self, position_BL: np.ndarray) -> np.ndarray: ...

    def doc_position(self, position_BL: np.ndarray) -> np.ndarray:
        """Return the number of tokens of the same document before each position."""

    def is_target(self, position_BL: np.ndarray) -> np.ndarray:
        """Return True where a token is to be predicted."""


@dataclass(frozen=True)
class Text:
    """Tokens in an array, usually on disk, with the position where each document begins."""

    ids: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    row_multiple = 1

    def __len__(self) -> int:
        return len(self.ids)

    def ids_at(self, position_BL: np.ndarray) -> np.ndarray:
        return self.ids[position_BL]

    def doc_position(self, position_BL: np.ndarray) -> np.ndarray:
        return position_BL - self.starts[np.searchsorted(self.starts, position_BL, "right") - 1]

    def is_target(self, position_BL: np.ndarray) -> np.ndarray:
        return np.ones(position_BL.shape, bool)
