"""Bytes and characters."""

import codecs
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from ...errors import DataError
from ..documents import FileSlice
from .base import Vocabulary
from .reading import decode_utf8


@dataclass(frozen=True)
class Bytes(Vocabulary):
    """The 256 bytes: no text is outside this vocabulary."""

    unit = "byte"
    n_token = 256

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        for chunk in document.chunks():
            yield np.frombuffer(chunk, dtype=np.uint8)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index in ids:
            yield decoder.decode(bytes([index]))
        yield decoder.decode(b"", final=True)

    def token_bytes(self) -> np.ndarray:
        return np.ones(self.n_token, np.int64)

    def to_json(self) -> str:
        return json.dumps({"kind": "bytes"})


@dataclass(frozen=True)
class Characters(Vocabulary):
    """The characters of a text, in the order of their code points."""

    alphabet: str
    unit = "character"

    def __post_init__(self) -> None:
        if not self.alphabet or list(self.alphabet) != sorted(set(self.alphabet)):
            raise DataError("vocabulary: its alphabet is not in the order of its code points")

    @staticmethod
    def from_documents(documents: Iterable[FileSlice]) -> "Characters":
        """Collect every character that occurs."""
        found: set[str] = set()
        for document in documents:
            for text in decode_utf8(document):
                found.update(text)
        return Characters("".join(sorted(found)))

    @property
    def n_token(self) -> int:
        return len(self.alphabet)

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        for text in decode_utf8(document):
            yield self.encode_text(text, str(document.path))

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        known, points = _code_points(self.alphabet), _code_points(text)
        ids = np.searchsorted(known, points).clip(max=len(known) - 1)
        unknown = np.flatnonzero(known[ids] != points)
        if len(unknown):
            raise DataError(
                f"{where}: {text[unknown[0]]!r} is not among the vocabulary's {self.n_token} "
                "characters; use the vocabulary of a text that has it, or data.vocab bytes"
            )
        return ids.astype(self.dtype)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        return (self.alphabet[index] for index in ids)

    def token_bytes(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.alphabet])

    def to_json(self) -> str:
        return json.dumps({"kind": "characters", "alphabet": self.alphabet})


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
