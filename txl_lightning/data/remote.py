"""A store in object storage: blocks of ids are fetched by ranges, checked, and kept in memory."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy import ndarray

from ..errors import DataError, StorageError
from ..files import T, replace_file
from .store_parts import BLOCK, SUM, check_block, hash_blocks

# Tries of a request, and the seconds after the first one; each pause is twice the one before.
ATTEMPTS, FIRST_PAUSE = 6, 0.1
THREADS = 16
# What to do about errors that trying again does not mend.
HINTS = {
    "NoCredentialsError": "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE",
    "PermissionError": "its credentials may not read it",
    "FileNotFoundError": "expected a store written by prepare --out, with manifest.json",
}


class RemoteFiles:
    """The files of a store below a URL; of each row the next block is fetched ahead.

    Each process keeps 3 blocks of 1 MiB for each of its rows (two while it passes from one to the
    next, and the one fetched ahead), and OPEN_PARTS arrays of starts.
    """

    def __init__(self, url: str, cache: "DiskCache | None" = None) -> None:
        # Slow to import, and needed only here.
        from fsspec.core import url_to_fs

        try:
            self.fs, self.root = url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise DataError(f"data.store: {url}: {error}") from error
        self.url, self.cache = url, cache
        self.n_row, self.lock = 1, threading.Lock()
        self.blocks: OrderedDict[tuple[str, int], Future] = OrderedDict()
        self.map = ThreadPoolExecutor(THREADS).map
        self.fetcher = ThreadPoolExecutor(THREADS)

    def __str__(self) -> str:
        return self.url

    def load_array(self, name: str, dtype: np.dtype, sums: bytes) -> ndarray:
        def check(content: bytes) -> ndarray:
            blocks = (content[start : start + BLOCK] for start in range(0, len(content), BLOCK))
            if hash_blocks(blocks) != sums:
                raise DataError(f"{self.url}/{name}: damaged: its checksum is not the manifest's")
            return np.frombuffer(content, dtype)

        return self.load(name, check)

    def open_ids(self, name: str, dtype: np.dtype, sums: bytes, n_token: int) -> "RemoteIds":
        return RemoteIds(self, name, dtype, sums, n_token)

    def keep_rows(self, n_row: int) -> None:
        self.n_row = max(self.n_row, n_row)

    def request_block(self, key: tuple[str, int], fetch: Callable[[int], ndarray]) -> Future:
        """Return a block that is there, on its way, or requested now."""
        with self.lock:
            block = self.blocks.get(key)
            # A request that failed some time ago may succeed now.
            if block is None or (block.done() and block.exception()):
                self.blocks[key] = self.fetcher.submit(fetch, key[1])
            self.blocks.move_to_end(key)
            while len(self.blocks) > 3 * self.n_row:
                self.blocks.popitem(last=False)
            return self.blocks[key]

    def load(self, name: str, check: Callable[[bytes], T], block: int | None = None) -> T:
        """Return what `check` returns of a file or a block, as soon as it raises no error."""
        path = f"{self.root}/{name}"
        ends = {} if block is None else {"start": block * BLOCK, "end": (block + 1) * BLOCK}
        for attempt in range(ATTEMPTS):
            try:
                return check(self.fs.cat_file(path, **ends))
            # Each file system raises errors of its own; a truncated answer fails the check.
            except Exception as error:
                kind, failure = type(error).__name__, error
                if kind in HINTS or attempt == ATTEMPTS - 1:
                    break
            time.sleep(FIRST_PAUSE * 2**attempt)
        if isinstance(failure, DataError):
            raise failure
        reason = HINTS.get(kind) or f"{ATTEMPTS} tries failed: {' '.join(str(failure).split())}"
        raise DataError(f"data.store: {self.url}/{name}: cannot be read: {reason}") from failure


class RemoteIds:
    """Ids in a remote file by position."""

    def __init__(
        self, files: RemoteFiles, name: str, dtype: np.dtype, sums: bytes, n_token: int
    ) -> None:
        self.files, self.name, self.dtype, self.sums = files, name, dtype, sums
        self.n_token, self._per_block = n_token, BLOCK // dtype.itemsize

    def __getitem__(self, index: ndarray) -> ndarray:
        nth, result = index // self._per_block, np.empty(index.shape, self.dtype)
        wanted = np.unique(nth).tolist()
        # The next block of each row is fetched while this one is read.
        last = len(self.sums) // SUM - 1
        numbers = [*wanted, *(n + 1 for n in wanted if n < last)]
        blocks = {n: self.files.request_block((self.name, n), self.fetch_block) for n in numbers}
        for n in wanted:
            result[nth == n] = blocks[n].result()[index[nth == n] - n * self._per_block]
        return result

    def read_whole(self) -> ndarray:
        blocks = self.files.map(self.fetch_block, range(len(self.sums) // SUM))
        return np.concatenate([np.empty(0, self.dtype), *blocks])

    def fetch_block(self, block: int) -> ndarray:
        """Return a block: from the cache on disk, or else from its store."""

        def check(content: bytes) -> bytes:
            ids = np.frombuffer(content, self.dtype)
            check_block(f"{self.files}/{self.name}", block, ids, self.sums, self.n_token)
            return content

        digest = self.sums[block * SUM : (block + 1) * SUM].hex()
        fetch = partial(self.files.load, self.name, check, block)
        content = self.files.cache.load(digest, fetch, check) if self.files.cache else fetch()
        return np.frombuffer(content, self.dtype)


@dataclass(frozen=True)
class DiskCache:
    """Copies of blocks in a folder, by their checksums; the oldest are removed above `n_byte`."""

    folder: Path
    n_byte: int

    def load(
        self, digest: str, fetch: Callable[[], bytes], check: Callable[[bytes], bytes]
    ) -> bytes:
        """Return a copy that passes `check`, or else what `fetch` returns, which is copied."""
        path = self.folder / digest
        with suppress(OSError, DataError, ValueError):
            return check(path.read_bytes())
        content = fetch()
        # A copy may fail: the disk is full, or another process removes the oldest first.
        with suppress(OSError, StorageError):
            replace_file(path, lambda part: part.write_bytes(content))
            copies = sorted(self.folder.iterdir(), key=lambda copy: copy.stat().st_mtime)
            excess = sum(copy.stat().st_size for copy in copies) - self.n_byte
            for copy in copies[: max(-(-excess // BLOCK), 0)]:
                copy.unlink()
        return content
