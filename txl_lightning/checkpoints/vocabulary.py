"""Other people's vocabularies, as lists of words in text or JSON."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.vocab import Bytes, SubwordOptions, Vocabulary, WordOptions, Words, build_vocabulary
from ..data.vocab.words import UNKNOWN
from ..errors import DataError

LINE_ENDS = {"<eos>": "eos", "<S>": "double_eos"}
"""How lines end, by the symbol that the original has for it."""

PICKLED = (".pkl", ".pickle", ".bin", ".pt")
INSTEAD = "with the code that wrote it, json.dump(tokenizer.idx2sym, open('words.json', 'w'))"


def read_vocabulary(name: str, n_token: int) -> Vocabulary:
    """The vocabulary of a network with `n_token` ids.

    Args:
        name: a file: words, one in a line, or as JSON in a list or with their ids; a saved
            vocab.json; a Hugging Face tokenizer.json. Or bytes.
        n_token: of the network.

    Raises:
        DataError: it is something else, or of another size.
    """
    if Path(name).suffix in PICKLED:
        raise DataError(f"vocab: {name}: refused: a pickle can execute anything; {INSTEAD}")
    try:
        return sized(Bytes() if name == "bytes" else in_file(Path(name), n_token), n_token)
    except OSError as error:
        raise DataError(f"vocab: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"vocab: {name}: it is not UTF-8 text") from error
    except DataError as error:
        raise DataError(f"vocab: {name}: {error}") from error


def in_file(path: Path, n_token: int) -> Vocabulary:
    """The vocabulary in a file."""
    text = path.read_text(encoding="utf-8")
    held = parsed(text)
    match held:
        case list():
            return of_words(held, n_token)
        case dict() if is_ids(held):
            return of_words(sorted(held, key=held.__getitem__), n_token)
        case dict():
            return build_vocabulary(str(path), lambda: [], WordOptions(), SubwordOptions())
    return of_words([line.split()[0] for line in text.split("\n") if line.strip()], n_token)


def parsed(text: str) -> Any:
    """What JSON says; None if it is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def is_ids(held: dict[str, Any]) -> bool:
    """Whether each word has an id, from 0 on."""
    values = list(held.values())
    return all(type(value) is int for value in values) and sorted(values) == [*range(len(values))]


def of_words(words: Sequence[Any], n_token: int, lower_case: bool = False) -> Vocabulary:
    """Words in the order of their ids; lines end and unseen words become as they have symbols for.

    Raises:
        DataError: they are no words, or not as many as the network has.
    """
    if not all(isinstance(word, str) and word.split() == [word] for word in words):
        raise DataError("it must be words without white space")
    line_end = next((end for symbol, end in LINE_ENDS.items() if symbol in words), "none")
    unknown = "unk" if any(symbol in words for symbol in UNKNOWN) else "error"
    options = WordOptions(lower_case=lower_case, line_end=line_end, unknown=unknown)
    return sized(Words.from_list(words, options), n_token)


def sized(vocab: Vocabulary, n_token: int) -> Vocabulary:
    """The same, if it has as many ids as the network."""
    if vocab.n_token != n_token:
        raise DataError(f"it has {vocab.n_token} tokens; the network has {n_token}")
    return vocab


def beside(folder: Path, n_token: int) -> Vocabulary | None:
    """The vocabulary that lies in a folder, if there is one that can be read."""
    for name in ("vocab.json", "vocab.txt"):
        if (folder / name).is_file():
            return read_vocabulary(str(folder / name), n_token)
    return None
