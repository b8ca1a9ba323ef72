"""The tokens of a split in parts: written by one process each, checked when they are read.

A part is three files: .ids, the ids; .starts, the positions in the part where documents begin; and
.sums, a checksum of each MiB of ids, then of starts.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy import ndarray

from ..errors import DataError
from ..files import T
from .vocab.base import Piece

BLOCK = 1 << 20  # bytes; a power of two, so that no id spans two blocks
SUM = 8  # bytes of a block's checksum
OPEN_PARTS = 256  # parts whose files are open at a time
START = np.dtype("int64")


class Part(NamedTuple):
    """A part as the manifest has it."""

    n_token: int
    n_document: int
    last_start: int  # position in the part of its last document's start; -1 if none begins in it
    checksum: str  # of the file .sums


def hash_bytes(content: bytes | ndarray) -> str:
    return hashlib.sha256(content).hexdigest()[: 2 * SUM]


def hash_blocks(blocks: Iterable[bytes | ndarray]) -> bytes:
    return b"".join(hashlib.sha256(block).digest()[:SUM] for block in blocks)


def read_blocks(path: Path) -> Iterable[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, BLOCK), b"")


def write_part(stem: Path, pieces: Iterable[Piece], dtype: np.dtype) -> Part:
    """Write the three files STEM.ids, STEM.starts and STEM.sums."""
    paths = [stem.with_suffix(f".{kind}") for kind in ("ids", "starts", "sums")]
    n_token, last_start = 0, -1
    stem.parent.mkdir(parents=True, exist_ok=True)
    with paths[0].open("wb") as ids_file, paths[1].open("wb") as starts_file:
        for ids, starts in pieces:
            if len(starts):
                starts_file.write(np.add(starts, n_token, dtype=START).tobytes())
                last_start = n_token + int(starts[-1])
            ids_file.write(ids.astype(dtype, copy=False).tobytes())
            n_token += len(ids)
        n_document = starts_file.tell() // START.itemsize
    sums = b"".join(hash_blocks(read_blocks(path)) for path in paths[:2])
    paths[2].write_bytes(sums)
    return Part(n_token, n_document, last_start, hash_bytes(sums))


class CheckedIds:
    """Ids in a file, memory-mapped; each block is compared with its checksum when first read."""

    def __init__(self, path: Path, dtype: np.dtype, sums: bytes, n_token: int) -> None:
        self.path, self.sums, self.n_token = path, sums, n_token
        self.ids = map_array(path, dtype)
        self._per_block = BLOCK // dtype.itemsize
        self._is_new = np.ones(len(sums) // SUM, bool)

    def __getitem__(self, index: ndarray) -> ndarray:
        nth = index // self._per_block
        if (is_new := self._is_new[nth]).any():
            for block in np.unique(nth[is_new]).tolist():
                self.check_block(block)
        return self.ids[index]

    def read_whole(self) -> ndarray:
        for block in np.flatnonzero(self._is_new).tolist():
            self.check_block(block)
        return self.ids

    def check_block(self, block: int) -> None:
        ids = self.ids[block * self._per_block : (block + 1) * self._per_block]
        try:
            check_block(str(self.path), block, ids, self.sums, self.n_token)
        except DataError:
            # Change the time stamp, so that the next process checks the file again.
            with suppress(OSError):
                self.path.touch()
            raise
        self._is_new[block] = False


def check_block(name: str, block: int, ids: ndarray, sums: bytes, n_token: int) -> None:
    """Raise a DataError if a block differs from its checksum, or has an id from n_token on."""
    if hash_blocks([ids]) != sums[block * SUM : (block + 1) * SUM]:
        where = f"block {block + 1} of {len(sums) // SUM} differs from its checksum"
        raise DataError(f"{name}: damaged: {where}")
    if ids.max() >= n_token:
        raise DataError(f"{name}: id {ids.max()} is beyond the {n_token} tokens")


def map_array(path: Path, dtype: np.dtype | str) -> ndarray:
    # An empty file cannot be mapped.
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.empty(0, dtype)


@dataclass(frozen=True)
class LocalFiles:
    """The files of a store in a folder."""

    folder: Path
    map = staticmethod(map)

    def __str__(self) -> str:
        return str(self.folder)

    def load(self, name: str, check: Callable[[bytes], T]) -> T:
        """Return what `check` returns of a small file; OSError if it cannot be read."""
        return check((self.folder / name).read_bytes())

    def load_array(self, name: str, dtype: np.dtype, sums: bytes) -> ndarray:
        """Return a file as an array, after comparing all of it with its checksums."""
        if hash_blocks(read_blocks(path := self.folder / name)) != sums:
            raise DataError(f"{path}: damaged: its checksum is not the manifest's")
        return map_array(path, dtype)

    def keep_rows(self, n_row: int) -> None:
        """Nothing: the system keeps what is read again."""

    def open_ids(self, name: str, dtype: np.dtype, sums: bytes, n_token: int) -> CheckedIds:
        return CheckedIds(self.folder / name, dtype, sums, n_token)


class TextPart(NamedTuple):
    """A part that is read: its ids by position, and the positions where documents begin."""

    ids: CheckedIds
    starts: ndarray


class PartedText:
    """The tokens of a split, whose name is the parts' folder; a part is opened when first read."""

    row_multiple = n_unscored = 1

    def __init__(
        self, files: LocalFiles, split: str, parts: Sequence[Part], dtype: np.dtype, n_token: int
    ) -> None:
        self.files, self.split, self.parts = files, split, parts
        self.dtype, self.n_token = dtype, n_token
        self.first_P = np.cumsum([0, *(part.n_token for part in parts)])
        pairs = zip(self.first_P, parts, strict=False)
        last_P = [first + part.last_start if part.n_document else 0 for first, part in pairs]
        # Where the document began that may continue at the beginning of each part.
        self.continued_P = np.maximum.accumulate([0, *last_P])
        self.open_part = lru_cache(OPEN_PARTS)(self._open_part)

    def __len__(self) -> int:
        return int(self.first_P[-1])

    def ids_at(self, position_BL: ndarray) -> ndarray:
        self.files.keep_rows(len(position_BL))
        return self._map_parts(position_BL, lambda nth, place_K: self.open_part(nth).ids[place_K])

    def doc_position(self, position_BL: ndarray) -> ndarray:
        return position_BL - self._map_parts(position_BL, self._find_starts)

    @property
    def starts(self) -> ndarray:
        """All positions where documents begin, in memory."""
        nths = range(len(self.parts))
        starts = (self.first_P[nth] + self.open_part(nth).starts for nth in nths)
        return np.concatenate([np.empty(0, START), *starts])

    @property
    def whole(self) -> ndarray:
        """All ids, after checking them; those of one part are memory-mapped."""
        parts = [self.open_part(nth).ids.read_whole() for nth in range(len(self.parts))]
        return parts[0] if len(parts) == 1 else np.concatenate([np.empty(0, self.dtype), *parts])

    def list_files(self) -> Iterator[tuple[str, int]]:
        for nth, part in enumerate(self.parts):
            sizes = (part.n_token * self.dtype.itemsize, part.n_document * START.itemsize)
            n_block = sum(-(-size // BLOCK) for size in sizes)
            for kind, size in zip(("ids", "starts", "sums"), (*sizes, n_block * SUM), strict=True):
                yield f"{name_part(self.split, nth)}.{kind}", size

    def _map_parts(self, position_BL: ndarray, find: Callable[[int, ndarray], ndarray]) -> ndarray:
        """Return the results of `find` for the positions within each part."""
        # Padding after the last token belongs to the last part.
        nth_BL = np.searchsorted(self.first_P[:-1], position_BL, "right") - 1
        place_BL = position_BL - self.first_P[nth_BL]
        result_BL = np.empty(position_BL.shape, START)
        nths = np.unique(nth_BL).tolist()
        masks = [nth_BL == nth for nth in nths]
        places = [place_BL[mask] for mask in masks]
        for mask, found in zip(masks, self.files.map(find, nths, places), strict=True):
            result_BL[mask] = found
        return result_BL

    def _find_starts(self, nth: int, place_K: ndarray) -> ndarray:
        before_K = np.searchsorted(starts := self.open_part(nth).starts, place_K, "right") - 1
        if not len(starts):
            return np.full(place_K.shape, self.continued_P[nth])
        return np.where(before_K < 0, self.continued_P[nth], self.first_P[nth] + starts[before_K])

    def _open_part(self, nth: int) -> TextPart:
        part, stem = self.parts[nth], name_part(self.split, nth)

        def check_sums(content: bytes) -> bytes:
            if hash_bytes(content) != part.checksum:
                raise DataError(f"{self.files}/{stem}.sums: damaged: its checksum differs")
            return content

        sums = self.files.load(f"{stem}.sums", check_sums)
        n_byte = -(-part.n_token * self.dtype.itemsize // BLOCK) * SUM
        ids = self.files.open_ids(f"{stem}.ids", self.dtype, sums[:n_byte], self.n_token)
        return TextPart(ids, self.files.load_array(f"{stem}.starts", START, sums[n_byte:]))


def name_part(split: str, nth: int) -> str:
    return f"{split}/{nth:05}"
