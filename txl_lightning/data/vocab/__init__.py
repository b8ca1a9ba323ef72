"""Text into ids and back: bytes, characters, words and subwords; saved as JSON."""

import json
from collections.abc import Sequence
from pathlib import Path

from ...errors import DataError
from ..documents import FileSlice
from .base import Vocabulary
from .characters import Bytes, Characters
from .subwords import SubwordOptions, Subwords, train_bpe, train_unigram
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
    name: str, documents: Sequence[FileSlice], words: WordOptions, subwords: SubwordOptions
) -> Vocabulary:
    """Build the vocabulary of one of the names in `BUILT_IN`, or of a file.

    Args:
        name: a name, or a saved vocab.json, a Hugging Face tokenizer.json, or a list of words.
        documents: the text to build from; it is read once or twice.
        words: how words are told apart and chosen.
        subwords: how subwords are trained.

    Raises:
        DataError: there is no such vocabulary, or the text cannot be read.
    """
    match name:
        case "bytes":
            return Bytes()
        case "characters":
            return Characters.from_documents(documents)
        case "words":
            return Words.from_documents(documents, words)
        case "bpe":
            return train_bpe(documents, subwords)
        case "unigram":
            return train_unigram(documents, subwords)
    try:
        return _read_vocabulary(Path(name), words)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(
            f"data.vocab: invalid {name} ({reason}); expected {', '.join(BUILT_IN)}, or a file: "
            "a saved vocab.json, a Hugging Face tokenizer.json, or words, one a line"
        ) from error


def _read_vocabulary(path: Path, options: WordOptions) -> Vocabulary:
    text = path.read_text(encoding="utf-8")
    try:
        content = json.loads(text)
    except json.JSONDecodeError:
        content = None
    # A list of words may begin with a brace, so that only what is all JSON is taken for JSON.
    match content:
        case {"model": dict()}:
            return Subwords.from_tokenizer(content)
        case dict():
            return load_vocabulary(text)
    if path.suffix == ".json":
        return load_vocabulary(text)
    words = [line.split(maxsplit=1)[0] for line in text.split("\n") if line.strip()]
    if not words:
        raise DataError("it has no words")
    return Words.from_list(words, options)
