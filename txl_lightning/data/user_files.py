"""A user's own text: a file, three files, or a folder or archive of documents."""

import codecs
import os
import shutil
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import accumulate, chain, pairwise
from pathlib import Path

from ..errors import DataError, print_notice
from ..files import create_folder, sha256_file, short_hash
from ..signals import is_child
from .documents import (
    BYTES_ADVICE,
    LATIN_1,
    LINES,
    SPLITS,
    FileSlice,
    cache_result,
    find_texts,
    find_unpacker,
    whole_file,
)

Splits = dict[str, list[FileSlice]]  # slices of train, val and test
Documents = Mapping[str, list[FileSlice]]  # path of a file -> the texts in it
Contents = dict[str, list[FileSlice] | str]  # the same, with what a file is that is not text
# Endings of files of ids, and of files that lie beside them.
SUFFIXES = (".npy", ".bin", ".ds")
BESIDE_IDS = (".idx", ".index", ".json", ".pkl", ".md", ".py")
PACKED = (".zst", ".7z")
MARKS = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"%PDF-": "a PDF",
}  # fmt: skip
"""What a file is by its first bytes; the mark of UTF-32 begins with that of UTF-16."""
NOT_UTF8 = "not in UTF-8"
CONVERTERS = {name: f"iconv -f {name} -t UTF-8" for name in ("UTF-32", "UTF-16")}
CONVERTERS |= {"a PDF": "pdftotext", NOT_UTF8: f"if it is Latin-1: {LATIN_1}"}
RUN = "run.json"  # in a run's folder, whose files are no text of the user
NUL_WITHIN = 8000  # bytes; a file without a NUL in its first bytes is text, as in git
# The split that a word of a file's or a folder's name names.
NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
NAMES |= {"test": "test"}


def split_user_files(
    paths: Sequence[Path], fractions: Sequence[float], data_dir: Path, any_bytes: bool = False
) -> Splits:
    """Return the splits of one file, folder or archive, or of three for train, val and test.

    One text is cut by `fractions`, unless its file names give the splits; archives are unpacked
    under `data_dir`. DataError if nothing can be read, or if it is not text and not `any_bytes`.
    """
    if len(paths) == len(SPLITS):
        return {
            name: find_slices(path, data_dir, any_bytes)
            for name, path in zip(SPLITS, paths, strict=True)
        }
    if len(paths) != 1:
        expected = "expected one, or three: train, val and test"
        raise DataError(f"data.path: invalid number of files {len(paths)}; {expected}")
    documents = find_documents(paths[0], data_dir, any_bytes)
    with remove_if_refused(paths[0], data_dir):
        splits = group_by_split(paths[0], documents, list_parts, SPLITS)
    return splits or split_by_fractions([*chain(*documents.values())], fractions)


def find_slices(path: Path, data_dir: Path, any_bytes: bool = False) -> list[FileSlice]:
    """Return the whole text of a file, a folder or an archive."""
    return [*chain(*find_documents(path, data_dir, any_bytes).values())]


def find_documents(path: Path, data_dir: Path, any_bytes: bool = False) -> Documents:
    """Return the texts in a file, a folder or an archive; DataError if there are none."""
    try:
        if not path.exists():
            expected = "data.path must name a text file, a folder or an archive"
            raise DataError(f"{path}: no such file; {expected}")
        if path.suffix in PACKED:
            advice = "unpack it first (.zip, .gz, .bz2 and .xz need not be)"
            raise DataError(f"{path}: packed; {advice}")
        with remove_if_refused(path, data_dir):
            find = find_in_folder if path.is_dir() else find_in_file
            contents = find(path, data_dir, any_bytes=any_bytes)
            skipped = {name: kind for name, kind in contents.items() if isinstance(kind, str)}
            documents = {n: each for n, each in contents.items() if each and n not in skipped}
            if not documents:
                problem = f"no text in it{f', only {list_skipped(skipped)}' * bool(skipped)}"
                ids = ", data.ids ids" * any(name.endswith(SUFFIXES) for name in skipped)
                raise DataError(f"{path}: {problem}; data.path must name a text in UTF-8{ids}")
    except OSError as error:
        # An error amid a file does not name it.
        name = error.filename or "data.path"
        raise DataError(f"{name}: cannot be read ({error.strerror})") from error
    if skipped and not is_child():
        names = list_skipped(skipped)
        print_notice(f"warning: {path}: skipped, because not text: {names} ({len(skipped):,})")
    return documents


def list_skipped(kinds: Mapping[str, str], limit: int = 5) -> str:
    """Return the names of files that are no text, and what they are."""
    names = [f"{name} ({kind})" for name, kind in [*kinds.items()][:limit]]
    return ", ".join(names) + ", ..." * (len(kinds) > limit)


