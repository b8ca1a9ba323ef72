"""Slices of files, and the documents within them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ..progress import Advance

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")
DocumentUnit = Literal["files", "lines"]
"""One document of a text: each file, or each line."""


@dataclass(frozen=True)
class FileSlice:
    """The bytes of a file from `start` up to `stop`.

    Args:
        text: these bytes, if they have been read already.
        on_read: called with the size of each piece read, for a progress bar.
    """

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)
    on_read: Advance | None = field(default=None, repr=False, compare=False)

    @property
    def n_byte(self) -> int:
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces; a character may span two pieces."""
        if self.text is not None:
            for start in range(0, len(self.text), CHUNK):
                yield self.text[start : start + CHUNK]
            return
        with self.path.open("rb") as file:
            file.seek(self.start)
            n_left = self.n_byte
            while n_left and (chunk := file.read(min(CHUNK, n_left))):
                n_left -= len(chunk)
                yield chunk
                if self.on_read:
                    self.on_read(len(chunk))


Splits = dict[str, list[FileSlice]]
"""Slices of train, val and test."""


def whole_file(path: Path) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty; OSError if it cannot be read."""
    if size := path.stat().st_size:
        path.open("rb").close()
    return [FileSlice(path, 0, size)] if size else []


def split_documents(slices: Iterable[FileSlice], unit: DocumentUnit) -> Iterator[FileSlice]:
    """Yield the documents of a text, in order."""
    for part in slices:
        if unit == "files":
            yield part
            continue
        start = part.start
        with part.path.open("rb") as file:
            file.seek(start)
            while line := file.readline(part.stop - start):
                yield FileSlice(part.path, start, start + len(line), line)
                start += len(line)
                if part.on_read:
                    part.on_read(len(line))
