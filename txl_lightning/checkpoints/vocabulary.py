"""Load vocabularies of trained networks: ids follow the order of words; no word is added."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..data.vocab import Bytes, Vocabulary, WordOptions, Words, read_vocabulary_file
from ..data.vocab.words import UNKNOWN
from ..errors import DataError
from ..runs.folder import VOCAB

# Line end option for each symbol of the original.
LINE_ENDS = {"<eos>": "eos", "<S>": "double_eos"}
PICKLED = (".pkl", ".pickle", ".bin", ".pt")
SAFE_EXPORT = "with the code that wrote it, json.dump(tokenizer.idx2sym, open('words.json', 'w'))"


def read_vocabulary(name: str, n_token: int) -> Vocabulary:
    """Read the vocabulary of a network with `n_token` ids: "bytes", or a file; else DataError."""
    if Path(name).suffix in PICKLED:
        raise DataError(f"vocab: {name}: refused: a pickle can execute code; {SAFE_EXPORT}")
    try:
        vocab = Bytes() if name == "bytes" else read_vocabulary_file(Path(name), make_words)
        return require_size(vocab, n_token)
    except UnicodeDecodeError as error:
        raise DataError(f"vocab: {name}: it is not UTF-8 text") from error
    except (OSError, ValueError, RecursionError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise DataError(f"vocab: {name}: {reason}") from error


def load_vocabulary_in(folder: Path, n_token: int) -> Vocabulary | None:
    paths = [path for path in (folder / VOCAB, folder / "vocab.txt") if path.is_file()]
    return read_vocabulary(str(paths[0]), n_token) if paths else None


def make_words(words: Sequence[Any], lower_case: bool = False) -> Words:
    """Make a vocabulary; its symbols determine line ends and the unknown word."""
    line_end = next((end for symbol, end in LINE_ENDS.items() if symbol in words), "none")
    unknown = "unk" if any(symbol in words for symbol in UNKNOWN) else "error"
    options = WordOptions(lower_case=lower_case, line_end=line_end, unknown=unknown)
    return Words.from_list(words, options)


def require_size(vocab: Vocabulary, n_token: int) -> Vocabulary:
    if vocab.n_token != n_token:
        raise DataError(f"it has {vocab.n_token} tokens; the network has {n_token}")
    return vocab
