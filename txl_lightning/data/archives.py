"""Files out of zips and tars, copied as streams under names of our own."""

import bz2
import gzip
import lzma
import os
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO

from ..errors import DataError
from .checksums import difference
from .fingerprint import file_stamp, short_hash

CHUNK = 1 << 20
# What one byte of an archive may become, and what any archive may; text shrinks tenfold at most.
GROWTH = 200
HARMLESS = 64 << 20
ZIPS = (b"PK\x03\x04", b"PK\x05\x06")
COMPRESSIONS: dict[bytes, Callable[[Path], IO[bytes]]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
}
KINDS = {
    tarfile.SYMTYPE: "a symbolic link",
    tarfile.LNKTYPE: "a hard link",
    tarfile.CHRTYPE: "a device",
    tarfile.BLKTYPE: "a device",
    tarfile.FIFOTYPE: "a pipe",
    tarfile.DIRTYPE: "a directory",
}
# Damaged numbers and names reach us as what they do to Python.
CORRUPT = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    EOFError,
    MemoryError,
    NotImplementedError,
    OverflowError,
    ValueError,
)


@dataclass(frozen=True)
class Member:
    """A file in an archive, known by what it must be."""

    name: str
    """Its name inside the archive."""
    size: int | None
    """Bytes; None where nobody published it."""
    checksum: str | None
    """`sha256:...` or `md5:...`; None likewise."""


def take(archive: Path, member: Member, target: Path) -> Path:
    """`target`, which is the member from then on: copied aside, checked, renamed.

    Args:
        archive: A zip, or a tar that may be compressed by gz, bz2 or xz.
        member: What is wanted; of several with its name, the first.
        target: Where it belongs; what is there is replaced.

    Raises:
        DataError: the archive is broken, the member is missing, is no plain file, is another one
            or yields too much, or the target cannot be written.
    """
    _take(archive, {member: target})
    return target


def take_all(archive: Path, wanted: Mapping[str, Path]) -> None:
    """Several members in one pass, each to the target that `wanted` has for its name.

    Raises:
        DataError: as `take`; what came before the fault is in place.
    """
    _take(archive, {Member(name, None, None): target for name, target in wanted.items()})


def plain_tar(archive: Path, folder: Path) -> Path:
    """The archive as an uncompressed tar: itself, or unpacked once into `folder`.

    Raises:
        DataError: it is no tar, is broken or yields too much, or `folder` cannot be written.
    """
    with _one_line(archive, folder):
        with _opened(archive) as stream:
            _refuse_other_than_tar(archive, stream.read(tarfile.BLOCKSIZE))
        if _compression(archive) is None:
            return archive
        target = folder / f"{archive.name}-{short_hash(file_stamp(archive))}.tar"
        if not target.exists():
            with _opened(archive) as stream, _aside(target) as file:
                _copy(stream, file, _bound(archive), f"{archive}: it")
    return target


def tar_spans(tar: Path) -> list[tuple[str, int, int]]:
    """Where the files of an uncompressed tar lie: (name, start, stop) in bytes, by name.

    Hidden files and empty ones are left out; of several with one name, the last counts.

    Raises:
        DataError: the tar is broken, or has a link, a device or a name that leads out of it.
    """
    spans = {}
    with _one_line(tar), tarfile.open(tar, "r:") as members:
        for member in members:
            _refuse_path(tar, member.name)
            if member.isdir():
                continue
            _refuse_kind(tar, member.name, _kind(member))
            spans[member.name] = (member.offset_data, member.offset_data + member.size)
        # tarfile takes a header that it cannot read for the end.
        members.fileobj.seek(members.offset)
        if members.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {members.offset:,}")
    return sorted(
        (name, start, stop)
        for name, (start, stop) in spans.items()
        if stop > start and not any(part[0] == "." for part in PurePosixPath(name).parts)
    )


def _take(archive: Path, wanted: Mapping[Member, Path]) -> None:
    named = {member.name: (member, target) for member, target in wanted.items()}
    for name, declared, stream in _files(archive, named):
        member, target = named[name]
        most = min(declared, _bound(archive)) if member.size is None else member.size
        with _one_line(archive, target.parent), _aside(target) as file:
            _copy(stream, file, most, f"{archive}: the member {name!r}")
            file.flush()
            if wrong := difference(Path(file.name), member.size, member.checksum):
                what = f"the member {name!r} is another file ({wrong})"
                raise DataError(f"{archive}: {what}; replace the archive")


