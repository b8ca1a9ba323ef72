"""Text into ids and back; saved as JSON."""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from ...errors import DataError
from ..spans import Document
from .characters import Bytes, Characters
from .subwords import SubwordOptions, Subwords, bpe, unigram
from .words import WordOptions, Words

__all__ = [
    "BUILT_IN",
    "Bytes",
    "Characters",
    "SubwordOptions",
    "Subwords",
    "Vocabulary",
    "WordOptions",
    "Words",
    "fingerprint",
    "load",
    "named",
]

BUILT_IN = {
    "bytes": (),
    "characters": ("train", "val", "test"),
    "words": ("train",),
    "bpe": ("train",),
    "unigram": ("train",),
}
"""The vocabularies that are not files, and the parts of a text that each is built from."""


class Vocabulary(Protocol):
    """What every vocabulary can do."""

    unit: str
    """What one token is: the "byte" of bits per byte."""

    n_start: int
    """Symbols that it puts before a document's first word."""

    @property
    def n_token(self) -> int:
        """How many ids there are, V."""

    @property
    def unknown(self) -> int | None:
        """The id of everything that is not in it; None where all is, or is refused."""

    def encode(self, document: Document) -> Iterator[np.ndarray]:
        """The ids of a document, a piece at a time, in the smallest integer type."""

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        """The ids of a short text that may go on; an error calls it `where`."""

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids."""

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        """The same text, as one piece for each id as it comes, and perhaps a last one.

        A character that begins in one token and ends in another is part of the latter's.
        """

    def to_json(self) -> str:
        """All that is needed to build it again."""


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
            case {"kind": "words", "words": [*words], "options": {"special": [*special], **rest}}:
                return Words(tuple(words), WordOptions(special=tuple(special), **rest))
            case {"kind": "subwords", "tokenizer": dict(tokenizer)}:
                return Subwords.of(tokenizer)
    except (json.JSONDecodeError, TypeError):
        pass
    raise DataError(f"vocabulary: {text[:40]!r} is not one saved by this package")


def named(
    name: str,
    documents: Callable[[], Iterable[Document]],
    words: WordOptions,
    subwords: SubwordOptions,
) -> Vocabulary:
    """The vocabulary of one of the names in `BUILT_IN`, or of a file.

    Args:
        name: a name, or a saved vocab.json, a Hugging Face tokenizer.json, or a list of words.
        documents: gives the text to build from, anew with every call.
        words: how words are told apart and chosen.
        subwords: how subwords are trained.

    Raises:
        DataError: there is no such vocabulary, or the text cannot be read.
    """
    match name:
        case "bytes":
            return Bytes()
        case "characters":
            return Characters.of(documents())
        case "words":
            return Words.of(documents(), words)
        case "bpe":
            return bpe(documents, subwords)
        case "unigram":
            return unigram(documents, subwords)
    try:
        return _of_file(Path(name), words)
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise DataError(
            f"data.vocab: {name!r} is not a vocabulary ({_reason(error)}); it must be "
            f"{', '.join(BUILT_IN)}, or a file: a saved vocab.json, a Hugging Face tokenizer.json, "
            "or words, one a line"
        ) from error


def fingerprint(vocab: Vocabulary) -> str:
    """A short name that two vocabularies share only when they are the same."""
    return hashlib.sha256(vocab.to_json().encode()).hexdigest()[:16]


def _of_file(path: Path, options: WordOptions) -> Vocabulary:
    """A list of words may begin with a brace, so that only what is all JSON is taken for JSON."""
    text = path.read_text(encoding="utf-8")
    match _parsed(text):
        case {"model": dict()} as tokenizer:
            return Subwords.of(tokenizer)
        case dict():
            return load(text)
    if path.suffix == ".json":
        return load(text)
    words = [line.split(maxsplit=1)[0] for line in text.split("\n") if line.strip()]
    if not words:
        raise DataError("it has no words")
    return Words.listed(words, options)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
