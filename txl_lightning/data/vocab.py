"""Text into ids and back; saved as JSON."""

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np

from .corpora import Span
from .errors import DataError

BUILT_IN = ("bytes", "characters")
"""Names of vocabularies that are not files."""


class Vocabulary(Protocol):
    """What every vocabulary can do."""

    unit: str
    """What one token is: the "byte" of bits per byte."""

    @property
    def n_token(self) -> int:
        """How many ids there are, V."""

    def encode(self, spans: Iterable[Span]) -> Iterator[np.ndarray]:
        """The ids of a text, a piece at a time, in the smallest integer type."""

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        """The ids of a short text; an error calls it `where`."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids."""

    def to_json(self) -> str:
        """All that is needed to build it again."""


@dataclass(frozen=True)
class Bytes:
    """The 256 bytes: no text is outside this vocabulary."""

    unit = "byte"
    n_token = 256

    def encode(self, spans: Iterable[Span]) -> Iterator[np.ndarray]:
        for span in spans:
            for chunk in span.chunks():
                yield np.frombuffer(chunk, dtype=np.uint8)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        return np.frombuffer(text.encode(), dtype=np.uint8)

    def decode(self, ids: Iterable[int]) -> str:
        return bytes(ids).decode(errors="replace")

    def to_json(self) -> str:
        return json.dumps({"kind": "bytes"})


@dataclass(frozen=True)
class Characters:
    """The characters of a text, in the order of their code points."""

    alphabet: str
    unit = "character"

    def __post_init__(self) -> None:
        if not self.alphabet or list(self.alphabet) != sorted(set(self.alphabet)):
            raise DataError("vocabulary: its alphabet is not in the order of its code points")

    @staticmethod
    def of(spans: Iterable[Span]) -> "Characters":
        """Every character that occurs."""
        seen: set[str] = set()
        for _, text in _decoded(spans):
            seen.update(text)
        return Characters("".join(sorted(seen)))

    @property
    def n_token(self) -> int:
        return len(self.alphabet)

    def encode(self, spans: Iterable[Span]) -> Iterator[np.ndarray]:
        for path, text in _decoded(spans):
            yield self._ids(text, str(path))

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        return self._ids(text, where)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.alphabet[index] for index in ids)

    def to_json(self) -> str:
        return json.dumps({"kind": "characters", "alphabet": self.alphabet})

    def _ids(self, text: str, where: str) -> np.ndarray:
        known, points = _code_points(self.alphabet), _code_points(text)
        ids = np.searchsorted(known, points).clip(max=len(known) - 1)
        unknown = np.flatnonzero(known[ids] != points)
        if len(unknown):
            character = text[unknown[0]]
            raise DataError(
                f"{where}: {character!r} is not among the vocabulary's {self.n_token} characters; "
                "use the vocabulary of a text that has it, or data.vocab bytes"
            )
        return ids.astype(np.min_scalar_type(max(self.n_token - 1, 0)))


def load(text: str) -> Vocabulary:
    """The vocabulary that `to_json` wrote.

    Raises:
        DataError: it did not.
    """
    try:
        match json.loads(text):
            case {"kind": "bytes"}:
                return Bytes()
            case {"kind": "characters", "alphabet": str(alphabet)}:
                return Characters(alphabet)
    except json.JSONDecodeError:
        pass
    raise DataError(f"vocabulary: {text[:40]!r} is not one saved by this package")


def named(name: str, spans: Iterable[Span]) -> Vocabulary:
    """The vocabulary `bytes`, `characters` (of these spans), or the one saved in a JSON file."""
    if name in BUILT_IN:
        return Bytes() if name == "bytes" else Characters.of(spans)
    try:
        return load(Path(name).read_text())
    except (OSError, UnicodeDecodeError, DataError) as error:
        allowed = "bytes, characters, or a saved vocab.json"
        message = f"data.vocab: {name!r} is not a vocabulary; it must be {allowed}"
        raise DataError(message) from error


def fingerprint(vocab: Vocabulary) -> str:
    """A short name that two vocabularies share only when they are the same."""
    return hashlib.sha256(vocab.to_json().encode()).hexdigest()[:12]


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def _decoded(spans: Iterable[Span]) -> Iterator[tuple[Path, str]]:
    """The characters of each span, a piece at a time; a character may straddle two pieces."""
    for span in spans:
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset = span.start
        for chunk in (*span.chunks(), b""):
            try:
                yield span.path, decoder.decode(chunk, final=not chunk)
            except UnicodeDecodeError as error:
                held = len(error.object) - len(chunk)
                at = offset - held + error.start
                message = f"{span.path}: byte {at} is not UTF-8 text; use data.vocab bytes"
                raise DataError(message) from error
            offset += len(chunk)
