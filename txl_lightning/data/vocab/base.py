"""Text into ids and back: the interface of all vocabularies, and the simplest ones.

words.py and subwords.py have the others, and kinds.py says how each is built and loaded.
"""

from __future__ import annotations

import codecs
import hashlib
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from typing import TYPE_CHECKING, Self

import numpy as np

from ...errors import DataError, invalid_text
from ...imports import name_class

if TYPE_CHECKING:
    from ..text_files import FileSlice
    from .spans import Spans

# Text up to the end of the last word, if possible before a space: tokenizers may join a line end
# to the word before it. Unlike Python, they do not count the separators 1c to 1f as white space.
LAST_GAP = re.compile(r"(?s:.*)\S(?= )|(?s:.*)\S(?=[^\S\x1c-\x1f])")

EncodedPiece = tuple[np.ndarray, Sequence[int]]  # ids, and the places where documents begin


class Vocabulary(ABC):
    """Text into ids and back; `load` returns that of a run, and load_vocabulary a saved one.

    >>> model, vocab = load("version_0")
    >>> ids_T = vocab.encode_text("to be")
    >>> ids_T.dtype, len(ids_T), vocab.decode(ids_T), vocab.n_token
    (dtype('uint8'), 5, 'to be', 256)
    >>> "|".join(vocab.decode_stream(ids_T))
    't|o| |b|e|'

    `encode_text` returns ids from 0 to n_token - 1 in the smallest integer type. Text that it does
    not know is a DataError, or the id `unknown`. `decode` returns a text, and `decode_stream` the
    piece that each id completes, and a last one. `to_json` returns what load_vocabulary reads.
    `unit` names what an id stands for, such as "byte" or "word"; `n_start` counts the symbols
    before a document.
    """

    saved_as: str | None = None  # kind in JSON; None for a class of another package
    unit: str  # of results, such as the "byte" of bits per byte
    n_token: int  # V
    n_start: int = 0  # symbols before a document's first word
    unknown: int | None = None  # id of unknown text; None if there is none, or it is refused
    is_cut_at_lines = True  # a document may be encoded in parts of whole lines

    @abstractmethod
    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        """Yield the ids of a document in pieces, in the smallest integer type."""

    def encode_batch(self, documents: Sequence[FileSlice]) -> EncodedPiece:
        """Return the ids of short documents, one after another, and where each begins."""
        ids = [np.concatenate([np.empty(0, self.dtype), *self.encode(d)]) for d in documents]
        return join_documents(np.concatenate(ids), [len(each) for each in ids])

    @abstractmethod
    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        """Return the ids of a short text that may continue; `where` names it in errors."""

    @abstractmethod
    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        """Yield the text that each id completes, and possibly a last piece."""

    def split_settled(self, text: str) -> tuple[list[str], str]:
        """Return the parts of a text whose ids no later text can change, and what waits for it.

        Each part is encoded for itself. A class that says nothing else has whole lines.
        """
        from .spans import LONGEST_WAIT

        end = text.rfind("\n") + 1
        if len(text) - end > LONGEST_WAIT:
            limit = f"expected lines of at most {LONGEST_WAIT:,} characters"
            raise DataError(f"text: a line of {len(text) - end:,} characters has no end; {limit}")
        return [text[:end]], text[end:]

    def encode_spans(self, text: str, continues: bool, where: str = "text") -> Spans:
        """Return the ids of a part of a text, and where in it each is; `continues`: not the first
        part."""
        from .spans import place_pieces

        ids_L = self.encode_text(text, where)[self.n_start if continues else 0 :]
        return place_pieces(ids_L, self.decode_stream(ids_L.tolist()), text)

    @classmethod
    def from_documents(cls, documents: Iterable[FileSlice]) -> Self:
        """Build the vocabulary of a training text; one that needs no text ignores it."""
        return cls()

    def to_json(self) -> str:
        """Return the vocabulary as JSON for `load_vocabulary`: its kind, and its fields."""
        kind = self.saved_as or name_class(type(self))
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps({"kind": kind, **values}, default=asdict)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.decode_stream(ids))

    def count_unknown(self, ids: np.ndarray) -> int:
        """Return how many of some ids stand for text that the vocabulary does not know."""
        return 0 if self.unknown is None else int(np.count_nonzero(ids == self.unknown))

    def token_bytes(self) -> np.ndarray | None:
        """Return the bytes of text per token; None if they depend on neighboring tokens."""
        return None

    def list_marks(self, separator: int | None) -> list[int]:
        """Return the ids that stand for no text where another program has written them."""
        return []

    @property
    def dtype(self) -> np.dtype:
        return choose_dtype(self.n_token)

    @cached_property
    def fingerprint(self) -> str:
        """A short hash that only equal vocabularies share."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Bytes(Vocabulary):
    """The 256 bytes: every text can be encoded."""

    saved_as = "bytes"
    unit = "byte"
    n_token = 256

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        is_text = document.is_text
        chunks = (text.encode() for text in document.texts()) if is_text else document.chunks()
        return (np.frombuffer(chunk, dtype=np.uint8) for chunk in chunks)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        return np.frombuffer(encode_utf8(text, where), dtype=np.uint8)

    def split_settled(self, text: str) -> tuple[list[str], str]:
        return [text], ""

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        for index in ids:
            yield decoder.decode(bytes([index]))
        yield decoder.decode(b"", final=True)

    def token_bytes(self) -> np.ndarray:
        return np.ones(self.n_token, np.int64)


@dataclass(frozen=True)
class Characters(Vocabulary):
    """The characters of a text, in the order of their code points."""

    alphabet: str
    saved_as = "characters"
    unit = "character"

    def __post_init__(self) -> None:
        # Half of a surrogate pair is no text, and a ValueError here.
        if not self.alphabet.encode() or list(self.alphabet) != sorted(set(self.alphabet)):
            raise DataError("vocabulary: the alphabet is not sorted by code point")

    @staticmethod
    def from_documents(documents: Iterable[FileSlice]) -> Characters:
        alphabet: set[str] = set()
        for document in documents:
            for text in document.texts():
                alphabet.update(text)
        return Characters("".join(sorted(alphabet)))

    @property
    def n_token(self) -> int:
        return len(self.alphabet)

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        return (self.encode_text(text, str(document.path)) for text in document.texts())

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        alphabet = _code_points(self.alphabet)
        points = _code_points(text)
        ids = np.searchsorted(alphabet, points).clip(max=len(alphabet) - 1)
        unknown = np.flatnonzero(alphabet[ids] != points)
        if len(unknown):
            raise DataError(
                f"{where}: {text[unknown[0]]!r} is not among the vocabulary's {self.n_token} "
                "characters; use the vocabulary of a text that has it, or data.vocab bytes"
            )
        return ids.astype(self.dtype)

    def split_settled(self, text: str) -> tuple[list[str], str]:
        return [text], ""

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        return (self.alphabet[index] for index in ids)

    def token_bytes(self) -> np.ndarray:
        return np.array([len(character.encode()) for character in self.alphabet])


@dataclass(frozen=True)
class Ids(Vocabulary):
    """Ids whose text is unknown: as text they are numbers with spaces between them."""

    n_token: int
    saved_as = "ids"
    unit = "token"

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        fix = "give ids, or the tokenizer.json of these ids as data.vocab"
        raise DataError(f"{document.path}: the vocabulary has ids without text; {fix}")

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        expected = f"expected ids from 0 to {self.n_token - 1}, with spaces between them"
        for word in text.split():
            if not (word.isascii() and word.isdecimal() and int(word) < self.n_token):
                raise DataError(f"{where}: invalid {word[:40]}; {expected}")
        return np.array([int(word) for word in text.split()], self.dtype)

    def split_settled(self, text: str) -> tuple[list[str], str]:
        return split_after_words(text)

    def encode_spans(self, text: str, continues: bool, where: str = "text") -> Spans:
        from .spans import WORD, place_matches

        ids_L = self.encode_text(text, where)
        return place_matches(ids_L, ((1, match) for match in WORD.finditer(text)))

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        return (f"{index} " for index in ids)


def choose_dtype(n_token: int) -> np.dtype:
    """Return the smallest type of the ids of a vocabulary."""
    return np.min_scalar_type(max(n_token - 1, 0))


def join_documents(ids: np.ndarray, sizes: Sequence[int]) -> EncodedPiece:
    """Return ids, and where documents of these sizes begin among them; empty ones do not."""
    sizes = np.array([size for size in sizes if size])
    return ids, (np.cumsum(sizes) - sizes).tolist()


def decode_whole(document: FileSlice) -> str:
    """Return the text of a short document; DataError if it is not UTF-8."""
    with suppress(UnicodeDecodeError):
        return (document.text or b"".join(document.chunks())).decode()
    # Slower, but the error says where.
    return "".join(document.texts())


def _code_points(text: str) -> np.ndarray:
    return np.frombuffer(text.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)


def encode_utf8(text: str, where: str) -> bytes:
    """Return the bytes of a text; DataError for half of a surrogate pair, which
    a byte of Latin-1 on the command line becomes."""
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise invalid_text(where, error) from error


def split_between_words(texts: Iterable[str], longest: float = math.inf) -> Iterator[str]:
    """Yield the text in pieces that end with a word, or anywhere after `longest` characters."""
    rest = ""
    for text in filter(None, texts):
        gap = LAST_GAP.match(rest)
        anywhere = len(rest) if len(rest) >= longest else 0
        if cut := gap.end() if gap else anywhere:
            yield rest[:cut]
        rest = rest[cut:] + text
    if rest:
        yield rest


def split_after_words(text: str, waiting: str = "") -> tuple[list[str], str]:
    """Return a text in parts up to its last white space, and what is after it.

    A last character of `waiting` waits, too. A word of more than LONGEST_WAIT is cut.
    """
    from .spans import WORD, cut_runs

    *parts, last = cut_runs(WORD, text)
    end = max((match.end() for match in re.finditer(r"\s+", last)), default=0)
    if end and last[end - 1] in waiting:
        # Both characters of one line end.
        end -= 2 if last.endswith("\r\n", 0, end) else 1
    return [*parts, last[:end]], last[end:]
