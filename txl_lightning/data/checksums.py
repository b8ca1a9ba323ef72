"""Checksums of files, of plain values, and of the blocks of ids on disk."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DataError, StorageError, print_notice
from ..files import read_json, write_json

BLOCK = 1 << 20  # bytes; a power of two, so that no id spans two blocks
MIN_AGE = 2 * 10**9  # nanoseconds after which a change certainly gets another time stamp


def short_hash(value: Any) -> str:
    """Return the first 16 hexadecimal digits of the sha256 of plain values."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def find_difference(path: Path, checksum: str) -> str:
    """Return a file's checksum and the expected "sha256:..." as text, or "" if they are equal."""
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


def cached_by_mtime(
    key: Any, paths: Iterable[Path], data_dir: Path, compute: Callable[[], Any]
) -> Any:
    """Return `compute()` of some files, cached until they are changed or copied."""
    status = [(os.path.abspath(path), path.stat()) for path in paths]
    # Programs that copy or change a file can set its mtime, but not inode and ctime.
    stamps = [(p, s.st_size, s.st_mtime_ns, s.st_ino, s.st_ctime_ns) for p, s in status]
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


def hash_blocks(path: Path) -> list[str]:
    """Return the checksum of each block of a file."""
    with path.open("rb") as file:
        return [hash_block(block) for block in iter(partial(file.read, BLOCK), b"")]


def hash_block(block: bytes | np.ndarray) -> str:
    return hashlib.sha256(block).hexdigest()[:16]


def verify_blocks(path: Path, checksums: Sequence[str]) -> None:
    """Raise a DataError if any block of a file has changed."""
    if hash_blocks(path) != list(checksums):
        raise DataError(f"{path}: damaged: its checksum is not the manifest's")


class CheckedIds:
    """Ids in a file, memory-mapped; each block is compared with its checksum when first read.

    Args:
        n_token: the size of the vocabulary; all ids are smaller.
    """

    def __init__(self, path: Path, dtype: np.dtype, checksums: Sequence[str], n_token: int) -> None:
        self.path, self.checksums, self.n_token = path, checksums, n_token
        self.whole = map_array(path, dtype)
        self._per_block = BLOCK // dtype.itemsize
        self._is_new = np.ones(len(checksums), bool)

    def __len__(self) -> int:
        return len(self.whole)

    def __getitem__(self, index: np.ndarray) -> np.ndarray:
        nth = index // self._per_block
        if self._is_new[nth].any():
            for block in np.unique(nth[self._is_new[nth]]):
                self.check(int(block))
        return self.whole[index]

    def check(self, block: int) -> None:
        """Raise a DataError if a block is damaged, or has an id outside the vocabulary."""
        ids = self.whole[block * self._per_block : (block + 1) * self._per_block]
        if hash_block(ids) != self.checksums[block]:
            # Change the time stamp, so that the next process checks the file again.
            with suppress(OSError):
                os.utime(self.path)
            where = f"block {block + 1} of {len(self.checksums)} differs from its checksum"
            raise DataError(f"{self.path}: damaged: {where}; run again to encode it again")
        if ids.max() >= self.n_token:
            raise DataError(f"{self.path}: id {ids.max()} is beyond the {self.n_token} tokens")
        self._is_new[block] = False


def map_array(path: Path, dtype: np.dtype | str) -> np.ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)
