"""Texts as slices of files: their characters, documents and splits; and results that are kept."""

import codecs
import hashlib
import os
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any, Literal

from ..errors import DataError, StorageError, print_notice
from ..files import read_json, short_hash, write_json

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")
DocumentUnit = Literal["files", "lines"]  # one document of a text: each file, or each line
MIN_AGE = 2 * 10**9  # nanoseconds after which a change certainly gets another time stamp
LATIN_1 = "if it is Latin-1: iconv -f ISO-8859-1 -t UTF-8"
BYTES_ADVICE = "fit and prepare read any file with data.vocab bytes"


@dataclass(frozen=True)
class FileSlice:
    """The bytes of a file from `start` up to `stop`."""

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)  # these bytes, if they are read already
    is_text: bool = field(default=False, kw_only=True)  # refuse bytes that are not UTF-8
    continues: bool = field(default=False, kw_only=True)  # the document of the slice before

    @property
    def bounds(self) -> tuple[int, int]:
        return self.start, self.stop

    @property
    def n_byte(self) -> int:
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, which may cut a character."""
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

    def texts(self) -> Iterator[str]:
        """Yield the characters in pieces; DataError if the bytes are not UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset = self.start
        for chunk in chain(self.chunks(), [b""]):
            try:
                if text := decoder.decode(chunk, final=not chunk):
                    yield text
            except UnicodeDecodeError as error:
                # The decoder keeps the first bytes of a character that spans two chunks.
                place = offset - (len(error.object) - len(chunk)) + error.start
                problem = f"byte {place} is not UTF-8 text; {LATIN_1}; {BYTES_ADVICE}"
                raise DataError(f"{self.path}: {problem}") from error
            offset += len(chunk)

    def split_lines(self) -> "Iterator[FileSlice]":
        start = self.start
        with self.path.open("rb") as file:
            file.seek(start)
            while line := file.readline(self.stop - start):
                yield FileSlice(self.path, start, start + len(line), line, is_text=self.is_text)
                start += len(line)


Splits = dict[str, list[FileSlice]]  # slices of train, val and test


def whole_file(path: Path, is_text: bool = False) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty; OSError if there is none."""
    size = path.stat().st_size
    return [FileSlice(path, 0, size, is_text=is_text)] if size else []


def split_by_fractions(slices: Sequence[FileSlice], fractions: Sequence[float]) -> Splits:
    """Split slices by fractions: whole slices by their first byte, a single one at a character."""
    sizes = [part.n_byte for part in slices]
    first, second = fractions[0] * sum(sizes), (fractions[0] + fractions[1]) * sum(sizes)
    if len(slices) == 1:
        [part] = slices
        inner = [find_character(part, part.start + int(cut)) for cut in (first, second)]
        return cut_slice(part, [part.start, *inner, part.stop])
    starts = [0, *accumulate(sizes)][:-1]
    val, test = bisect_left(starts, first), bisect_left(starts, second)
    if len(slices) >= len(SPLITS):
        # A nonzero fraction gets at least one document.
        least = [int(fraction > 0) for fraction in fractions]
        val = min(max(val, least[0]), len(slices) - least[1] - least[2])
        test = min(max(test, val + least[1]), len(slices) - least[2])
    return {"train": [*slices[:val]], "val": [*slices[val:test]], "test": [*slices[test:]]}


def cut_slice(part: FileSlice, bounds: Iterable[int]) -> Splits:
    cuts = zip(SPLITS, pairwise(bounds), strict=True)
    return {name: [replace(part, start=start, stop=stop)] for name, (start, stop) in cuts}


def find_character(part: FileSlice, offset: int) -> int:
    """Return the first offset at or after this one that is not inside a UTF-8 character."""
    ahead = next(FileSlice(part.path, offset, min(offset + 3, part.stop)).chunks(), b"")
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))


@dataclass(frozen=True)
class RemoteFile:
    """A file on a server, with its size and its checksum ("sha256:...")."""

    url: str
    n_byte: int
    checksum: str
    # Files extracted from it, with their checksums; None if none is published.
    members: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return Path(self.url).name


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


def cache_result(
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
