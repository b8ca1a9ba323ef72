"""A user's own text: a file, three files, or a folder or archive of documents."""

import os
import shutil
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path

from ..errors import DataError, print_notice
from ..files import create_folder, sha256_file, short_hash
from ..signals import is_child
from .documents import (
    COMPRESSED,
    LINES,
    SPLITS,
    TARS,
    FileSlice,
    Splits,
    cache_result,
    find_texts,
    find_unpacker,
    unpack_lines,
    whole_file,
)

Documents = Mapping[str, list[FileSlice]]  # path of a file -> the texts in it
Contents = dict[str, list[FileSlice] | None]  # the same, with None for a file that is not text
# Endings of files with several texts.
SEVERAL = (*TARS, ".zip", LINES, *(f"{LINES}{ending}" for ending in COMPRESSED))
# Endings of files of ids, and of files that lie beside them.
SUFFIXES = (".npy", ".bin", ".ds")
BESIDE_IDS = (".idx", ".index", ".json", ".pkl", ".md", ".py")
PACKED = (".zst", ".7z")
NUL_WITHIN = 8000  # bytes; a file without a NUL in its first bytes is text, as in git
# Names of a split within file or folder names, between dots.
NAMES = {"train": {"train"}, "val": {"val", "valid", "validation", "dev"}, "test": {"test"}}


def split_user_files(paths: Sequence[Path], fractions: Sequence[float], data_dir: Path) -> Splits:
    """Return the splits of one file, folder or archive, or of three for train, val and test.

    One text is cut by `fractions`, unless its file names give the splits; archives are unpacked
    under `data_dir`. DataError if nothing can be read.
    """
    if len(paths) == len(SPLITS):
        return {name: find_slices(path, data_dir) for name, path in zip(SPLITS, paths, strict=True)}
    if len(paths) != 1:
        expected = "expected one, or three: train, val and test"
        raise DataError(f"data.path: invalid number of files {len(paths)}; {expected}")
    documents = find_documents(paths[0], data_dir)
    with remove_if_refused(paths[0], data_dir):
        splits = split_by_name(paths[0], documents)
    return splits or split_by_fractions([*chain(*documents.values())], fractions)


def has_documents(path: Path) -> bool:
    """Return True if a path may contain several documents."""
    return path.is_dir() or path.name.endswith(SEVERAL)


def find_slices(path: Path, data_dir: Path) -> list[FileSlice]:
    """Return the whole text of a file, a folder or an archive."""
    return [*chain(*find_documents(path, data_dir).values())]


def find_documents(path: Path, data_dir: Path) -> Documents:
    """Return the texts in a file, a folder or an archive; DataError if there are none."""
    try:
        if not path.exists():
            expected = "data.path must name a text file, a folder or an archive"
            raise DataError(f"{path}: no such file; {expected}")
        if path.suffix in PACKED:
            advice = "unpack it first (.zip, .gz, .bz2 and .xz need not be)"
            raise DataError(f"{path}: packed; {advice}")
        with remove_if_refused(path, data_dir):
            contents = (find_in_folder if path.is_dir() else find_in_file)(path, data_dir)
            documents = {name: slices for name, slices in contents.items() if slices}
            skipped = [name for name, slices in contents.items() if slices is None]
            names = f"{', '.join(skipped[:5])}{', ...' * (len(skipped) > 5)}"
            if not documents:
                problem = f"no text in it{f', only {names}' * bool(names)}"
                ids = ", data.ids ids" * any(name.endswith(SUFFIXES) for name in skipped)
                raise DataError(f"{path}: {problem}; data.path must name a text{ids}")
    except OSError as error:
        # An error amid a file does not name it.
        name = error.filename or "data.path"
        raise DataError(f"{name}: cannot be read ({error.strerror})") from error
    if skipped and not is_child():
        print_notice(f"warning: {path}: skipped, because not text: {names} ({len(skipped):,})")
    return documents


