"""What a stream reads: tokens by their place in a text, and where the text's documents begin.

B rows   L places in each
"""

from dataclasses import dataclass, field
from typing import Protocol

import numpy as np


class Tokens(Protocol):
    """Tokens that can be read at any place. Places are whole numbers from 0, in arrays."""

    grain: int
    """Rows are cut at multiples of this many tokens."""

    def __len__(self) -> int:
        """How many there are."""

    def read(self, at_BL: np.ndarray) -> np.ndarray:
        """The ids at these places."""

    def depth(self, at_BL: np.ndarray) -> np.ndarray:
        """How many tokens of the same document stand before each place."""

    def scored(self, at_BL: np.ndarray) -> np.ndarray:
        """Whether a token at each place is one to be predicted."""


@dataclass(frozen=True)
class Text:
    """Tokens in an array, usually on disk, with the place where each document begins."""

    ids: np.ndarray
    starts: np.ndarray = field(default_factory=lambda: np.zeros(1, np.int64))
    grain = 1

    def __len__(self) -> int:
        return len(self.ids)

    def read(self, at_BL: np.ndarray) -> np.ndarray:
        return self.ids[at_BL]

    def depth(self, at_BL: np.ndarray) -> np.ndarray:
        return at_BL - self.starts[np.searchsorted(self.starts, at_BL, side="right") - 1]

    def scored(self, at_BL: np.ndarray) -> np.ndarray:
        return np.ones(at_BL.shape, bool)
