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
    """The bytes of a file from `start` up to `stop`.

    Args:
        text: these bytes, where they have been read already.
        on_read: called with the number of bytes of each piece that is read, for a progress bar.
    """

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)
    on_read: Callable[[int], object] | None = field(default=None, repr=False, compare=False)

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes, a piece at a time; a character may straddle two pieces."""
        if self.text is not None:
            for at in range(0, len(self.text), CHUNK):
                yield self.text[at : at + CHUNK]
            return
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.stop - self.start
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
                if self.on_read:
                    self.on_read(len(chunk))


Splits = dict[str, list[FileSlice]]  # of train, val and test


def whole_file(path: Path) -> list[FileSlice]:
    """Return all of a file as one slice, or no slice of an empty one."""
    size = path.stat().st_size
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
