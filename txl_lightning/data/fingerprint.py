"""Checksums of texts, and results that are kept while the files they come from do not change."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import DataError, StorageError
from ..files import write_text
from .documents import SPLITS, FileSlice

SETTLED = 2 * 10**9  # nanoseconds after which a file that changes gets another time stamp


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with its size and its checksum ("sha256:...")."""

    url: str
    n_byte: int
    checksum: str


def find_difference(path: Path, checksum: str) -> str:
    """Return a file's checksum and the expected one, or nothing where they are the same."""
    algorithm, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        found = hashlib.file_digest(file, algorithm).hexdigest()
    return "" if found == digest else f"{algorithm} {found}, not {digest}"


def verify_file(path: Path, checksum: str) -> None:
    """Raise DataError unless a file can be read and has this checksum."""
    try:
        wrong = find_difference(path, checksum)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); pass data.path") from error
    if wrong:
        raise DataError(f"{path}: another file ({wrong}); remove it, or pass data.path")


def short_hash(value: Any) -> str:
    """Return 16 hexadecimal digits of the sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def cached_by_mtime(
    key: Any, paths: Iterable[Path], data_dir: Path, compute: Callable[[], Any]
) -> Any:
    """Return `compute()` of some files, cached while the files keep their size and time."""
    stamps = [file_stamp(path) for path in paths]
    cache = data_dir / "prepared" / "cache" / short_hash([key, stamps])
    if cache.is_file():
        return json.loads(cache.read_text())
    result = compute()
    if all(time.time_ns() - mtime > SETTLED for _, _, mtime in stamps):
        # A prepared folder may be read-only; then it is computed every time.
        with suppress(StorageError):
            write_text(json.dumps(result), cache)
    return result


def file_stamp(path: Path) -> tuple[str, int, int]:
    """Return a file's path, size, and modification time in nanoseconds."""
    status = path.stat()
    return os.path.abspath(path), status.st_size, status.st_mtime_ns


def sha256_text(splits: Mapping[str, Sequence[FileSlice]], data_dir: Path) -> str:
    """Return the sha256 of train, val and test together, or raise DataError."""
    slices = [part for name in SPLITS for part in splits[name]]
    paths = dict.fromkeys(part.path for part in slices)
    cuts = [(str(part.path), part.start, part.stop) for part in slices]
    try:
        return cached_by_mtime(["sha256", cuts], paths, data_dir, lambda: sha256_slices(slices))
    except OSError as error:
        raise DataError(f"{error.filename}: cannot be read ({error.strerror})") from error


def sha256_slices(slices: Sequence[FileSlice]) -> str:
    """Return the sha256 of slices that are read one after the other."""
    sha256 = hashlib.sha256()
    for part in slices:
        for chunk in part.chunks():
            sha256.update(chunk)
    return sha256.hexdigest()
