"""Where text lies: spans of files, and the documents they are made of."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")

DocumentUnit = Literal["files", "lines"]
"""What is one document of a text: each of its files, or each line of them."""


class Document(Protocol):
    """A piece of text that is encoded on its own."""

    @property
    def path(self) -> Path:
        """The file it lies in."""

    @property
    def start(self) -> int:
        """Its first byte in the file."""

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, a piece at a time; a character may straddle two pieces."""


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


def whole(path: Path) -> list[Span]:
    """All of a file; nothing of an empty one."""
    size = path.stat().st_size
    return [Span(path, 0, size)] if size else []


@dataclass(frozen=True)
class Line:
    """One line of a file, with its end."""

    path: Path
    start: int
    text: bytes

    def chunks(self) -> Iterator[bytes]:
        """The line, in one piece."""
        yield self.text


def documents(spans: Iterable[Span], unit: DocumentUnit) -> Iterator[Document]:
    """The documents of a text, in order."""
    for span in spans:
        if unit == "files":
            yield span
        else:
            yield from _lines(span)


def _lines(span: Span) -> Iterator[Document]:
    """Each line; one that is longer than a chunk or two is not held in memory."""
    start, at, held = span.start, span.start, b""
    for chunk in span.chunks():
        at += len(chunk)
        first, *rest = chunk.split(b"\n")
        if not rest and len(held) <= CHUNK:
            held += first
        if not rest:
            continue
        stop = at - len(chunk) + len(first) + 1
        yield _line(span.path, start, stop, held + first + b"\n")
        start = stop
        *ended, held = rest
        for text in ended:
            yield Line(span.path, start, text + b"\n")
            start += len(text) + 1
    if start < at:
        yield _line(span.path, start, at, held)


def _line(path: Path, start: int, stop: int, text: bytes) -> Document:
    """A line, whose text is whole unless it was too long to be held."""
    whole_text = len(text) == stop - start
    return Line(path, start, text) if whole_text else Span(path, start, stop)
