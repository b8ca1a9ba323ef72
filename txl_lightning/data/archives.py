"""Packed files of a user, which are untrusted: tar, zip, gz, bz2, xz, and JSON lines."""

import bz2
import errno
import gzip
import json
import lzma
import shutil
import stat
import tarfile
import zipfile
from array import array
from functools import partial
from pathlib import Path, PurePosixPath

from ..errors import DataError, invalid_text
from ..files import cache_result, create_folder, sha256_file, short_hash

TARS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINES = ".jsonl"
# Endings of files that are unpacked, and of those with several texts.
UNPACKED = (".tar", ".tgz", ".zip", LINES, *COMPRESSED)
SEVERAL = (*TARS, ".zip", LINES, *(f"{LINES}{ending}" for ending in COMPRESSED))
TEXT, ENDS = "text", "ends"  # files of `unpack_lines`: texts, and the position where each ends
LONGEST = 64 << 20  # bytes of one line
VERSION = 2  # part of the name of an unpacked folder: increment it when other files are unpacked
ZIP64 = 0xFFFF  # number of members that the end of a zip has if another record has the number
# System errors that a damaged archive causes by wrong offsets and names; all others are the disk's.
DAMAGE_CODES = {None, errno.EINVAL, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}


def unpack(archive: Path, data_dir: Path) -> Path:
    """Return the folder with the content of a packed file, unpacked once."""
    sha256 = cache_result("sha256", [archive], data_dir, partial(sha256_file, archive))
    name = f"{archive.name}-{short_hash([VERSION, str(archive.absolute()), sha256])}"
    folder = data_dir / "prepared" / name
    create_folder(folder, partial(unpack_into, archive=archive))
    return folder


def unpack_into(folder: Path, archive: Path) -> None:
    """Unpack a file into an empty folder; DataError if it is damaged or leads outside of it."""
    if archive.suffix == LINES:
        unpack_lines(archive, folder)
        return
    try:
        if archive.name.endswith(TARS):
            unpack_tar(archive, folder)
        elif archive.suffix == ".zip":
            unpack_zip(archive, folder)
        else:
            unpack_compressed(archive, folder / archive.stem)
    # Damaged numbers and names cause errors of many kinds.
    except Exception as error:
        if getattr(error, "errno", None) not in DAMAGE_CODES:
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{archive}: damaged, or not an archive ({reason}); replace it") from error


def unpack_tar(archive: Path, folder: Path) -> None:
    with tarfile.open(archive) as tar:
        tar.extractall(folder, filter="data")
        # tarfile takes a header that it cannot read for the end, which is of zeros.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {tar.offset:,}")
        # The checksum of a compressed tar is behind its padding, which tarfile does not read.
        while tar.fileobj.read(LONGEST):
            pass


def unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        n_listed = len(bundle.infolist())
        n_written = count_members(archive)
        # A damaged length of one entry hides those after it.
        if n_written not in (ZIP64, n_listed & 0xFFFF):
            raise zipfile.BadZipFile(f"{n_listed:,} of {n_written:,} members are listed")
        for member in bundle.infolist():
            path = PurePosixPath(member.filename)
            # `extract` would write it inside of the folder, under another name.
            if path.is_absolute() or ".." in path.parts:
                raise zipfile.BadZipFile(f"{member.filename!r} would be outside of the folder")
            if stat.S_ISLNK(member.external_attr >> 16):
                raise zipfile.BadZipFile(f"{member.filename!r} is a link")
            bundle.extract(member, folder)


def count_members(archive: Path) -> int:
    """Return the number of members, modulo 65,536, in the record that ends a zip."""
    with archive.open("rb") as file:
        # The record has 22 bytes and a comment of up to 64 KB.
        file.seek(max(archive.stat().st_size - (22 + 0xFFFF), 0))
        _, _, record = file.read().rpartition(b"PK\5\6")
    return int.from_bytes(record[6:8], "little")


def unpack_compressed(archive: Path, target: Path) -> None:
    with COMPRESSED[archive.suffix](archive) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


def unpack_lines(path: Path, folder: Path) -> None:
    """Write the texts of JSON lines into one file, and the end of each into another."""
    ends = array("q")
    n_byte = 0
    with path.open("rb") as lines, (folder / TEXT).open("wb") as file:
        for number, line in enumerate(iter(partial(lines.readline, LONGEST), b""), 1):
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


def read_ends(folder: Path) -> array:
    """Return where each text that `unpack_lines` wrote ends."""
    return array("q", (folder / ENDS).read_bytes())
