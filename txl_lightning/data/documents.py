"""Where text lies: slices of files, and the documents they are made of."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")

# What is one document of a text: each of its files, or each line of them.
DocumentUnit = Literal["files", "lines"]


@dataclass(frozen=True)
class FileSlice:
    """The bytes of a file from `start` up to `stop`."""

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)
    """The bytes, where they have been read already."""
    on_read: Callable[[int], object] | None = field(default=None, repr=False, compare=False)
    """Called with the number of bytes of each piece that is read; moves a progress bar."""

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, a piece at a time; a character may straddle two pieces."""
        for chunk in self._read() if self.text is None else [self.text]:
            yield chunk
            if self.on_read:
                self.on_read(len(chunk))

    def _read(self) -> Iterator[bytes]:
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk


Splits = dict[str, list[FileSlice]]  # of train, val and test


def whole_file(path: Path) -> list[FileSlice]:
    """Return all of a file as one slice, or no slice of an empty one."""
    size = path.stat().st_size
    return [FileSlice(path, 0, size)] if size else []


def split_documents(slices: Iterable[FileSlice], unit: DocumentUnit) -> Iterator[FileSlice]:
    """Yield the documents of a text, in order."""
    for file_slice in slices:
        if unit == "files":
            yield file_slice
        else:
            yield from _split_lines(file_slice)


def _split_lines(file_slice: FileSlice) -> Iterator[FileSlice]:
    """Yield each line; one that is longer than a chunk or two is not held in memory."""
    path, start, read, rest = file_slice.path, file_slice.start, file_slice.start, b""
    for chunk in file_slice.chunks():
        read += len(chunk)
        first, *others = chunk.split(b"\n")
        if not others:
            rest += first if len(rest) <= CHUNK else b""
            continue
        stop = read - len(chunk) + len(first) + 1
        yield _line(path, start, stop, rest + first + b"\n")
        start = stop
        *lines, rest = others
        for line in lines:
            yield FileSlice(path, start, start + len(line) + 1, line + b"\n")
            start += len(line) + 1
    if start < read:
        yield _line(path, start, read, rest)


def _line(path: Path, start: int, stop: int, text: bytes) -> FileSlice:
    # A part of the text is missing where the line was too long to be held.
    return FileSlice(path, start, stop, text if len(text) == stop - start else None)
