"""The beginning of a text, in as many places as fill every row.

B rows   L places in each
"""

from dataclasses import dataclass

import numpy as np

from .tokens import Tokens


@dataclass(frozen=True)
class Portion:
    """The first `n_token` tokens of a text; the places that follow them are never scored."""

    tokens: Tokens
    n_token: int
    n_place: int

    @property
    def grain(self) -> int:
        """A row is cut as in the text."""
        return self.tokens.grain

    def __len__(self) -> int:
        return self.n_place

    def read(self, at_BL: np.ndarray) -> np.ndarray:
        return self.tokens.read(self._there(at_BL))

    def depth(self, at_BL: np.ndarray) -> np.ndarray:
        return self.tokens.depth(self._there(at_BL))

    def scored(self, at_BL: np.ndarray) -> np.ndarray:
        return (at_BL < self.n_token) & self.tokens.scored(self._there(at_BL))

    def _there(self, at_BL: np.ndarray) -> np.ndarray:
        """A place beyond the end is taken for the last token."""
        return np.minimum(at_BL, self.n_token - 1)
