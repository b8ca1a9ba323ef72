"""Slices of files, documents within them, and checksums."""

import hashlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError, StorageError, print_notice, show_controls
from ..files import read_json, write_json

CHUNK = 1 << 20
MIN_AGE = 2 * 10**9  # nanoseconds after which a change certainly gets another time stamp
SPLITS = ("train", "val", "test")

Advance = Callable[[int], object]  # called with the amount done since the last call
# One document of a text: each file, or each line.
DocumentUnit = Literal["files", "lines"]


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
            for at in range(0, len(self.text), CHUNK):
                yield self.text[at : at + CHUNK]
            return
        with self.path.open("rb") as file:
            file.seek(self.start)
            left = self.n_byte
            while left and (chunk := file.read(min(CHUNK, left))):
                left -= len(chunk)
                yield chunk
                if self.on_read:
                    self.on_read(len(chunk))


Splits = dict[str, list[FileSlice]]  # of train, val and test


def whole_file(path: Path) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty."""
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


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with its size and its checksum ("sha256:...").

    Args:
        members: files extracted from it, with their checksums; None if none is published.
    """

    url: str
    n_byte: int
    checksum: str
    members: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.url).name


def find_difference(path: Path, checksum: str) -> str:
    """Return a file's checksum and the expected one as text, or "" if they are equal."""
    algorithm, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    return "" if actual == digest else f"{algorithm} {actual}, not {digest}"


def verify_file(path: Path, checksum: str) -> None:
    """Raise a DataError unless a file can be read and has this checksum."""
    try:
        difference = find_difference(path, checksum)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); pass data.path") from error
    if difference:
        raise DataError(f"{path}: wrong file ({difference}); remove it, or pass data.path")


def short_hash(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def cached_by_mtime(
    key: Any, paths: Iterable[Path], data_dir: Path, compute: Callable[[], Any]
) -> Any:
    """Return `compute()` of some files, cached until they are changed or copied."""
    stamps = [file_stamp(path) for path in paths]
    cache = data_dir / "prepared" / "cache" / short_hash([key, stamps])
    if cache.is_file():
        with suppress(DataError):
            saved = read_json(cache, {"checksum": str})
            if saved["checksum"] == short_hash(saved.get("result")):
                return saved.get("result")
        print_notice(f"warning: {cache}: damaged; computed again")
    result = compute()
    if all(time.time_ns() - changed > MIN_AGE for *_, changed in stamps):
        # The folder may be read-only; then every call computes.
        with suppress(StorageError):
            write_json({"result": result, "checksum": short_hash(result)}, cache)
    return result


def file_stamp(path: Path) -> tuple[str, int, int, int, int]:
    """Return a file's path, size, mtime, inode and ctime in nanoseconds.

    Programs that copy or change a file can set its mtime, but not the last two.
    """
    status = path.stat()
    times = status.st_mtime_ns, status.st_ino, status.st_ctime_ns
    return os.path.abspath(path), status.st_size, *times


def sha256_text(splits: Mapping[str, Sequence[FileSlice]], data_dir: Path) -> str:
    """Return the sha256 of train, val and test together, or raise DataError."""
    slices = [part for name in SPLITS for part in splits[name]]
    paths = dict.fromkeys(part.path for part in slices)
    cuts = [(str(part.path), part.start, part.stop) for part in slices]

    def hash_slices() -> str:
        sha256 = hashlib.sha256()
        for chunk in chain.from_iterable(part.chunks() for part in slices):
            sha256.update(chunk)
        return sha256.hexdigest()

    try:
        return cached_by_mtime(["sha256", cuts], paths, data_dir, hash_slices)
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


@contextmanager
def show_progress(task: str, total: int | None, in_bytes: bool = True) -> Iterator[Advance]:
    """Show a progress bar of `total` bytes or parts; yield the function that advances it."""
    # rich is slow to import, and a prepared text needs no bar.
    from rich import progress
    from rich.console import Console

    amount = progress.DownloadColumn() if in_bytes else progress.MofNCompleteColumn()
    name = progress.TextColumn("{task.description}", markup=False)
    columns = name, progress.BarColumn(24), amount, progress.TimeRemainingColumn()
    # Print stdout above the bar, unless stdout is a file.
    is_terminal = bool(sys.stdout and sys.stdout.isatty())
    options = {"console": Console(stderr=True), "disable": not sys.stderr.isatty()}
    with progress.Progress(*columns, **options, redirect_stdout=is_terminal) as bar:
        yield partial(bar.advance, bar.add_task(show_controls(task), total=total))
