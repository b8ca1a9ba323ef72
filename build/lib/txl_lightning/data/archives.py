"""Packed files of a user, which are untrusted: tar, zip, gz, bz2, xz, and JSON lines."""

import bz2
import errno
import gzip
import json
import lzma
import stat
import tarfile
import zipfile
import zlib
from array import array
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path, PurePosixPath
from typing import IO, Any

from ..errors import DataError, invalid_text

CHUNK = 1 << 20
TARS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINES = ".jsonl"
# Endings of files with several texts.
SEVERAL = (*TARS, ".zip", LINES, *(f"{LINES}{ending}" for ending in COMPRESSED))
# Limits of the unpacked size: per byte of the archive, and a size that is always allowed.
GROWTH = 200
HARMLESS = 64 << 20
# Errors that damaged numbers and names cause in Python.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, KeyError)
DAMAGE += (MemoryError, OverflowError, ValueError, RuntimeError, OSError)
# System errors that a damaged archive causes by wrong offsets and names; all others are the disk's.
DAMAGE_CODES = {None, errno.EINVAL, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
ZIP64 = 0xFFFF  # number of members in the record that ends a zip with more than 65,534
TEXT, ENDS = "text", "ends"  # files of `unpack_lines`: texts, and the position where each ends


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
    with refuse_damage(archive), archive.open("rb") as file, zipfile.ZipFile(file) as bundle:
        n_listed = len(bundle.infolist())
        # The record that ends a zip has 22 bytes and a comment of up to 64 KB.
        file.seek(max(archive.stat().st_size - (22 + 0xFFFF), 0))
        _, _, record = file.read().rpartition(b"PK\5\6")
        n_written = int.from_bytes(record[6:8], "little")
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


def unpack_compressed(archive: Path, folder: Path) -> None:
    """Unpack a compressed file, and a compressed tar to its members."""
    if archive.name.endswith(TARS):
        unpack_tar(archive, folder)
        return
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


UNPACKERS = dict.fromkeys(COMPRESSED, unpack_compressed) | dict.fromkeys(TARS[:2], unpack_tar)
UNPACKERS |= {".zip": unpack_zip, LINES: unpack_lines}
"""Functions that unpack a file into a folder, by the ending of its name."""
