"""Files of texts: slices and documents, checksums, and packed files, which are untrusted.

Packed are tar, zip, gz, bz2, xz, and JSON lines.
"""

import bz2
import codecs
import errno
import gzip
import hashlib
import json
import lzma
import os
import stat
import tarfile
import time
import zipfile
import zlib
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import IO, Any, Literal

from ..errors import DataError, StorageError, invalid_text, print_notice, require
from ..files import read_json, replace_file, short_hash, write_json
from ..progress import Advance

CHUNK = 1 << 20
CONTINUATION = bytes(range(0x80, 0xC0))  # bytes of a character after its first
LATIN_1 = "iconv -f ISO-8859-1 -t UTF-8"
BYTES_ADVICE = "fit and prepare read any file with data.vocab bytes"
SPLITS = ("train", "val", "test")
DocumentUnit = Literal["files", "lines"]  # one document of a text: each file, or each line
MIN_AGE = 2 * 10**9  # nanoseconds after which a change certainly gets another time stamp
TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
# Limits of the unpacked size: per byte of the archive, and a size that is always allowed.
GROWTH = 200
HARMLESS = 64 << 20
# Errors that damaged numbers and names cause in Python.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, KeyError)
DAMAGE += (MemoryError, OverflowError, ValueError, RuntimeError, OSError)
# System errors that a damaged archive causes by wrong offsets and names; all others are the disk's.
DAMAGE_CODES = {None, errno.EINVAL, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
ZIP64 = 0xFFFF  # number of members in the record that ends a zip with more than 65,534
LINES = ".jsonl"
# Endings of files with several texts.
SEVERAL = (*TARS, ".zip", LINES, *(f"{LINES}{ending}" for ending in COMPRESSED))
TEXT, ENDS = "text", "ends"  # files of `unpack_lines`: texts, and the position where each ends


@dataclass(frozen=True)
class FileSlice:
    """The bytes of a file from `start` up to `stop`."""

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)  # these bytes, if they are read already
    # Called with the size of each piece read, for a progress bar.
    on_read: Advance | None = field(default=None, repr=False, compare=False)
    is_text: bool = field(default=False, kw_only=True)  # refuse bytes that are not UTF-8

    @property
    def n_byte(self) -> int:
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, which may cut a character; DataError if `is_text` is wrong."""
        return self.check_text(self.read()) if self.is_text else self.read()

    def read(self) -> Iterator[bytes]:
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

    def check_text(self, chunks: Iterable[bytes]) -> Iterator[bytes]:
        decoder, offset = codecs.getincrementaldecoder("utf-8")(), self.start
        for chunk in chunks:
            # The first character and the last one may be cut.
            head = chunk[:3].lstrip(CONTINUATION) if 0 < offset == self.start else chunk[:3]
            try:
                decoder.decode(head + chunk[3:])
            except UnicodeDecodeError as error:
                # The decoder keeps the first bytes of a character that spans two chunks.
                where = f"byte {offset + len(chunk) - len(error.object) + error.start}"
                advice = f"if it is Latin-1: {LATIN_1}; {BYTES_ADVICE}"
                raise DataError(f"{self.path}: {where} is not UTF-8 text; {advice}") from error
            offset += len(chunk)
            yield chunk

    def narrow(self, start: int, stop: int) -> "FileSlice":
        return replace(self, start=start, stop=stop)

    def encode_pieces(self, vocab: Any) -> Iterator[tuple[Any, Sequence[int]]]:
        """Yield ids, and where documents begin among them besides the first."""
        return ((ids, ()) for ids in vocab.encode(self))


def whole_file(path: Path, is_text: bool = False) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty; OSError if it cannot be read."""
    if size := path.stat().st_size:
        path.open("rb").close()
    return [FileSlice(path, 0, size, is_text=is_text)] if size else []


def has_documents(path: Path) -> bool:
    """Return True if a path may contain several documents."""
    return path.is_dir() or path.name.endswith(SEVERAL)


def split_documents(slices: Iterable[FileSlice], unit: DocumentUnit) -> Iterator[FileSlice]:
    if unit == "files":
        yield from slices
        return
    for part in slices:
        start = part.start
        with part.path.open("rb") as file:
            file.seek(start)
            while line := file.readline(part.stop - start):
                yield FileSlice(part.path, start, start + len(line), line, is_text=part.is_text)
                start += len(line)
                if part.on_read:
                    part.on_read(len(line))


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


def find_unpacker(path: Path) -> Callable[[Path, Path], None] | None:
    """Return the function that unpacks a file into a folder; None if it is not packed."""
    if path.name.endswith(TARS):
        return unpack_tar
    if path.suffix in COMPRESSED:
        return unpack_compressed
    return {".zip": unpack_zip, LINES: unpack_lines}.get(path.suffix)


@contextmanager
def refuse_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        if isinstance(error, DataError) or getattr(error, "errno", None) not in DAMAGE_CODES:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{archive}: damaged, or not an archive ({reason}); replace it") from error


