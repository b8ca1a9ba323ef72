"""Files out of archives: members of a corpus's archive, and all of a user's own tar."""

import lzma
import shutil
import tarfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from ..errors import DataError, StorageError
from ..files import replace_file

# Bytes that one byte of a user's tar may become, and that any tar may; text shrinks tenfold.
GROWTH = 200
HARMLESS = 64 << 20
# Damaged numbers and names are seen by what they do to Python.
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError)
DAMAGE += (KeyError, MemoryError, OverflowError, ValueError, OSError)


def extract_members(archive: Path, targets: Mapping[str, Path]) -> None:
    """Copy members of a zip or tar, by their names, to their targets; in one pass.

    Raises:
        DataError: the archive is damaged, or has no such member.
    """
    with _explain_damage(archive):
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                for name, target in targets.items():
                    with zipped.open(name) as stream:
                        _write_stream(stream, target)
            return
        missing = dict(targets)
        with tarfile.open(archive) as tar:
            for member in tar:
                if member.isreg() and member.name in missing:
                    _write_stream(tar.extractfile(member), missing.pop(member.name))
        for name in missing:
            raise KeyError(f"there is no {name}")


def unpack_tar(archive: Path, folder: Path) -> None:
    """Unpack an untrusted tar of plain files and folders.

    Raises:
        DataError: it is damaged or too large, or has a link, a device or a path that leads out.
    """
    left = limit = max(HARMLESS, GROWTH * archive.stat().st_size)
    with _explain_damage(archive), tarfile.open(archive) as tar:
        for member in tar:
            left -= member.size
            if left < 0:
                raise DataError(f"{archive}: unpacks to more than {limit:,} bytes; replace it")
            # Negative sizes lead older versions of tarfile in circles.
            if member.size < 0 or not (member.isreg() or member.isdir()):
                raise DataError(f"{archive}: member {member.name!r} is no plain file; leave it out")
            tar.extract(member, folder, filter="data")
        # tarfile takes a header that it cannot read for the end.
        tar.fileobj.seek(tar.offset)
        if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError(f"no header at byte {tar.offset:,}")


def _write_stream(stream: IO[bytes], target: Path) -> None:
    def write(part: Path) -> None:
        with part.open("wb") as file:
            shutil.copyfileobj(stream, file)

    replace_file(target, write)


@contextmanager
def _explain_damage(archive: Path) -> Iterator[None]:
    try:
        yield
    except DAMAGE as error:
        # An OSError with a number is one of the disk, not of what is in the archive.
        if isinstance(error, DataError | StorageError) or getattr(error, "errno", None):
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{archive}: damaged or no archive ({reason}); replace it") from error