def find_in_file(path: Path, data_dir: Path, any_bytes: bool = False) -> Contents:
    """Return the texts in a file, unpacked if necessary."""
    # Also of an archive: unpacking it is writing, and its errors are those of writing.
    whole = whole_file(path, is_text=not any_bytes)
    kind = find_binary(path) if whole else None
    how = f" ({CONVERTERS[kind]})" if kind in CONVERTERS else ""
    if (unpack := find_unpacker(path)) is None:
        if kind and not any_bytes:
            raise DataError(f"{path}: {kind}{how}; expected text in UTF-8; {BYTES_ADVICE}")
        return {path.name: whole}
    # The line that is not in UTF-8 is named when it is read.
    if path.suffix == LINES and kind and kind != NOT_UTF8:
        raise DataError(f"{path}: {kind}{how}; expected JSON lines in UTF-8")
    folder = find_unpacked_folder(path, data_dir)
    create_folder(folder, partial(unpack, path))
    if path.suffix == LINES:
        return {path.name: find_texts(folder)}
    return find_in_folder(folder, data_dir, unpacked=True, any_bytes=any_bytes)


def find_in_folder(
    folder: Path, data_dir: Path, unpacked: bool = False, any_bytes: bool = False
) -> Contents:
    """Return the texts in a folder by path, or what a file is that is not text.

    Packed files are unpacked, except in an archive (`unpacked`): nested ones grow without limit.
    """
    contents: Contents = {}
    for name, path in list_files(folder, data_dir).items():
        if not path.is_file():
            contents[name] = "a special file" if path.exists() else "a link to nothing"
        elif path.suffix == LINES or (find_unpacker(path) and not unpacked):
            # Inside the copy of the outer archive, so that both are removed together.
            place = folder / ".unpacked" if unpacked else data_dir
            inner = find_in_file(path, place, any_bytes)
            contents |= {f"{name}/{part}": slices for part, slices in inner.items()}
        else:
            kind = find_binary(path)
            is_text = kind is None or (any_bytes and kind == NOT_UTF8)
            contents[name] = whole_file(path, not any_bytes) if is_text else kind
    return contents


def find_binary(path: Path) -> str | None:
    """Return what a file is by its first bytes, or None for a text in UTF-8."""
    with path.open("rb") as file:
        start = file.read(NUL_WITHIN)
    for mark, kind in MARKS.items():
        if start.startswith(mark):
            return kind
    if b"\0" in start:
        return "a binary file"
    try:
        # In a longer file, the last character may be cut.
        is_whole = len(start) < NUL_WITHIN
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return NOT_UTF8
    return None


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
        for packed in filter(find_unpacker, filter(Path.is_file, paths)):
            shutil.rmtree(find_unpacked_folder(packed, data_dir), ignore_errors=True)
        raise


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return the files in a folder by path, without hidden ones, those of runs, and our own in
    data_dir.

    Links are followed, as by tar -h, and each file and folder counts once; links to nothing and
    special files are among the files.
    """
    seen = {os.path.realpath(data_dir / name) for name in ("prepared", "downloads")}
    files, found, links = [], [folder], []
    while found or links:
        # Links come last: a file counts under its own name.
        path = found.pop() if found else links.pop()
        # Unlike Path.resolve, it does not raise for a link to itself.
        real = os.path.realpath(path)
        if real in seen or (path != folder and is_run(path)):
            continue
        seen.add(real)
        if path.is_dir():
            for each in sorted(path.iterdir(), reverse=True):
                if not each.name.startswith("."):
                    (links if each.is_symlink() else found).append(each)
        else:
            files.append(path)
    return dict(sorted((path.relative_to(folder).as_posix(), path) for path in files))


def is_run(folder: Path) -> bool:
    """Return True for the folder of a run; other programs have such files too."""
    state = folder / RUN
    return os.path.isfile(state) and b'"max_steps"' in state.read_bytes()


def list_parts(name: str) -> list[str]:
    """Return what may name a split in a path: folders, and the words between the file's dots."""
    folders, _, file = name.rpartition("/")
    return [*folders.split("/"), *file.split(".")]


def group_by_split(
    path: Path, documents: Documents, list_words: Callable[[str], list[str]], needed: Sequence[str]
) -> Splits:
    """Return the documents of the split that a word of their name names; {} if a needed one has
    none. Otherwise a document of no split is a DataError."""
    splits, strays = {split: [] for split in SPLITS}, []
    for name, slices in documents.items():
        # The first word that names a split counts.
        named = [NAMES[word] for word in list_words(name) if word in NAMES]
        if named:
            splits[named[0]] += slices
        else:
            strays.append(name)
    if not all(splits[split] for split in needed):
        return {}
    if strays:
        stray = f"{strays[0]} is not in train, val or test, but others are"
        raise DataError(f"{path}: {stray}; move it")
    return splits


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
    return {name: [part.narrow(*cut)] for name, cut in cuts}


def find_character(part: FileSlice, offset: int) -> int:
    """Return the first offset at or after this one that is not inside a UTF-8 character."""
    ahead = next(FileSlice(part.path, offset, min(offset + 3, part.stop)).chunks(), b"")
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))
