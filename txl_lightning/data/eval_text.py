"""A text that is to be scored: its tokens, and how many bytes they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import DataError
from .config import DataConfig
from .documents import sha256_slices
from .store import Store, encode_split, open_split, show_progress
from .tasks import TaskStore
from .tokens import Tokens
from .vocab import Vocabulary

ALL_IS_TEST = (0.0, 0.0, 1.0)
"""Split of a user's text of which all is scored."""


@dataclass(frozen=True)
class EvalText:
    """Tokens of a text, with the bytes they stand for."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None
    """On average in the whole text; None where tokens stand for no bytes."""

    @staticmethod
    def from_store(name: str, store: Store | TaskStore, split: str) -> EvalText:
        size = store.bytes_per_token(split)
        return EvalText(name, split, store.fingerprint, store.text(split), store.vocab, size)

    def count_bytes(self, position_K: np.ndarray) -> float | None:
        """Return the bytes of some tokens: of average ones, where each one's are not known."""
        if self.bytes_per_token is None:
            return None
        if self.token_bytes is None:
            return len(position_K) * self.bytes_per_token
        return float(self.token_bytes[self.tokens.ids_at(position_K)].sum())

    @cached_property
    def token_bytes(self) -> np.ndarray | None:
        return self.vocab.token_bytes()


def encode_eval_text(config: DataConfig, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
    """Encode a split of any text with a given vocabulary, into a folder that is to stay meanwhile.

    Raises:
        DataError: there is no such text, or the vocabulary lacks what stands in it.
    """
    recipe = config.recipe()
    spans = recipe.splits[split]
    n_byte = sum(span.stop - span.start for span in spans)
    if not n_byte:
        raise DataError(f"{config.name}: its {split} text is empty; give another split")
    with show_progress("encoding", n_byte) as advance:
        n_token, _, n_document = encode_split(folder, split, vocab, recipe, advance)
    text = open_split(folder, split, vocab.dtype)
    size = n_byte / max(n_token - vocab.n_start * n_document, 1)
    return EvalText(config.name, split, sha256_slices(spans)[:16], text, vocab, size)
