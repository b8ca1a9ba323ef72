"""Bytes and characters."""

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import DataError
from ..spans import Document
from .reading import decoded


@dataclass(frozen=True)
class Bytes:
    """The 256 bytes: no text is outside this vocabulary."""

    unit = "byte"
    n_token = 256
    n_start = 0
    unknown = None

    def encode(self, document: Document) -> Iterator[np.ndarray]:
        for chunk in document.chunks():
            yield np.frombuffer(chunk, dtype=np.uint8)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index in ids:
            yield decoder.decode(bytes([index]))
        yield decoder.decode(b"", final=True)

    def to_json(self) -> str:
        return json.dumps({"kind": "bytes"})


@dataclass(frozen=True)
class Characters:
    """The characters of a text, in the order of their code points."""

    alphabet: str
    unit = "character"
    n_start = 0
    unknown = None

    def __post_init__(self) -> None:
        if not self.alphabet or list(self.alphabet) != sorted(set(self.alphabet)):
            raise DataError("vocabulary: its alphabet is not in the order of its code points")

    @staticmethod
    def of(documents: Iterable[Document]) -> "Characters":
        """Every character that occurs."""
        seen: set[str] = set()
        for document in documents:
            for text in decoded(document):
                seen.update(text)
        return Characters("".join(sorted(seen)))

    @property
    def n_token(self) -> int:
        return len(self.alphabet)

    def encode(self, document: Document) -> Iterator[np.ndarray]:
        for text in decoded(document):
            yield self.encode_text(text, str(document.path))

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        known, points = _code_points(self.alphabet), _code_points(text)
        ids = np.searchsorted(known, points).clip(max=len(known) - 1)
        unknown = np.flatnonzero(known[ids] != points)
        if len(unknown):
            character = text[unknown[0]]
            raise DataError(
                f"{where}: {character!r} is not among the vocabulary's {self.n_token} characters; "
                "use the vocabulary of a text that has it, or data.vocab bytes"
            )
        return ids.astype(np.min_scalar_type(self.n_token - 1))

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        return (self.alphabet[index] for index in ids)

    def to_json(self) -> str:
        return json.dumps({"kind": "characters", "alphabet": self.alphabet})


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
