"""The interface that all vocabularies have."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from functools import cached_property

import numpy as np

from ..documents import FileSlice


class Vocabulary(ABC):
    """Text into ids and back."""

    unit: str
    """Name of a token in results, such as the "byte" of bits per byte."""
    n_token: int
    """Number of ids, V."""
    n_start: int = 0
    """Number of symbols that are put before a document's first word."""
    unknown: int | None = None
    """The id of all that is outside the vocabulary; None where nothing is, or it is refused."""

    @abstractmethod
    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        """Yield the ids of a document, a piece at a time, in the smallest integer type."""

    @abstractmethod
    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        """Return the ids of a short text that may continue; errors call it `where`."""

    @abstractmethod
    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text of each id as it comes, and perhaps a last piece.

        A character that begins in one token and ends in another is part of the latter's.
        """

    @abstractmethod
    def to_json(self) -> str:
        """Return all that is needed to build the vocabulary again."""

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text of some ids."""
        return "".join(self.decode_stream(ids))

    def token_bytes(self) -> np.ndarray | None:
        """Return the bytes of text in each token; None where they depend on its neighbours."""
        return None

    @property
    def dtype(self) -> np.dtype:
        return np.min_scalar_type(max(self.n_token - 1, 0))

    @cached_property
    def fingerprint(self) -> str:
        """A short name that only equal vocabularies share."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]
