"""A text to score, with the number of bytes of its tokens."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from numpy import ndarray

from .tokens import Tokens

if TYPE_CHECKING:
    from .store import Store
    from .tasks import TaskStore
    from .vocab import Vocabulary

AT_ONCE = 1 << 20  # tokens that are read at once


@dataclass(frozen=True)
class EvalText:
    """A text to score, with the number of bytes of its tokens."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None  # mean over the whole text; None if tokens have no bytes

    @staticmethod
    def from_store(name: str, store: Store | TaskStore, split: str) -> EvalText:
        size = store.bytes_per_token(split)
        return EvalText(name, split, store.fingerprint, store.text(split), store.vocab, size)

    def count_bytes(self, position_K: ndarray) -> float | None:
        """Return the number of bytes of some tokens: from the mean if sizes are not known."""
        if self.bytes_per_token is None:
            return None
        if self.token_bytes is None:
            return len(position_K) * self.bytes_per_token
        return float(self.token_bytes[self.tokens.ids_at(position_K)].sum())

    def unknown_share(self, n_token: int) -> float:
        """Return the share of the first tokens that stand for text the vocabulary does not know."""
        if self.vocab.unknown is None:
            return 0.0
        starts = range(0, n_token, AT_ONCE)
        places = (np.arange(start, min(start + AT_ONCE, n_token)) for start in starts)
        counts = (self.tokens.ids_at(place) == self.vocab.unknown for place in places)
        return sum(int(each.sum()) for each in counts) / n_token

    @cached_property
    def token_bytes(self) -> ndarray | None:
        return self.vocab.token_bytes()