def find_in_file(path: Path, data_dir: Path) -> Contents:
    """Return the texts in a file, unpacked if necessary."""
    # Also of an archive: unpacking it is writing, and its errors are those of writing.
    whole = whole_file(path)
    if (unpack := find_unpacker(path)) is None:
        return {path.name: whole}
    folder = find_unpacked_folder(path, data_dir)
    create_folder(folder, partial(unpack, path))
    if unpack is unpack_lines:
        return {path.name: find_texts(folder)}
    return find_in_folder(folder, data_dir, unpacked=True)


def find_in_folder(folder: Path, data_dir: Path, unpacked: bool = False) -> Contents:
    """Return the texts in a folder by path, None for a file that is not text.

    Packed files are unpacked, except in an archive (`unpacked`): nested ones grow without limit.
    """
    contents: Contents = {}
    for name, path in list_files(folder, data_dir).items():
        if path.suffix == LINES or (find_unpacker(path) and not unpacked):
            # Inside the copy of the outer archive, so that both are removed together.
            inner = find_in_file(path, folder / ".unpacked" if unpacked else data_dir)
            contents |= {f"{name}/{part}": slices for part, slices in inner.items()}
        else:
            with path.open("rb") as file:
                is_text = b"\0" not in file.read(NUL_WITHIN)
            contents[name] = whole_file(path) if is_text else None
    return contents


def find_unpacked_folder(archive: Path, data_dir: Path) -> Path:
    sha256 = cache_result("sha256", [archive], data_dir, partial(sha256_file, archive))
    return data_dir / "prepared" / f"{archive.name}-{short_hash([str(archive.absolute()), sha256])}"


@contextmanager
def remove_if_refused(path: Path, data_dir: Path) -> Iterator[None]:
    """Remove the unpacked copies of an archive, or of those in a folder, after a DataError."""
    try:
        yield
    except DataError:
        paths = list_files(path, data_dir).values() if path.is_dir() else [path]
        for packed in filter(find_unpacker, paths):
            shutil.rmtree(find_unpacked_folder(packed, data_dir), ignore_errors=True)
        raise


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return the files in a folder by path, without hidden ones, links, and our own in data_dir."""
    ours = [data_dir.resolve() / name for name in ("prepared", "downloads")]
    paths = []
    for parent, folders, files in os.walk(folder, onerror=raise_error):
        visible = [name for name in folders if not name.startswith(".")]
        # os.walk visits only the folders that remain in its list.
        folders[:] = [name for name in visible if Path(parent, name).resolve() not in ours]
        paths += [Path(parent, name) for name in files if not name.startswith(".")]
    plain = [path for path in paths if path.is_file() and not path.is_symlink()]
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in plain))


def raise_error(error: OSError) -> None:
    # By itself, os.walk leaves out a folder that cannot be read.
    raise error


def split_by_name(path: Path, documents: Documents) -> Splits:
    """Return the documents of each split, or {} unless there are names of all three splits.

    A path names a split as a folder, or between dots in the file name.
    """
    splits: Splits = {split: [] for split in SPLITS}
    named: dict[str, str | None] = {}
    for name, slices in documents.items():
        *folders, file = name.split("/")
        if split := find_split((*folders, *file.split("."))):
            splits[split] += slices
        named[name] = split
    if not all(splits.values()):
        return {}
    require_split(path, named)
    return splits


def find_split(words: Iterable[str]) -> str | None:
    """Return the split that the first of these words that names one names, or None."""
    return next((split for word in words for split in SPLITS if word in NAMES[split]), None)


def require_split(path: Path, named: Mapping[str, str | None]) -> None:
    """Raise a DataError for the first file without a split, by file."""
    for name, split in named.items():
        if split is None:
            stray = f"{name} is not in train, val or test, but others are"
            raise DataError(f"{path}: {stray}; move it")


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
