"""Words: what lies between white space, as in the original code."""

import io
import json
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import repeat
from typing import Literal

import numpy as np

from ...errors import DataError
from ..spans import Document
from .counts import counted, most_common
from .reading import between_words, decoded

UNKNOWN = ("<unk>", "<UNK>")
"""What an unseen word becomes: the first of them that the vocabulary has."""


@dataclass(frozen=True)
class LineEnd:
    """The symbols around lines."""

    start: str
    """Before a text."""
    between: str
    """For the end of a line that another one follows."""
    end: str
    """After a text."""

    def marked(self, pieces: Iterable[str]) -> Iterator[str]:
        """A text with its symbols; of its pieces only the last may end with a line's end."""
        before, held, after = self.start, "", ""
        for piece in pieces:
            if held:
                yield held
            held = before + piece.removesuffix("\n").replace("\n", self.between)
            before, after = "", self.end
        yield held + after

    def begun(self, text: str) -> str:
        """A text with its symbols, whose last line goes on."""
        return self.start + text.replace("\n", self.between)

    def unmarked(self, words: Iterable[str]) -> Iterator[str]:
        """The text that each word or symbol adds; it may begin and end inside a line."""
        symbols = self.between.split()
        # Of an odd number of <S>, the first of a text ends no line; elsewhere one does.
        run, spare, gap = 0, 0, ""
        for word in words:
            if word in symbols:
                run, gap = run + 1, ""
                yield "\n" if (run + spare) % len(symbols) == 0 else ""
            else:
                yield gap + word
                run, spare, gap = 0, len(symbols) - 1, " "


LINE_ENDS = {
    "eos": LineEnd("", " <eos> ", " <eos>"),
    "double_eos": LineEnd("<S> ", " <S> <S> ", " <S>"),
    "none": LineEnd("", " ", ""),
}


@dataclass(frozen=True)
class WordOptions:
    """How a text becomes words, and which of them are kept.

    Raises:
        ValueError: what no vocabulary can have; the message starts with the field's name.
    """

    min_freq: int = 0
    """Words that are rarer than this in the training text are left out."""
    max_size: int | None = None
    """How many words are kept, the most frequent; symbols come on top. Left out, all are."""
    lower_case: bool = False
    """Whether capitals are read as small letters."""
    line_end: Literal["eos", "double_eos", "none"] = "eos"
    """What marks lines: <eos> after each, <S> before and after each, or nothing."""
    special: tuple[str, ...] = ()
    """Further symbols; they get the first ids after the line end's."""
    unknown: Literal["unk", "error"] = "unk"
    """An unseen word becomes <unk> (or the vocabulary's <UNK>; with neither, <unk> gets the last
    id), or it is refused."""

    def __post_init__(self) -> None:
        _require(self.min_freq >= 0, "min_freq", self.min_freq, "0 or more")
        enough = self.max_size is None or self.max_size >= 1
        _require(enough, "max_size", self.max_size, "at least 1, or null")
        for symbol in self.special:
            _require(symbol.split() == [symbol], "special", repr(symbol), "without white space")


@dataclass(frozen=True)
class Words:
    """Words and symbols; their order gives the ids."""

    words: tuple[str, ...] = field(repr=False)
    options: WordOptions
    unit = "word"

    @staticmethod
    def of(documents: Iterable[Document], options: WordOptions) -> "Words":
        """The symbols, then the words of a text by falling count."""
        symbols = _symbols(options)
        pieces = (text.split() for document in documents for text in _pieces(document, options))
        counts = (
            (word, first, count)
            for word, first, count in counted(pieces)
            if count >= options.min_freq and word not in symbols
        )
        return Words.listed([*symbols, *most_common(counts, options.max_size)], options)

    @staticmethod
    def listed(words: Iterable[str], options: WordOptions) -> "Words":
        """These words in this order, then the symbols that they lack."""
        known = dict.fromkeys([*words, *_symbols(options)])
        if options.unknown == "unk" and known.keys().isdisjoint(UNKNOWN):
            known[UNKNOWN[0]] = None
        return Words(tuple(known), options)

    @property
    def n_start(self) -> int:
        return len(self._line_end.start.split())

    @property
    def n_token(self) -> int:
        return len(self.words)

    def encode(self, document: Document) -> Iterator[np.ndarray]:
        def where(word: str) -> str:
            return f"{document.path}: byte {_offset(document, word, self.options)}"

        for text in self._line_end.marked(_pieces(document, self.options)):
            yield self._ids(text, where)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        text = "".join(_one_line_end([text]))
        cased = text.lower() if self.options.lower_case else text
        return self._ids(self._line_end.begun(cased), lambda _: where)

    def decode(self, ids: Iterable[int]) -> str:
        return "".join(self.pieces(ids))

    def pieces(self, ids: Iterable[int]) -> Iterator[str]:
        return self._line_end.unmarked(self.words[index] for index in ids)

    def to_json(self) -> str:
        return json.dumps({"kind": "words", "words": self.words, "options": asdict(self.options)})

    @property
    def _line_end(self) -> LineEnd:
        return LINE_ENDS[self.options.line_end]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    @cached_property
    def _dtype(self) -> np.dtype:
        return np.min_scalar_type(self.n_token - 1)

    @cached_property
    def unknown(self) -> int | None:
        if self.options.unknown == "error":
            return None
        return next(self._index[symbol] for symbol in UNKNOWN if symbol in self._index)

    def _ids(self, text: str, where: Callable[[str], str]) -> np.ndarray:
        """The ids of words and symbols; `where` says for an error where a word is."""
        words = text.split()
        if self.options.unknown == "unk":
            ids = map(self._index.get, words, repeat(self.unknown))
        else:
            ids = map(self._index.__getitem__, words)
        try:
            return np.fromiter(ids, self._dtype, len(words))
        except KeyError as error:
            [word] = error.args
            raise DataError(
                f"{where(word)}: {word!r} is not among the vocabulary's {self.n_token} words; "
                "use the vocabulary of a text that has it, or data.words.unknown unk"
            ) from error


def _symbols(options: WordOptions) -> list[str]:
    return list(dict.fromkeys([*LINE_ENDS[options.line_end].between.split(), *options.special]))


def _pieces(document: Document, options: WordOptions) -> Iterator[str]:
    """The text of a document, cut between words; a word's case depends on the whole of it."""
    pieces = between_words(_one_line_end(decoded(document)))
    return (piece.lower() for piece in pieces) if options.lower_case else pieces


def _one_line_end(texts: Iterable[str]) -> Iterator[str]:
    r"""The same text with \n for every line's end, as where Python reads a text file."""
    decoder = io.IncrementalNewlineDecoder(None, translate=True)
    yield from map(decoder.decode, texts)
    yield decoder.decode("", final=True)


def _offset(document: Document, word: str, options: WordOptions) -> int:
    """The byte of the file where a word first occurs."""
    start = document.start
    for piece in between_words(decoded(document)):
        for found in re.finditer(r"\S+", piece):
            if word == (found[0].lower() if options.lower_case else found[0]):
                return start + len(piece[: found.start()].encode())
        start += len(piece.encode())
    raise AssertionError(f"{word!r} does not occur")


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{field}: invalid {value}; expected {allowed}")
