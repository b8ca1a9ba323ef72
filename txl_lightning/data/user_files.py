"""One's own text: a file, three files, or a folder or tar of documents."""

import os
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path

from ..errors import DataError
from .archives import plain_tar, tar_spans
from .documents import SPLITS, FileSlice, whole_file
from .fingerprint import cached_by_mtime

TARS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz")
PACKED = (".gz", ".bz2", ".xz", ".zip", ".zst", ".7z")
NAMES = {"train": {"train"}, "val": {"val", "valid", "validation", "dev"}, "test": {"test"}}
"""What a split may be called in the name of its file or folder, between dots."""


def split_user_files(
    paths: Sequence[Path], fractions: Sequence[float], root: Path
) -> dict[str, list[FileSlice]]:
    """The splits of a text that a user names.

    Args:
        paths: one file, folder or tar; or one of them for each of train, val and test.
        fractions: how one text is cut, unless it names its splits itself.
        root: the folder where data lives; a packed tar is unpacked there.

    Raises:
        DataError: nothing can be read from it.
    """
    if len(paths) == len(SPLITS):
        return {name: find_slices(path, root) for name, path in zip(SPLITS, paths, strict=True)}
    if len(paths) != 1:
        raise DataError(
            f"data.path: invalid number of files {len(paths)}; expected one, or three: "
            "train, val and test"
        )
    found = find_documents(paths[0], root)
    named = split_by_name(paths[0], found)
    return named or split_by_fractions([span for _, span in found], fractions)


def has_documents(path: Path) -> bool:
    """Whether each file in it is a text of its own."""
    return path.is_dir() or path.name.endswith(TARS)


def find_slices(path: Path, root: Path) -> list[FileSlice]:
    """All the text of a file, a folder or a tar."""
    return [span for _, span in find_documents(path, root)]


def find_documents(path: Path, root: Path) -> list[tuple[str, FileSlice]]:
    """The texts in a file, a folder or a tar, by name."""
    if path.is_dir():
        found = [(name, span) for name, file in list_files(path, root) for span in whole_file(file)]
    elif path.name.endswith(TARS) and path.is_file():
        tar = plain_tar(path, root / "prepared")
        index = cached_by_mtime("index", [tar], root, lambda: tar_spans(tar))
        found = [(name, FileSlice(tar, start, stop)) for name, start, stop in index]
    else:
        found = [(path.name, span) for span in plain_file(path)]
    if not found:
        raise DataError(f"{path}: there is no text in it; data.path must name some")
    return found


def plain_file(path: Path) -> list[FileSlice]:
    """A text file, once it is sure that something can be read from it."""
    if not path.exists():
        raise DataError(f"{path}: no such file; data.path must name a text file, a folder or a tar")
    if path.suffix in PACKED:
        raise DataError(f"{path}: packed; unpack it first (a tar of documents may be packed)")
    if path.stat().st_size == 0:
        raise DataError(f"{path}: the file is empty; data.path must name a file with text")
    return whole_file(path)


def list_files(folder: Path, root: Path) -> list[tuple[str, Path]]:
    """The documents in a folder, by path.

    Hidden files are not read, links not followed, and what we keep under `root` is no text.
    """
    ours = [root.resolve() / name for name in ("prepared", "downloads")]
    found = {}
    for parent, folders, files in os.walk(folder):
        here = Path(parent)
        folders[:] = [name for name in folders if (here / name).resolve() not in ours]
        paths = (here / name for name in files if not (here / name).is_symlink())
        found |= {path.relative_to(folder).as_posix(): path for path in paths if path.is_file()}
    return [
        (name, found[name])
        for name in sorted(found)
        if not any(part.startswith(".") for part in name.split("/"))
    ]


def split_by_name(path: Path, found: Sequence[tuple[str, FileSlice]]) -> dict[str, list[FileSlice]]:
    """The documents of each split, if their names say it of all three.

    Raises:
        DataError: then one of them says none.
    """
    splits: dict[str | None, list[FileSlice]] = {}
    named = [(name, split_named_by(name), span) for name, span in found]
    for _, split, span in named:
        splits.setdefault(split, []).append(span)
    if not splits.keys() >= set(SPLITS):
        return {}
    if None in splits:
        stray = next(name for name, split, _ in named if split is None)
        raise DataError(f"{path}: {stray} is not in train, val or test, but others are; move it")
    return splits


def split_named_by(name: str) -> str | None:
    """The split that a path names: as a folder, or in the file's name between dots."""
    *folders, file = name.split("/")
    for part in (*folders, *file.split(".")):
        for split, names in NAMES.items():
            if part in names:
                return split
    return None


def split_by_fractions(
    spans: Sequence[FileSlice], fractions: Sequence[float]
) -> dict[str, list[FileSlice]]:
    """Cut a text in order: many spans between spans, one span between characters.

    A span of a longer list goes where its first byte falls.
    """
    sizes = [span.stop - span.start for span in spans]
    first, second = fractions[0] * sum(sizes), (fractions[0] + fractions[1]) * sum(sizes)
    if len(spans) == 1:
        span = spans[0]
        inner = [_character_start(span, span.start + int(cut)) for cut in (first, second)]
        cuts = [span.start, *inner, span.stop]
        parts = zip(SPLITS, cuts, cuts[1:], strict=False)
        return {name: [FileSlice(span.path, start, stop)] for name, start, stop in parts}
    starts = [0, *accumulate(sizes)][:-1]
    val, test = bisect_left(starts, first), bisect_left(starts, second)
    if len(spans) >= len(SPLITS):
        # A fraction that is not nothing gets a document.
        least = [int(fraction > 0) for fraction in fractions]
        val = min(max(val, least[0]), len(spans) - least[1] - least[2])
        test = min(max(test, val + least[1]), len(spans) - least[2])
    return {"train": [*spans[:val]], "val": [*spans[val:test]], "test": [*spans[test:]]}


def _character_start(span: FileSlice, offset: int) -> int:
    """The first offset from here on that is not inside a UTF-8 character."""
    ahead = next(FileSlice(span.path, offset, min(offset + 3, span.stop)).chunks(), b"")
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
