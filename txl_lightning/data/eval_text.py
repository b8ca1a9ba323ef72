"""A text that is to be scored: its tokens, and how many bytes they stand for."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from ..errors import DataError
from .config import DataConfig
from .fingerprint import digest
from .store import Store, mapped, write
from .tasks import TaskStore
from .tokens import Text, Tokens
from .vocab import Vocabulary
from .vocab.sizes import token_bytes
from .watch import watching

ALL_IS_TEST = (0.0, 0.0, 1.0)
"""How one's own text is cut when all of it is to be scored."""


@dataclass(frozen=True)
class EvalText:
    """Tokens of a text with what is needed to say what their nats mean."""

    name: str
    split: str
    fingerprint: str
    tokens: Tokens
    vocab: Vocabulary
    bytes_per_token: float | None
    """On average in the whole text; None where tokens stand for no bytes."""

    def n_byte(self, at_K: np.ndarray) -> float | None:
        """The bytes of some tokens; of as many average ones, where each one's are not known."""
        if self.bytes_per_token is None:
            return None
        if self._token_bytes is None:
            return len(at_K) * self.bytes_per_token
        return float(self._token_bytes[self.tokens.read(at_K)].sum())

    @cached_property
    def _token_bytes(self) -> np.ndarray | None:
        return token_bytes(self.vocab)


def of_store(name: str, store: Store | TaskStore, split: str) -> EvalText:
    """A split of a prepared text or of a task."""
    size = store.bytes_per_token(split)
    return EvalText(name, split, store.fingerprint, store.text(split), store.vocab, size)


def with_vocabulary(config: DataConfig, split: str, vocab: Vocabulary, folder: Path) -> EvalText:
    """A split of any text, read with a vocabulary that was not made for it.

    It is encoded a piece at a time into files in `folder`, which must be there while it is read.

    Raises:
        DataError: there is no such text, or the vocabulary lacks what stands in it.
    """
    recipe = config.recipe()
    spans = recipe.splits[split]
    n_byte = sum(span.stop - span.start for span in spans)
    if not n_byte:
        raise DataError(f"{config.name}: its {split} text is empty; give another split")
    dtype = np.min_scalar_type(vocab.n_token - 1)
    with watching("encoding", n_byte) as watch:
        n_token, _, n_document = write(folder, split, vocab, recipe, dtype, watch)
    ids = mapped(folder / f"{split}.ids", dtype.name)
    starts = mapped(folder / f"{split}.starts", "int64")
    size = n_byte / max(n_token - vocab.n_start * n_document, 1)
    return EvalText(config.name, split, digest(spans)[:16], Text(ids, starts), vocab, size)