def _files(archive: Path, names: Collection[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    """The wanted members in the archive's order: (name, declared bytes, content)."""
    for name in names:
        _refuse_path(archive, name)
    left = set(names)
    with _one_line(archive):
        with archive.open("rb") as file:
            is_zip = file.read(4) in ZIPS
        for name, declared, stream in (_zipped if is_zip else _tarred)(archive, names):
            if name in left:
                left.remove(name)
                yield name, declared, stream
            if not left:
                return
    raise DataError(f"{archive}: has no member {min(left)!r}; replace the archive")


def _zipped(archive: Path, names: Collection[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    with zipfile.ZipFile(archive) as members:
        for member in members.infolist():
            if member.filename not in names:
                continue
            mode = member.external_attr >> 16
            plain = stat.S_IFMT(mode) in (0, stat.S_IFREG) and not member.is_dir()
            kind = "" if plain else "a link, a directory or a device"
            _refuse_kind(archive, member.filename, "encrypted" if member.flag_bits & 1 else kind)
            with members.open(member) as stream:
                yield member.filename, member.file_size, stream


def _tarred(archive: Path, names: Collection[str]) -> Iterator[tuple[str, int, IO[bytes]]]:
    bound = _bound(archive)
    with _opened(archive) as file, tarfile.open(fileobj=file, mode="r|", bufsize=CHUNK) as members:
        for member in members:
            # A size that cannot be would be read through without end, wanted or not.
            if member.size > bound:
                raise _too_much(f"{archive}: the member {member.name!r}", bound)
            if member.name not in names:
                continue
            _refuse_kind(archive, member.name, _kind(member))
            with members.extractfile(member) as stream:
                yield member.name, member.size, stream


def _compression(archive: Path) -> Callable[[Path], IO[bytes]] | None:
    with archive.open("rb") as file:
        start = file.read(max(map(len, COMPRESSIONS)))
    return next((COMPRESSIONS[magic] for magic in COMPRESSIONS if start.startswith(magic)), None)


def _opened(archive: Path) -> IO[bytes]:
    """What it holds, decompressed."""
    decompress = _compression(archive)
    return archive.open("rb") if decompress is None else decompress(archive)


def _bound(archive: Path) -> int:
    """Bytes that nothing in an archive may exceed unless it is known to."""
    return max(HARMLESS, GROWTH * archive.stat().st_size)


def _copy(stream: IO[bytes], file: BinaryIO, most: int, what: str) -> None:
    left = most
    while chunk := stream.read(min(CHUNK, left + 1)):
        left -= len(chunk)
        if left < 0:
            raise _too_much(what, most)
        file.write(chunk)


def _too_much(what: str, most: int) -> DataError:
    return DataError(f"{what} unpacks to more than {most:,} bytes; replace the archive")


@contextmanager
def _aside(target: Path) -> Iterator[BinaryIO]:
    """A file that becomes `target` if all goes well, and nothing otherwise."""
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f"{target.name}.{os.getpid()}.new")
    try:
        with aside.open("wb") as file:
            yield file
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)


@contextmanager
def _one_line(archive: Path, folder: Path | None = None) -> Iterator[None]:
    """What goes wrong with an archive, or with the folder it is unpacked into, as a DataError."""
    try:
        yield
    except DataError:
        raise
    except (*CORRUPT, OSError) as error:
        reason = getattr(error, "strerror", None) or " ".join(str(error).split())
        if folder and getattr(error, "errno", None) and str(error.filename) != str(archive):
            what = f"cannot be unpacked into {folder} ({reason}); make room or set data.data_dir"
        else:
            what = f"cannot be read as an archive ({reason}); replace it"
        raise DataError(f"{archive}: {what}") from error


def _refuse_other_than_tar(archive: Path, start: bytes) -> None:
    try:
        tarfile.TarInfo.frombuf(start, tarfile.ENCODING, "surrogateescape")
    except tarfile.HeaderError as error:
        allowed = "it must be a tar, plain or compressed by gz, bz2 or xz"
        raise DataError(f"{archive}: not a tar ({error}); {allowed}") from error


def _refuse_path(archive: Path, name: str) -> None:
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise DataError(f"{archive}: the member {name!r} leads out of it; replace the archive")


def _refuse_kind(archive: Path, name: str, kind: str) -> None:
    if kind:
        what = f"the member {name!r} is {kind}; only plain files are taken"
        raise DataError(f"{archive}: {what}")


def _kind(member: tarfile.TarInfo) -> str:
    """What it is, or nothing for a plain file."""
    if member.issparse():
        return "a sparse file"
    # Older tarfiles go back by it, for ever.
    if member.size < 0:
        return "of a negative size"
    return "" if member.isreg() else KINDS.get(member.type, "of an unknown kind")
