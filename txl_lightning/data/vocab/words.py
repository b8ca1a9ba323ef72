"""Words separated by white space, as in the original code."""

from __future__ import annotations

import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice, repeat
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from ...errors import DataError, Settings, require
from .base import (
    EncodedPiece,
    Vocabulary,
    decode_whole,
    join_documents,
    split_after_words,
    split_between_words,
)

if TYPE_CHECKING:
    from ..text_files import FileSlice
    from .spans import Spans

UNKNOWN = ("<unk>", "<UNK>")  # an unseen word becomes the first of these in the vocabulary

# A token in a tokenizer's list: of GPT-2, SentencePiece, BERT, CLIP, subword-nmt, and merges.
PART = re.compile(r"[ĠĊ▁].|##.|#version:|.+(</w>|@@)$")
MOST_PARTS = 0.01  # share of words that look like parts by chance
BASE64 = re.compile(r"(?=(....)+$)[A-Za-z0-9+/]+=*$")  # of tiktoken


@dataclass(frozen=True)
class LineEnd:
    """The symbols before a text, between two lines, and after the text."""

    start: str
    between: str
    end: str

    def add_symbols(self, pieces: Iterable[str]) -> Iterator[str]:
        """Yield a text with its symbols; only the last piece may end with a line end."""
        before = self.start
        previous = ""
        after = ""
        for piece in pieces:
            if previous:
                yield previous
            previous = before + piece.removesuffix("\n").replace("\n", self.between)
            before = ""
            after = self.end
        yield previous + after

    def remove_symbols(self, words: Iterable[str]) -> Iterator[str]:
        """Yield the text of each word or symbol; the first and last line may be partial."""
        symbols = self.between.split()
        # A single <S> ends a line after a word, but not at the beginning of a text.
        run = 0
        spare = 0
        gap = ""
        for word in words:
            if word in symbols:
                run = run + 1
                gap = ""
                yield "\n" if (run + spare) % len(symbols) == 0 else ""
            else:
                yield gap + word
                run = 0
                spare = len(symbols) - 1
                gap = " "


LINE_ENDS = {
    "eos": LineEnd("", " <eos> ", " <eos>"),
    "double_eos": LineEnd("<S> ", " <S> <S> ", " <S>"),
    "none": LineEnd("", " ", ""),
}
# Options that neither the user nor the corpus gives.
DEFAULTS: dict[str, Any] = {"min_freq": 0, "lower_case": False, "line_end": "eos", "special": ()}
DEFAULTS |= {"unknown": "unk"}


@dataclass(frozen=True)
class WordOptions(Settings):
    """Rules for splitting a text into words and choosing the vocabulary.

    None means the option of the corpus, or else the one in DEFAULTS.
    """

    minima: ClassVar = {"min_freq": 0, "max_size": 1}

    min_freq: int | None = None
    """Leave out words with a lower count in the training text; default 0."""
    max_size: int | None = None
    """Keep this many of the most frequent words, plus symbols; default all."""
    lower_case: bool | None = None
    """Convert text to lower case; default false."""
    line_end: Literal["eos", "double_eos", "none"] | None = None
    """Line symbols: <eos> after each line (default), <S> before and after each, or none."""
    special: tuple[str, ...] | None = None
    """Additional symbols; they get the first ids after the line end's."""
    unknown: Literal["unk", "error"] | None = None
    """Unseen words become <unk> (or the vocabulary's <UNK>; with neither, <unk> gets the last
    id; default), or are an error."""

    def __post_init__(self) -> None:
        super().__post_init__()
        for symbol in self.special or ():
            require(symbol.split() == [symbol], "special", repr(symbol), "no white space")

    @property
    def given(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if value is not None}

    def fill(self, corpus: WordOptions | None = None) -> WordOptions:
        """Return the options; a corpus or DEFAULTS gives what is None."""
        return WordOptions(**DEFAULTS | (corpus.given if corpus else {}) | self.given)

    @property
    def symbols(self) -> list[str]:
        return list(dict.fromkeys([*LINE_ENDS[self.line_end].between.split(), *self.special]))


