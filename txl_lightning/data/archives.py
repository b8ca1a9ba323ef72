"""Contents of folders and packed files of a user: tar, zip, gz, bz2, xz and zst, all untrusted."""

import bz2
import errno
import gzip
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from ..errors import DataError, print_notice
from ..files import (
    OWN_MARKS,
    RUN_FILE,
    STORE_FILE,
    SWEEP_FILE,
    cache_result,
    create_folder,
    has_ending,
    has_mark,
    hash_file,
    hash_values,
    read_json,
    write_json,
)

TARS = (".tar", ".tgz", ".tar.gz", ".tar.bz2", ".tar.xz")
ARCHIVES = (*TARS, ".zip")
PACKED = (".tar.zst", ".7z", ".rar", ".lz4", ".br")  # endings of files that nothing here unpacks
ZSTANDARD = ("compression.zstd", "backports.zstd")  # a module of Python 3.14, and its backport
BYTES_AT_ONCE = 64 << 20  # bytes that are read at once
# Part of the name of an unpacked folder: increment it when other files are unpacked.
UNPACKED_VERSION = 4
# In a folder of what is unpacked: its files, and their checksum.
MEMBERS = "files"
CONTENTS = "contents.json"
NAME_LENGTH = 50  # characters of an archive in the name of its folder
ENCRYPTED = 1  # flag of a member of a zip
ZIP64 = 0xFFFF  # number of members that the end of a zip has if another record has the number
# System errors that a damaged archive causes by wrong offsets and names; all others are the disk's.
DAMAGE_CODES = {None, errno.EINVAL, errno.ENAMETOOLONG, errno.EISDIR, errno.ENOTDIR, errno.EEXIST}
# Folders in the data directory with prepared texts, archives and downloaded corpora.
OWN_FOLDERS = ("prepared", "downloads", "tiny_shakespeare", "enwik8", "text8", "wikitext2")
OWN_FOLDERS += ("wikitext103", "ptb", "ptb_char", "lm1b")
OURS = {RUN_FILE: "a run", SWEEP_FILE: "a sweep"}
OURS |= {STORE_FILE: "a prepared text, which is given as data.store"}
"""What a folder is that has a file of ours."""


def open_zstandard(path: Path) -> BinaryIO:
    for name in ZSTANDARD:
        with suppress(ModuleNotFoundError):
            return import_module(name).open(path, "rb")
    raise NotImplementedError("it needs Python 3.14, or pip install backports.zstd")


COMPRESSED = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open, ".zst": open_zstandard}
UNPACKED = (*ARCHIVES, *COMPRESSED)  # endings of files that are unpacked


def open_compressed(path: Path) -> BinaryIO:
    """Return the content of a file with an ending of COMPRESSED, which may be its whole name."""
    [open_content] = [COMPRESSED[ending] for ending in COMPRESSED if has_ending(path, [ending])]
    return open_content(path)


def unpack_once(
    archive: Path,
    data_dir: Path,
    unpack_into: Callable[[Path, Path], object] | None = None,
    options: Sequence[Any] = (),
) -> Path:
    """Return the folder with the content of a packed file, unpacked once with each options.

    If files in it have changed, it is unpacked again, with a message.
    """
    sha256 = cache_result("sha256", [archive], data_dir, partial(hash_file, archive))
    key = [UNPACKED_VERSION, str(archive.absolute()), sha256, *options]
    # A longer name might leave no room for the hash.
    folder = data_dir / "prepared" / f"{archive.name[:NAME_LENGTH]}-{hash_values(key)}"

    def fill(part: Path) -> None:
        files = part / MEMBERS
        files.mkdir()
        (unpack_into or unpack_archive)(archive, files)
        write_json({"checksum": hash_contents(files)}, part / CONTENTS)

    was_there = folder.is_dir()
    if create_folder(folder, fill, partial(is_whole, folder, data_dir)) and was_there:
        print_notice(f"warning: {folder}: damaged; unpacked again")
    return folder / MEMBERS


def is_whole(folder: Path, data_dir: Path) -> bool:
    """Return True for a folder with the files that were unpacked; they are read once."""
    files = folder / MEMBERS
    try:
        written = read_json(folder / CONTENTS, {"checksum": str})["checksum"]
        compute = partial(hash_contents, files)
        return cache_result("contents", list_unpacked(files), data_dir, compute) == written
    except (DataError, OSError):
        return False


def hash_contents(folder: Path) -> str:
    paths = list_unpacked(folder)
    return hash_values([[str(path.relative_to(folder)), hash_file(path)] for path in paths])


def list_unpacked(folder: Path) -> list[Path]:
    names = (os.path.join(place, name) for place, _, files in os.walk(folder) for name in files)
    return [Path(name) for name in sorted(names) if os.path.isfile(name)]


def unpack_archive(archive: Path, folder: Path) -> None:
    """Unpack a file into an empty folder; DataError if it is damaged or leads outside of it."""
    with explain_damage(archive):
        if has_ending(archive, TARS):
            unpack_tar(archive, folder)
        elif has_ending(archive, [".zip"]):
            unpack_zip(archive, folder)
        else:
            unpack_compressed(archive, folder / archive.stem)


@contextmanager
def explain_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except NotImplementedError as error:
        # It is whole, but Python's zipfile does not know how it is packed.
        raise DataError(f"{archive}: not supported ({error}); unpack it first") from error
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
        while tar.fileobj.read(BYTES_AT_ONCE):
            pass


def unpack_zip(archive: Path, folder: Path) -> None:
    with zipfile.ZipFile(archive) as bundle:
        n_listed = len(bundle.infolist())
        n_written = count_members(archive)
        # A damaged length of one entry hides those after it.
        if n_written not in (ZIP64, n_listed & 0xFFFF):
            raise zipfile.BadZipFile(f"{n_listed:,} of {n_written:,} members are listed")
        for member in bundle.infolist():
            if member.flag_bits & ENCRYPTED:
                raise NotImplementedError("it is encrypted")
            # Some programs for Windows write backslashes, against the format's description.
            member.filename = member.filename.replace("\\", "/")
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
    with open_compressed(archive) as packed, target.open("wb") as file:
        shutil.copyfileobj(packed, file)


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return the files in a folder by path, without hidden files, and those that this package has
    written: runs, stores, sweeps, and texts in data_dir.

    Links are followed, as by tar -h, and each file and folder counts once; links to nothing and
    special files are among the files. DataError for a folder that is itself a run, store or sweep.
    """
    for name, kind in OURS.items():
        if has_mark(folder, name):
            expected = "expected a text file, a folder or an archive"
            raise DataError(f"{folder}: {kind}, as it has {name}; {expected}")
    seen = {os.path.realpath(data_dir / name) for name in OWN_FOLDERS}
    files = []
    found = [folder]
    links = []
    while found or links:
        # Links come last: a file counts under its own name.
        path = found.pop() if found else links.pop()
        # Unlike Path.resolve, it does not raise for a link to itself.
        real = os.path.realpath(path)
        if path != folder and (real in seen or any(has_mark(path, name) for name in OWN_MARKS)):
            continue
        seen.add(real)
        if path.is_dir():
            for each in sorted(path.iterdir(), reverse=True):
                if not each.name.startswith("."):
                    (links if each.is_symlink() else found).append(each)
        else:
            files.append(path)
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in files))
