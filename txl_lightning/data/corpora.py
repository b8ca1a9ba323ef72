"""The table of corpora: where a text comes from, and how it is cut into train, val and test."""

import sysconfig
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import sources
from .documents import SPLITS, DocumentUnit, FileSlice, whole_file
from .user_files import split_by_fractions
from .vocab import WordOptions

NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}

Splits = dict[str, list[FileSlice]]
Find = Callable[[Path, Sequence[float]], Splits]


@dataclass(frozen=True)
class Corpus:
    """A text known by name."""

    find: Find
    """Its spans, given the folder where data lives; fractions matter where nobody has cut it."""
    vocab: str
    """The vocabulary its published results are measured with."""
    words: WordOptions = WordOptions()
    document_unit: DocumentUnit | None = None
    """What its published results take for a text of its own."""


def python_source(root: Path, fractions: Sequence[float]) -> Splits:
    """The running Python's standard library: pure-ASCII .py files without tests, by path."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    names = (name for name in sorted(found) if not NOT_SOURCE & set(name.split("/")[:-1]))
    spans = [span for name in names if _is_ascii(found[name]) for span in whole_file(found[name])]
    return split_by_fractions(spans, fractions)


def tiny_shakespeare(root: Path, fractions: Sequence[float]) -> Splits:
    """Karpathy's 1.1 MB of Shakespeare."""
    return split_by_fractions(whole_file(sources.place(sources.TINY_SHAKESPEARE, root)), fractions)


def mahoney(source: sources.Source) -> Find:
    """A hundred million bytes of Wikipedia: 90, 5 and 5 million."""

    def find(root: Path, fractions: Sequence[float]) -> Splits:
        path = sources.place(source, root)
        cuts = [0, 90_000_000, 95_000_000, 100_000_000]
        parts = zip(SPLITS, cuts, cuts[1:], strict=False)
        return {name: [FileSlice(path, start, stop)] for name, start, stop in parts}

    return find


def three(files: Sequence[sources.Source]) -> Find:
    """A file for each of train, val and test."""

    def find(root: Path, fractions: Sequence[float]) -> Splits:
        pairs = zip(SPLITS, files, strict=True)
        return {name: whole_file(sources.place(source, root)) for name, source in pairs}

    return find


def ptb_char(root: Path, fractions: Sequence[float]) -> Splits:
    """Penn Treebank's words spelt out: its lines without the spaces at their ends."""
    splits = {}
    for name, source in zip(SPLITS, sources.PTB, strict=True):
        path = root / "ptb_char" / f"{name}.txt"
        sources.strip_lines(source, root, path)
        splits[name] = whole_file(path)
    return splits


def lm1b(root: Path, fractions: Sequence[float]) -> Splits:
    """One Billion Word: 99 shuffled files; the first held-out part is test, the second val."""
    train, heldout = sources.place_lm1b(root)
    return {
        "train": [span for path in train for span in whole_file(path)],
        "val": whole_file(heldout[1]),
        "test": whole_file(heldout[0]),
    }


CORPORA = {
    "python_source": Corpus(python_source, vocab="bytes"),
    "tiny_shakespeare": Corpus(tiny_shakespeare, vocab="characters"),
    "enwik8": Corpus(mahoney(sources.ENWIK8), vocab="bytes"),
    "text8": Corpus(mahoney(sources.TEXT8), vocab="characters"),
    "wikitext2": Corpus(three(sources.WIKITEXT2), vocab="words"),
    "wikitext103": Corpus(three(sources.WIKITEXT103), vocab="words"),
    "ptb": Corpus(three(sources.PTB), vocab="words", words=WordOptions(lower_case=True)),
    "ptb_char": Corpus(ptb_char, vocab="characters"),
    "lm1b": Corpus(
        lm1b,
        vocab="words",
        words=WordOptions(min_freq=3, line_end="double_eos"),
        document_unit="lines",
    ),
}


def _is_ascii(path: Path) -> bool:
    return path.read_bytes().isascii()
