"""A user's own text: a file, three files, or a folder or tar of documents."""

import lzma
import os
import shutil
import tarfile
import zlib
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import accumulate, pairwise
from pathlib import Path

from ..errors import DataError
from ..files import create_folder
from .documents import SPLITS, FileSlice, Splits, file_stamp, short_hash, whole_file

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".7z")
# Limits of the unpacked size: per byte of the tar, and a size that is always allowed.
GROWTH = 200
HARMLESS = 64 << 20
# Errors that damaged numbers and names cause in Python.
DAMAGE = (tarfile.TarError, zlib.error, lzma.LZMAError, EOFError, KeyError, MemoryError)
DAMAGE += (OverflowError, ValueError, OSError)
# Names of a split within file or folder names, between dots.
NAMES = {"train": {"train"}, "val": {"val", "valid", "validation", "dev"}, "test": {"test"}}


def split_user_files(paths: Sequence[Path], fractions: Sequence[float], data_dir: Path) -> Splits:
    """Return the splits of one file, folder or tar, or of three for train, val and test.

    One text is cut by `fractions`, unless its file names give the splits; a tar is unpacked under
    `data_dir`. DataError if nothing can be read.
    """
    if len(paths) == len(SPLITS):
        return {name: find_slices(path, data_dir) for name, path in zip(SPLITS, paths, strict=True)}
    if len(paths) != 1:
        expected = "expected one, or three: train, val and test"
        raise DataError(f"data.path: invalid number of files {len(paths)}; {expected}")
    documents = find_documents(paths[0], data_dir)
    with removed_if_refused(paths[0], data_dir):
        named = split_by_name(paths[0], documents)
    return named or split_by_fractions([*documents.values()], fractions)


def has_documents(path: Path) -> bool:
    """Return True if each file in it is a document."""
    return path.is_dir() or path.name.endswith(TARS)


def find_slices(path: Path, data_dir: Path) -> list[FileSlice]:
    """Return the whole text of a file, a folder or a tar."""
    return [*find_documents(path, data_dir).values()]


def find_documents(path: Path, data_dir: Path) -> dict[str, FileSlice]:
    """Return the texts in a file, a folder or a tar, by name; DataError if there are none."""
    if not path.exists():
        raise DataError(f"{path}: no such file; data.path must name a text file, a folder or a tar")
    if path.is_file() and path.name.endswith(TARS):
        folder = unpacked_folder(path, data_dir)
        create_folder(folder, lambda part: unpack_tar(path, part))
        files = list_files(folder, data_dir)
    elif path.is_dir():
        files = list_files(path, data_dir)
    elif path.suffix in PACKED:
        raise DataError(f"{path}: packed; unpack it first (a tar of documents may be packed)")
    else:
        files = {path.name: path}
    documents = {name: part for name, file in files.items() for part in whole_file(file)}
    with removed_if_refused(path, data_dir):
        if not documents:
            raise DataError(f"{path}: there is no text in it; data.path must name some")
    return documents


def unpacked_folder(archive: Path, data_dir: Path) -> Path:
    return data_dir / "prepared" / f"{archive.name}-{short_hash(file_stamp(archive)[:3])}"


@contextmanager
def removed_if_refused(path: Path, data_dir: Path) -> Iterator[None]:
    """Remove the unpacked copy of a tar if a DataError refuses it."""
    try:
        yield
    except DataError:
        shutil.rmtree(unpacked_folder(path, data_dir), ignore_errors=True)
        raise


def unpack_tar(archive: Path, folder: Path) -> None:
    """Unpack an untrusted tar; DataError if too large, damaged, or with other than plain files."""
    left = limit = max(HARMLESS, GROWTH * archive.stat().st_size)
    try:
        with tarfile.open(archive) as tar:
            for member in tar:
                left -= member.size
                if left < 0:
                    raise DataError(f"{archive}: unpacks to more than {limit:,} bytes; replace it")
                # Negative sizes cause endless loops in older versions of tarfile.
                if member.size < 0 or not (member.isreg() or member.isdir()):
                    where = f"{archive}: member {member.name!r}"
                    raise DataError(f"{where} is no plain file; leave it out")
                tar.extract(member, folder, filter="data")
            # tarfile treats an unreadable header as the end.
            tar.fileobj.seek(tar.offset)
            if tar.fileobj.read(tarfile.BLOCKSIZE).strip(b"\0"):
                raise tarfile.ReadError(f"no header at byte {tar.offset:,}")
    except DAMAGE as error:
        # An OSError with an errno comes from the disk, not from the archive's content.
        if isinstance(error, DataError) or getattr(error, "errno", None):
            raise
        reason = " ".join(str(error).split())
        raise DataError(f"{archive}: damaged or no archive ({reason}); replace it") from error


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return the files in a folder by path, without hidden ones, links, and ours in `data_dir`."""
    ours = [data_dir.resolve() / name for name in ("prepared", "downloads")]
    found = {}
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        visible = [name for name in folders if not name.startswith(".")]
        # os.walk visits only the folders that remain in its list.
        folders[:] = [name for name in visible if (here / name).resolve() not in ours]
        paths = (here / name for name in files if not name.startswith("."))
        plain = (path for path in paths if path.is_file() and not path.is_symlink())
        found |= {path.relative_to(folder).as_posix(): path for path in plain}
    return dict(sorted(found.items()))


def split_by_name(path: Path, documents: Mapping[str, FileSlice]) -> Splits:
    """Return the documents of each split if names give all three; then every name must give one."""
    named = {name: split_named_by(name) for name in documents}
    if not set(named.values()) >= set(SPLITS):
        return {}
    if stray := next((name for name in named if named[name] is None), None):
        raise DataError(f"{path}: {stray} is not in train, val or test, but others are; move it")
    return {split: [documents[n] for n in documents if named[n] == split] for split in SPLITS}


def split_named_by(name: str) -> str | None:
    """Return the split that a path names: as a folder, or between dots in the file name."""
    *folders, file = name.split("/")
    parts = (*folders, *file.split("."))
    return next((split for part in parts for split in SPLITS if part in NAMES[split]), None)


def split_by_fractions(slices: Sequence[FileSlice], fractions: Sequence[float]) -> Splits:
    """Split slices by fractions: whole slices by their first byte, a single one at a character."""
    sizes = [part.n_byte for part in slices]
    first, second = fractions[0] * sum(sizes), (fractions[0] + fractions[1]) * sum(sizes)
    if len(slices) == 1:
        [part] = slices
        inner = [find_character(part, part.start + int(cut)) for cut in (first, second)]
        cuts = pairwise([part.start, *inner, part.stop])
        return {name: [FileSlice(part.path, *cut)] for name, cut in zip(SPLITS, cuts, strict=True)}
    starts = [0, *accumulate(sizes)][:-1]
    val, test = bisect_left(starts, first), bisect_left(starts, second)
    if len(slices) >= len(SPLITS):
        # A nonzero fraction gets at least one document.
        least = [int(fraction > 0) for fraction in fractions]
        val = min(max(val, least[0]), len(slices) - least[1] - least[2])
        test = min(max(test, val + least[1]), len(slices) - least[2])
    return {"train": [*slices[:val]], "val": [*slices[val:test]], "test": [*slices[test:]]}


def find_character(part: FileSlice, offset: int) -> int:
    """Return the first offset at or after this one that is not inside a UTF-8 character."""
    ahead = next(FileSlice(part.path, offset, min(offset + 3, part.stop)).chunks(), b"")
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