def limit_members(archive: Path, members: Iterable[tuple[Any, str, int, bool]]) -> Iterator[Any]:
    """Yield members of (member, name, size, is a file or folder); DataError if too large."""
    total, limit = 0, max(HARMLESS, GROWTH * archive.stat().st_size)
    for member, name, n_byte, is_plain in members:
        total += n_byte
        if total > limit:
            raise DataError(f"{archive}: unpacks to more than {limit:,} bytes; replace it")
        if not is_plain:
            raise DataError(f"{archive}: member {name!r} is not a regular file; remove it")
        yield member


def unpack_tar(archive: Path, folder: Path) -> None:
    """Unpack a tar; DataError if it is too large, damaged, or has more than files and folders."""
    with refuse_damage(archive), tarfile.open(archive) as tar:
        # Negative sizes cause endless loops in older versions of tarfile.
        members = ((m, m.name, m.size, m.size >= 0 and (m.isreg() or m.isdir())) for m in tar)
        for member in limit_members(archive, members):
            tar.extract(member, folder, filter="data")
        # tarfile treats an unreadable header as the end.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {tar.offset:,}")
        # The checksum of a compressed tar is behind its padding, which tarfile does not read.
        rest = ((b"", archive.name, len(part), True) for part in read_chunks(tar.fileobj))
        deque(limit_members(archive, rest), maxlen=0)


def unpack_zip(archive: Path, folder: Path) -> None:
    regular = (0, stat.S_IFREG, stat.S_IFDIR)
    with refuse_damage(archive), zipfile.ZipFile(archive) as bundle:
        n_listed, n_written = len(bundle.infolist()), read_member_count(archive)
        # A damaged length of one entry hides those after it.
        if n_written not in (ZIP64, n_listed & 0xFFFF):
            raise zipfile.BadZipFile(f"{n_listed:,} of {n_written:,} members are listed")
        types = ((m, stat.S_IFMT(m.external_attr >> 16)) for m in bundle.infolist())
        members = ((m, m.filename, m.file_size, type in regular) for m, type in types)
        for member in limit_members(archive, members):
            path = PurePosixPath(member.filename)
            if path.is_absolute() or ".." in path.parts:
                raise zipfile.BadZipFile(f"{member.filename!r} would be outside the folder")
            bundle.extract(member, folder)


def read_member_count(archive: Path) -> int:
    """Return the number of members, modulo 65,536, or ZIP64, in the record that ends a zip."""
    with archive.open("rb") as file:
        # The record has 22 bytes and a comment of up to 64 KB.
        file.seek(max(archive.stat().st_size - (22 + 0xFFFF), 0))
        _, _, record = file.read().rpartition(b"PK\5\6")
    return int.from_bytes(record[6:8], "little")


def unpack_compressed(archive: Path, folder: Path) -> None:
    with refuse_damage(archive), COMPRESSED[archive.suffix](archive) as packed:
        parts = ((chunk, archive.stem, len(chunk), True) for chunk in read_chunks(packed))
        with (folder / archive.stem).open("wb") as file:
            file.writelines(limit_members(archive, parts))


def read_chunks(file: IO[bytes]) -> Iterator[bytes]:
    return iter(partial(file.read, CHUNK), b"")


def unpack_lines(path: Path, folder: Path) -> None:
    """Write the texts of JSON lines into one file, and the end of each into another."""
    ends, n_byte = array("q"), 0
    with path.open("rb") as lines, (folder / TEXT).open("wb") as file:
        for number, line in enumerate(iter(partial(lines.readline, HARMLESS), b""), 1):
            try:
                text = json.loads(line)["text"].encode() if line.strip() else b""
            except (UnicodeDecodeError, UnicodeEncodeError) as error:
                raise invalid_text(f"{path}: line {number:,}", error) from error
            except (ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
                expected = 'expected JSON in each line, as {"text": "..."}'
                raise DataError(f"{path}: line {number:,} has no text; {expected}") from error
            n_byte += file.write(text)
            ends.append(n_byte)
    (folder / ENDS).write_bytes(ends.tobytes())


def find_texts(folder: Path) -> list[FileSlice]:
    """Return the texts that `unpack_lines` wrote, except empty ones."""
    bounds = pairwise([0, *array("q", (folder / ENDS).read_bytes())])
    return [FileSlice(folder / TEXT, start, end) for start, end in bounds if end > start]


def save_texts(texts: Iterable[str], path: Path) -> None:
    """Write texts as JSON lines, which `unpack_lines` reads."""
    require(not isinstance(texts, str), "texts", "one text", "a list of texts")
    require(path.name.endswith(LINES), "path", path, f"a file whose name ends with {LINES}")

    def save_part(part: Path) -> None:
        with part.open("w", encoding="utf-8") as file:
            for text in texts:
                require(isinstance(text, str), "texts", repr(text), "texts")
                print(json.dumps({"text": text}), file=file)

    replace_file(path, save_part)
