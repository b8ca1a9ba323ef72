"""The table of corpora: where a text comes from, and how it is cut into train, val and test."""

import sysconfig
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from .download import fetch
from .errors import DataError

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")
NOT_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}


@dataclass(frozen=True)
class Span:
    """The bytes of a file from `start` up to `stop`."""

    path: Path
    start: int
    stop: int

    def chunks(self) -> Iterator[bytes]:
        """The bytes, a piece at a time."""
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk


@dataclass(frozen=True)
class Corpus:
    """A text known by name."""

    files: Callable[[Path], list[Path]]
    """Its files in reading order, given the folder where data lives."""
    vocab: str
    """The vocabulary its published results are measured with."""


def python_source(_root: Path) -> list[Path]:
    """The running Python's standard library: pure-ASCII .py files without tests, by path."""
    library = Path(sysconfig.get_path("stdlib"))
    found = {path.relative_to(library).as_posix(): path for path in library.rglob("*.py")}
    names = (name for name in sorted(found) if not NOT_SOURCE & set(name.split("/")[:-1]))
    return [found[name] for name in names if _is_ascii_text(found[name])]


def tiny_shakespeare(root: Path) -> list[Path]:
    """Karpathy's 1.1 MB of Shakespeare, downloaded once or already in place."""
    url = (
        "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt"
    )
    sha256 = "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"
    return [fetch(url, sha256, root / "tiny_shakespeare" / "input.txt")]


CORPORA = {
    "python_source": Corpus(python_source, vocab="bytes"),
    "tiny_shakespeare": Corpus(tiny_shakespeare, vocab="characters"),
}


def own_text(path: Path) -> list[Path]:
    """A user's file, once it is sure that something can be read from it."""
    if not path.is_file():
        raise DataError(f"{path}: no such file; data.path must name a text file")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; data.path must name a file with text")
    return [path]


def split(files: Sequence[Path], fractions: Sequence[float]) -> dict[str, list[Span]]:
    """Cut a text in order: many files between files, one file between characters.

    A file of a longer list goes where its first byte falls.
    """
    sizes = [path.stat().st_size for path in files]
    first, second = fractions[0] * sum(sizes), (fractions[0] + fractions[1]) * sum(sizes)
    if len(files) == 1:
        cuts = [0, *(_character_start(files[0], int(cut)) for cut in (first, second)), sizes[0]]
        return {
            name: [Span(files[0], start, stop)]
            for name, start, stop in zip(SPLITS, cuts, cuts[1:], strict=False)
        }
    spans: dict[str, list[Span]] = {name: [] for name in SPLITS}
    start = 0
    for path, size in zip(files, sizes, strict=True):
        name = SPLITS[(start >= first) + (start >= second)]
        spans[name].append(Span(path, 0, size))
        start += size
    return spans


def _character_start(path: Path, offset: int) -> int:
    """The first offset from here on that is not inside a UTF-8 character."""
    with path.open("rb") as file:
        file.seek(offset)
        ahead = file.read(3)
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))


def _is_ascii_text(path: Path) -> bool:
    text = path.read_bytes()
    return bool(text) and text.isascii()
