"""Build a vocabulary by the name of its kind, or load it from a file."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import ClassError, DataError, require_path
from ...files import expand_home, refuse_pointer
from ...imports import import_class, is_class_path, is_local, names_class
from .base import Bytes, Characters, Ids, Vocabulary
from .subwords import SubwordOptions, Subwords, train_subwords
from .words import WordOptions, Words, refuse_parts_of_words

if TYPE_CHECKING:
    from ..text_files import FileSlice

# The built-in vocabularies, and the splits of a text that each is built from.
BUILT_IN = dict.fromkeys(("bytes", "characters", "words", "bpe", "unigram"), ("train",))
BUILT_IN |= {"bytes": (), "characters": ("train", "val", "test")}


def find_own_class(name: str) -> type | None:
    """Return the class of another package that is, or has saved, a vocabulary; None for ours."""
    kind = name
    if not names_class(name):
        try:
            kind = json.loads(Path(expand_home(name)).read_text(encoding="utf-8"))["kind"]
        # Another file, or none; building the vocabulary names what is wrong.
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None
    return import_class("data.vocab", kind) if is_class_path(kind) else None


def load_vocabulary(text: str) -> Vocabulary:
    """Build a vocabulary from the text of `to_json`, such as that of a run's vocab.json.

    >>> load_vocabulary('{"kind": "characters", "alphabet": "abc"}').encode_text("cab")
    array([2, 0, 1], dtype=uint8)

    Raises:
        DataError: the text is no vocabulary that this package has saved.
        ClassError: it names a class of another package, which may not be imported.
    """
    try:
        match json.loads(text):
            case {"kind": "bytes"}:
                return Bytes()
            case {"kind": "characters", "alphabet": str(alphabet)}:
                return Characters(alphabet)
            case {"kind": "ids", "n_token": int(n_token)} if n_token > 0:
                return Ids(n_token)
            case {"kind": "words", "words": [*words], "options": {"special": [*special], **rest}}:
                options = WordOptions(special=tuple(special), **rest)
                vocab = Words.from_list(words, options)
                # A saved vocabulary has all symbols and no duplicates.
                if vocab.words == tuple(words):
                    return vocab
            case {"kind": "subwords", "tokenizer": dict(tokenizer)}:
                return Subwords.from_tokenizer(tokenizer)
            case {"kind": str(kind), **fields} if is_class_path(kind) or is_local(kind):
                return import_class("data.vocab", kind)(**fields)
    except (ClassError, DataError):
        raise
    except (ValueError, TypeError, AttributeError, RecursionError):
        pass
    raise DataError(f"vocabulary: {text[:40]!r} is not one saved by this package")


def require_vocabulary(name: str) -> None:
    """Refuse a name of no kind, class or file, before a text is read for it."""
    require_path("data.vocab", name)
    if name not in BUILT_IN and not names_class(name) and not Path(expand_home(name)).is_file():
        raise refuse_vocabulary(name, os.strerror(errno.ENOENT))


def refuse_vocabulary(name: str, reason: object) -> DataError:
    return DataError(
        f"data.vocab: invalid {name} ({reason}); expected {', '.join(BUILT_IN)}, or a file: "
        "a saved vocab.json, a Hugging Face tokenizer.json, or words, one a line; or your class"
    )


def build_vocabulary(
    name: str, documents: Sequence[FileSlice], words: WordOptions, subwords: SubwordOptions
) -> Vocabulary:
    """Build a vocabulary of `BUILT_IN` from documents, or load a file; otherwise DataError."""
    match name:
        case "bytes":
            return Bytes()
        case "characters":
            return Characters.from_documents(documents)
        case "words":
            return Words.from_documents(documents, words)
        case "bpe" | "unigram":
            return train_subwords(name, documents, subwords)
        case _ if names_class(name):
            return import_class("data.vocab", name).from_documents(documents)
    try:
        path = Path(expand_home(name))
        return read_vocabulary_file(path, lambda listed: Words.from_list(listed, words))
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise refuse_vocabulary(name, reason) from error


def read_vocabulary_file(path: Path, from_words: Callable[[list[Any]], Vocabulary]) -> Vocabulary:
    """Load a saved vocab.json, a Hugging Face tokenizer.json, or words for `from_words`.

    Words are in the order of their ids: one per line, or JSON, as a list or with their ids.
    OSError if the file cannot be read, ValueError if it is none of these.
    """
    refuse_pointer(path)
    # Without a byte order mark.
    text = path.read_text(encoding="utf-8").removeprefix("\ufeff")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    # A word list may begin with a brace, so only a complete JSON text counts as JSON.
    match content:
        case {"model": dict()}:
            return Subwords.from_tokenizer(content)
        case list():
            words = content
        case dict() if content and all(type(index) is int for index in content.values()):
            words = sorted(content, key=content.__getitem__)
            if [content[word] for word in words] != list(range(len(words))):
                raise DataError("its ids do not go from 0 to the number of words")
        case _ if isinstance(content, dict) or path.suffix == ".json":
            return load_vocabulary(text)
        case _:
            words = [line.split(maxsplit=1)[0] for line in text.split("\n") if line.strip()]
    if not words:
        raise DataError("it has no words")
    refuse_parts_of_words(words)
    return from_words(words)
