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
    """Read the vocabulary of a network with `n_token` ids.

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
        vocab = Bytes() if name == "bytes" else read_vocabulary_file(Path(name), n_token)
        return require_size(vocab, n_token)
    except OSError as error:
        raise DataError(f"vocab: {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise DataError(f"vocab: {name}: it is not UTF-8 text") from error
    except DataError as error:
        raise DataError(f"vocab: {name}: {error}") from error


def load_vocabulary_in(folder: Path, n_token: int) -> Vocabulary | None:
    """Load the vocabulary that lies in a folder, if there is one that can be read."""
    for name in ("vocab.json", "vocab.txt"):
        if (folder / name).is_file():
            return read_vocabulary(str(folder / name), n_token)
    return None


def read_vocabulary_file(path: Path, n_token: int) -> Vocabulary:
    """Read a file whose content tells its format."""
    text = path.read_text(encoding="utf-8")
    try:
        content: Any = json.loads(text)
    except (ValueError, RecursionError):
        content = None
    match content:
        case list():
            return vocabulary_from_words(content, n_token)
        case dict() if all(type(index) is int for index in content.values()):
            words = sorted(content, key=content.__getitem__)
            if [content[word] for word in words] != list(range(len(words))):
                raise DataError("ids must go from 0 to the number of words")
            return vocabulary_from_words(words, n_token)
        case dict():
            return build_vocabulary(str(path), [], WordOptions(), SubwordOptions())
    words = [line.split()[0] for line in text.split("\n") if line.strip()]
    return vocabulary_from_words(words, n_token)


def vocabulary_from_words(
    words: Sequence[Any], n_token: int, lower_case: bool = False
) -> Vocabulary:
    """Make a vocabulary of words in the order of their ids.

    Lines end and unseen words become as the words have symbols for.

    Raises:
        DataError: they are no words, or not as many as the network has.
    """
    if not all(isinstance(word, str) and word.split() == [word] for word in words):
        raise DataError("it must be words without white space")
    line_end = next((end for symbol, end in LINE_ENDS.items() if symbol in words), "none")
    unknown = "unk" if any(symbol in words for symbol in UNKNOWN) else "error"
    options = WordOptions(lower_case=lower_case, line_end=line_end, unknown=unknown)
    return require_size(Words.from_list(words, options), n_token)


def require_size(vocab: Vocabulary, n_token: int) -> Vocabulary:
    """Return the vocabulary, if it has as many ids as the network."""
    if vocab.n_token != n_token:
        raise DataError(f"it has {vocab.n_token} tokens; the network has {n_token}")
    return vocab
