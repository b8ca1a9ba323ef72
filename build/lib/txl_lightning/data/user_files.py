"""A user's own text: a file, three files, or a folder or archive of documents."""

import codecs
import json
import os
import shutil
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import chain, pairwise
from pathlib import Path

from ..errors import DataError, print_notice, require
from ..files import create_folder, replace_file, sha256_file, short_hash
from ..signals import is_child
from .archives import ENDS, LINES, SEVERAL, TEXT, UNPACKERS
from .documents import (
    BYTES_ADVICE,
    LATIN_1,
    SPLITS,
    FileSlice,
    Splits,
    cache_result,
    split_by_fractions,
    whole_file,
)

Documents = Mapping[str, list[FileSlice]]  # path of a file -> the texts in it
# Endings of files of ids, and of packed files that nothing here unpacks.
SUFFIXES = (".npy", ".bin", ".ds")
PACKED = (".zst", ".7z")
MARKS = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"%PDF-": "a PDF",
}  # fmt: skip
"""What a file is by its first bytes; the mark of UTF-32 begins with that of UTF-16."""
NOT_UTF8 = "not in UTF-8"
CONVERTERS = {name: f" (iconv -f {name} -t UTF-8)" for name in ("UTF-32", "UTF-16")}
CONVERTERS |= {"a PDF": " (pdftotext)", NOT_UTF8: f" ({LATIN_1})"}
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
        texts = [find_slices(path, data_dir, any_bytes) for path in paths]
        return dict(zip(SPLITS, texts, strict=True))
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


def has_documents(path: Path) -> bool:
    """Return True if a path may contain several documents."""
    return path.is_dir() or path.name.endswith(SEVERAL)


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
            return select_texts(path, read_texts(path, data_dir, any_bytes))
    except OSError as error:
        # An error amid a file does not name it.
        name = error.filename or "data.path"
        raise DataError(f"{name}: cannot be read ({error.strerror})") from error


def select_texts(path: Path, texts: Mapping[str, list[FileSlice] | str]) -> Documents:
    """Return what is text, and name the rest in a warning; DataError if there is no text."""
    skipped = [f"{name} ({kind})" for name, kind in texts.items() if isinstance(kind, str)]
    shown = ", ".join(skipped[:5]) + ", ..." * (len(skipped) > 5)
    documents = {name: each for name, each in texts.items() if isinstance(each, list)}
    if not any(documents.values()):
        problem = f"no text in it{f', only {shown}' * bool(skipped)}"
        has_ids = any(name.endswith(SUFFIXES) for name in texts)
        expected = f"data.path must name a text in UTF-8{', data.ids ids' * has_ids}"
        raise DataError(f"{path}: {problem}; {expected}")
    if skipped and not is_child():
        print_notice(f"warning: {path}: skipped, because not text: {shown} ({len(skipped):,})")
    return documents


def read_texts(
    path: Path, data_dir: Path, any_bytes: bool, unpacked: bool = False
) -> dict[str, list[FileSlice] | str]:
    """Return the texts in each file by its name, or what a file is that is not text.

    Packed files are unpacked, except in an archive (`unpacked`): nested ones grow without limit.
    """
    texts: dict[str, list[FileSlice] | str] = {}
    for name, file in list_files(path, data_dir).items():
        if not file.is_file():
            texts[name] = "a special file" if file.exists() else "a link to nothing"
            continue
        kind, is_own = find_binary(file), file == path
        how = CONVERTERS.get(kind, "")
        if file.suffix == LINES:
            # The line that is not in UTF-8 is named when it is read.
            if kind not in (None, NOT_UTF8):
                raise DataError(f"{file}: {kind}{how}; expected JSON lines in UTF-8")
            # Inside the copy of the outer archive, so that both are removed together.
            texts[name] = read_lines(unpack(file, path / ".unpacked" if unpacked else data_dir))
        elif file.suffix in UNPACKERS and not unpacked:
            inner = read_texts(unpack(file, data_dir), data_dir, any_bytes, unpacked=True)
            texts |= inner if is_own else {f"{name}/{part}": inner[part] for part in inner}
        elif kind is None or (any_bytes and (is_own or kind == NOT_UTF8)):
            texts[name] = whole_file(file, is_text=not any_bytes)
        elif is_own:
            raise DataError(f"{file}: {kind}{how}; expected text in UTF-8; {BYTES_ADVICE}")
        else:
            texts[name] = kind
    return texts


def read_lines(folder: Path) -> list[FileSlice]:
    """Return the texts that `unpack_lines` wrote, except empty ones."""
    bounds = pairwise([0, *array("q", (folder / ENDS).read_bytes())])
    return [FileSlice(folder / TEXT, start, end) for start, end in bounds if end > start]


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


def unpack(archive: Path, data_dir: Path) -> Path:
    """Return the folder with the content of a packed file, unpacked once."""
    folder = find_unpacked_folder(archive, data_dir)
    create_folder(folder, partial(UNPACKERS[archive.suffix], archive))
    return folder


def find_unpacked_folder(archive: Path, data_dir: Path) -> Path:
    sha256 = cache_result("sha256", [archive], data_dir, partial(sha256_file, archive))
    return data_dir / "prepared" / f"{archive.name}-{short_hash([str(archive.absolute()), sha256])}"


@contextmanager
def remove_if_refused(path: Path, data_dir: Path) -> Iterator[None]:
    """Remove the unpacked copies of an archive, or of those in a folder, after a DataError."""
    try:
        yield
    except DataError:
        paths = filter(Path.is_file, list_files(path, data_dir).values())
        for packed in (each for each in paths if each.suffix in UNPACKERS):
            shutil.rmtree(find_unpacked_folder(packed, data_dir), ignore_errors=True)
        raise


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return a file by name, or the files in a folder by path, without hidden ones, those of runs,
    and our own in data_dir.

    Links are followed, as by tar -h, and each file and folder counts once; links to nothing and
    special files are among the files.
    """
    if not folder.is_dir():
        return {folder.name: folder}
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