@dataclass(frozen=True)
class Words(Vocabulary):
    """Words and symbols; their order gives the ids."""

    words: tuple[str, ...] = field(repr=False)
    options: WordOptions
    saved_as = "words"
    unit = "word"

    def __post_init__(self) -> None:
        object.__setattr__(self, "options", self.options.fill())

    @staticmethod
    def from_documents(documents: Iterable[FileSlice], options: WordOptions) -> Words:
        """Collect the symbols, then words by decreasing count, ties by first occurrence."""
        options = options.fill()
        counts = Counter[str]()
        for document in documents:
            for text in _split_pieces(document, options):
                counts.update(text.split())
        for symbol in options.symbols:
            counts.pop(symbol, None)
        frequent = (word for word, count in counts.most_common() if count >= options.min_freq)
        return Words.from_list([*options.symbols, *islice(frequent, options.max_size)], options)

    @staticmethod
    def from_list(words: Iterable[str], options: WordOptions) -> Words:
        """Use these words in this order, then missing symbols."""
        words = list(words)
        options = options.fill()
        if not all(isinstance(w, str) and w.encode() and w.split() == [w] for w in words):
            raise DataError("expected words without white space")
        known = dict.fromkeys([*words, *options.symbols])
        if options.unknown == "unk" and known.keys().isdisjoint(UNKNOWN):
            known[UNKNOWN[0]] = None
        return Words(tuple(known), options)

    @property
    def n_start(self) -> int:
        return len(self._line_end.start.split())

    @property
    def n_token(self) -> int:
        return len(self.words)

    @cached_property
    def unknown(self) -> int | None:
        if self.options.unknown == "error":
            return None
        return next(self._index[symbol] for symbol in UNKNOWN if symbol in self._index)

    def encode(self, document: FileSlice) -> Iterator[np.ndarray]:
        for text in self._line_end.add_symbols(_split_pieces(document, self.options)):
            yield self._find_ids(text, str(document.path))

    def encode_batch(self, documents: Sequence[FileSlice]) -> EncodedPiece:
        texts = (self._normalize(decode_whole(each)) for each in documents)
        lines = ["".join(self._line_end.add_symbols([text])).split() for text in texts]
        ids = map(self._index.get, chain.from_iterable(lines), repeat(self.unknown))
        try:
            return join_documents(np.fromiter(ids, self.dtype), [len(line) for line in lines])
        except TypeError:
            # One by one, so that the error names the document.
            return super().encode_batch(documents)

    def encode_text(self, text: str, where: str = "text") -> np.ndarray:
        # Without the final symbols: the last line may continue.
        lines = self._normalize(text).replace("\n", self._line_end.between)
        return self._find_ids(self._line_end.start + lines, where)

    def split_settled(self, text: str) -> tuple[list[str], str]:
        # Two symbols stand between lines, of which the end of a text has one.
        has_two = len(self._line_end.between.split()) > 1
        return split_after_words(text, "\r\n" if has_two else "\r")

    def encode_spans(self, text: str, continues: bool, where: str = "text") -> Spans:
        from .spans import WORD_OR_LINE_END, place_matches

        ids_L = self.encode_text(text, where)[self.n_start if continues else 0 :]
        n_symbol = len(self._line_end.between.split())
        matches = WORD_OR_LINE_END.finditer(text)
        counts = ((n_symbol if match[0].isspace() else 1, match) for match in matches)
        return place_matches(ids_L, counts)

    def decode_stream(self, ids: Iterable[int]) -> Iterator[str]:
        return self._line_end.remove_symbols(self.words[index] for index in ids)

    @property
    def _line_end(self) -> LineEnd:
        return LINE_ENDS[self.options.line_end]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {word: index for index, word in enumerate(self.words)}

    def _normalize(self, text: str) -> str:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
        return text.lower() if self.options.lower_case else text

    def _find_ids(self, text: str, where: str) -> np.ndarray:
        words = text.split()
        ids = map(self._index.get, words, repeat(self.unknown))
        try:
            return np.fromiter(ids, self.dtype, len(words))
        except TypeError as error:  # None is not an id
            unseen = next(word for word in words if word not in self._index)
            raise DataError(
                f"{where}: {unseen!r} is not among the vocabulary's {self.n_token} words; "
                "use the vocabulary of a text that has it, or data.words.unknown unk"
            ) from error


def _split_pieces(document: FileSlice, options: WordOptions) -> Iterator[str]:
    # It has \n for every line end, as Python reads text files.
    decoder = io.IncrementalNewlineDecoder(None, translate=True)
    texts = chain(document.texts(), [""])
    # Split between words: lower-casing may depend on the whole word.
    pieces = split_between_words(decoder.decode(text, final=not text) for text in texts)
    return (piece.lower() for piece in pieces) if options.lower_case else pieces


def refuse_parts_of_words(words: Sequence[Any]) -> None:
    """Raise a DataError for the tokens of a tokenizer, which a text does not have as words."""
    names = [word for word in words if isinstance(word, str)]
    n_part = sum(PART.match(name) is not None for name in names)
    is_tiktoken = any(name.endswith("=") for name in names) and all(map(BASE64.match, names))
    if n_part > MOST_PARTS * len(words) or is_tiktoken:
        raise DataError("it has parts of words, without their tokenizer; give its tokenizer.json")
