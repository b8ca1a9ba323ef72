"""How far the encoding of a text has come, where stderr is a terminal."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .spans import Document

Watch = Callable[[Iterable[Document]], Iterator[Document]]
"""Passes documents on and counts the bytes that are read of them."""


@dataclass(frozen=True)
class Watched:
    """A document whose bytes are counted as they are read."""

    document: Document
    count: Callable[[int], None]

    @property
    def path(self) -> Path:
        """The file it lies in."""
        return self.document.path

    @property
    def start(self) -> int:
        """Its first byte in the file."""
        return self.document.start

    def chunks(self) -> Iterator[bytes]:
        """Its bytes, a piece at a time."""
        for chunk in self.document.chunks():
            yield chunk
            self.count(len(chunk))


@contextmanager
def watching(what: str, total: int | None) -> Iterator[Watch]:
    """A bar of `total` bytes to be read; of unknown length, it only moves."""
    # rich is slow to import, and a text that is ready needs no bar.
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(24), DownloadColumn())
    console = Console(stderr=True)
    bar = Progress(
        *columns, TimeRemainingColumn(), console=console, disable=not sys.stderr.isatty()
    )
    with bar:
        task = bar.add_task(what, total=total)

        def count(size: int) -> None:
            bar.advance(task, size)

        def watch(documents: Iterable[Document]) -> Iterator[Document]:
            return (Watched(document, count) for document in documents)

        yield watch
