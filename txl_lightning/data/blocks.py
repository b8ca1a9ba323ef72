"""Arrays on disk with a checksum for each block, verified on reading."""

import hashlib
import os
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import numpy as np

from ..errors import DataError

BLOCK = 1 << 20  # bytes; a power of two, so that no id spans two blocks


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
