"""Text into ids and back: bytes, characters, words and subwords; saved as JSON."""

import json
from pathlib import Path
from typing import Any

from ...errors import DataError
from .base import Vocabulary
from .characters import Bytes, Characters
from .subwords import Documents, SubwordOptions, Subwords, train_bpe, train_unigram
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
    "build_vocabulary",
    "load_vocabulary",
]

BUILT_IN = {
    "bytes": (),
    "characters": ("train", "val", "test"),
    "words": ("train",),
    "bpe": ("train",),
    "unigram": ("train",),
}
"""The vocabularies that are not files, and the splits of a text that each is built from."""


def load_vocabulary(text: str) -> Vocabulary:
    """Build the vocabulary that `to_json` wrote.

    Raises:
        DataError: the text is something else.
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
                return Subwords.from_tokenizer(tokenizer)
    except (json.JSONDecodeError, TypeError):
        pass
    raise DataError(f"vocabulary: {text[:40]!r} is not one saved by this package")


def build_vocabulary(
    name: str, documents: Documents, words: WordOptions, subwords: SubwordOptions
) -> Vocabulary:
    """Build the vocabulary of one of the names in `BUILT_IN`, or of a file.

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
            return Characters.from_documents(documents())
        case "words":
            return Words.from_documents(documents(), words)
        case "bpe":
            return train_bpe(documents, subwords)
        case "unigram":
            return train_unigram(documents, subwords)
    try:
        return _read_vocabulary(Path(name), words)
    except (OSError, UnicodeDecodeError, DataError) as error:
        raise DataError(
            f"data.vocab: invalid {name} ({_reason(error)}); expected {', '.join(BUILT_IN)}, or a "
            "file: a saved vocab.json, a Hugging Face tokenizer.json, or words, one a line"
        ) from error


def _read_vocabulary(path: Path, options: WordOptions) -> Vocabulary:
    text = path.read_text(encoding="utf-8")
    # A list of words may begin with a brace, so that only what is all JSON is taken for JSON.
    match _parse_json(text):
        case {"model": dict()} as tokenizer:
            return Subwords.from_tokenizer(tokenizer)
        case dict():
            return load_vocabulary(text)
    if path.suffix == ".json":
        return load_vocabulary(text)
    words = [line.split(maxsplit=1)[0] for line in text.split("\n") if line.strip()]
    if not words:
        raise DataError("it has no words")
    return Words.from_list(words, options)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror
    return "it is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else str(error)


def _parse_json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError:
        return None
