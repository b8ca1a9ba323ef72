"""Texts in files: slices of them, splits, and a user's own files, folders and archives."""

import codecs
import hashlib
import json
import os
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Literal

from ..errors import DataError, print_notice, require
from ..files import replace_file
from ..signals import is_child
from .archives import LINES, SEVERAL, TEXT, UNPACKED, read_ends, unpack

CHUNK = 1 << 20
SPLITS = ("train", "val", "test")
DocumentUnit = Literal["files", "lines"]  # one document of a text: each file, or each line
# The split that a word of a file's or a folder's name names.
NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "dev": "val"}
NAMES |= {"test": "test"}
# Endings of files of ids, and of packed files that nothing here unpacks.
SUFFIXES = (".npy", ".bin", ".ds")
PACKED = (".zst", ".7z")
MARKS = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"%PDF-": "a PDF",
}  # fmt: skip
"""What a file is by its first bytes; UTF-32 comes first, as its mark begins like UTF-16's."""
LATIN_1 = "if it is Latin-1: iconv -f ISO-8859-1 -t UTF-8"
NOT_UTF8 = "not in UTF-8"
CONVERTERS = {name: f" (iconv -f {name} -t UTF-8)" for name in ("UTF-32", "UTF-16")}
CONVERTERS |= {"a PDF": " (pdftotext)", NOT_UTF8: f" ({LATIN_1})"}
BYTES_ADVICE = "fit and prepare read any file with data.vocab bytes"
RUN = "run.json"  # in a run's folder, whose files are no text of the user
NUL_WITHIN = 8000  # bytes; a file without a NUL in its first bytes is text, as in git


@dataclass(frozen=True)
class FileSlice:
    """The bytes of a file from `start` up to `stop`."""

    path: Path
    start: int
    stop: int
    text: bytes | None = field(default=None, repr=False)  # these bytes, if they are read already
    is_text: bool = field(default=False, kw_only=True)  # refuse bytes that are not UTF-8
    continues: bool = field(default=False, kw_only=True)  # the document of the slice before

    @property
    def bounds(self) -> tuple[int, int]:
        return self.start, self.stop

    @property
    def n_byte(self) -> int:
        return self.stop - self.start

    def chunks(self) -> Iterator[bytes]:
        """Yield the bytes in pieces, which may cut a character."""
        if self.text is not None:
            for start in range(0, len(self.text), CHUNK):
                yield self.text[start : start + CHUNK]
            return
        with self.path.open("rb") as file:
            file.seek(self.start)
            n_left = self.n_byte
            while n_left and (chunk := file.read(min(CHUNK, n_left))):
                n_left -= len(chunk)
                yield chunk

    def texts(self) -> Iterator[str]:
        """Yield the characters in pieces; DataError if the bytes are not UTF-8."""
        decoder = codecs.getincrementaldecoder("utf-8")()
        offset = self.start
        for chunk in chain(self.chunks(), [b""]):
            try:
                if text := decoder.decode(chunk, final=not chunk):
                    yield text
            except UnicodeDecodeError as error:
                # The decoder keeps the first bytes of a character that spans two chunks.
                place = offset - (len(error.object) - len(chunk)) + error.start
                problem = f"byte {place} is not UTF-8 text; {LATIN_1}; {BYTES_ADVICE}"
                raise DataError(f"{self.path}: {problem}") from error
            offset += len(chunk)

    def split_lines(self) -> "Iterator[FileSlice]":
        start = self.start
        with self.path.open("rb") as file:
            file.seek(start)
            while line := file.readline(self.stop - start):
                yield FileSlice(self.path, start, start + len(line), line, is_text=self.is_text)
                start += len(line)


Splits = dict[str, list[FileSlice]]  # slices of train, val and test


def whole_file(path: Path, is_text: bool = False) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty; OSError if there is none. A text
    has no byte order mark."""
    size = path.stat().st_size
    start = 0
    if is_text and size:
        with path.open("rb") as file:
            start = 3 if file.read(3) == codecs.BOM_UTF8 else 0
    return [FileSlice(path, start, size, is_text=is_text)] if size > start else []


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
    return {name: [replace(part, start=start, stop=stop)] for name, (start, stop) in cuts}


def find_character(part: FileSlice, offset: int) -> int:
    """Return the first offset at or after this one that is not inside a UTF-8 character."""
    ahead = next(FileSlice(part.path, offset, min(offset + 3, part.stop)).chunks(), b"")
    return offset + next((i for i, byte in enumerate(ahead) if byte & 0xC0 != 0x80), len(ahead))


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
    splits = group_by_split(paths[0], documents)
    return splits or split_by_fractions([*chain(*documents.values())], fractions)


def find_slices(path: Path, data_dir: Path, any_bytes: bool = False) -> list[FileSlice]:
    """Return the whole text of a file, a folder or an archive."""
    return [*chain(*find_documents(path, data_dir, any_bytes).values())]


def has_documents(path: Path) -> bool:
    """Return True if a path may contain several documents."""
    return path.is_dir() or path.name.endswith(SEVERAL)


def find_documents(
    path: Path, data_dir: Path, any_bytes: bool = False
) -> dict[str, list[FileSlice]]:
    """Return the texts in a file, a folder or an archive by name; DataError if there are none."""
    try:
        if not path.exists():
            expected = "expected a text file, a folder or an archive"
            raise DataError(f"{path}: no such file; {expected}")
        if path.suffix in PACKED:
            advice = "unpack it first (.zip, .gz, .bz2 and .xz need not be)"
            raise DataError(f"{path}: packed; {advice}")
        return select_texts(path, read_texts(path, data_dir, any_bytes))
    except OSError as error:
        # An error amid a file does not name it.
        name = error.filename or "data.path"
        raise DataError(f"{name}: cannot be read ({error.strerror})") from error


def select_texts(
    path: Path, texts: Mapping[str, list[FileSlice] | str]
) -> dict[str, list[FileSlice]]:
    """Return what is text, and name the rest in a warning; DataError if there is no text."""
    others = [f"{name} ({kind})" for name, kind in texts.items() if isinstance(kind, str)]
    documents = {name: each for name, each in texts.items() if isinstance(each, list)}
    if not any(documents.values()):
        problem = f"no text in it{f', only {list_first(others)}' * bool(others)}"
        has_ids = any(name.endswith(SUFFIXES) for name in texts)
        expected = f"expected a text in UTF-8{', or data.ids for ids' * has_ids}"
        raise DataError(f"{path}: {problem}; {expected}")
    others += [f"{name} (empty)" for name, each in documents.items() if not each]
    if others and not is_child():
        print_notice(f"warning: {path}: skipped: {list_first(others)} ({len(others):,})")
    return documents


def list_first(names: Sequence[str]) -> str:
    return ", ".join(names[:5]) + ", ..." * (len(names) > 5)


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
        kind = find_binary(file)
        is_own = file == path
        if file.suffix == LINES:
            # Empty texts are left out.
            bounds = pairwise([0, *read_ends(folder := unpack(file, data_dir))])
            texts[name] = [FileSlice(folder / TEXT, a, b) for a, b in bounds if b > a]
        elif file.suffix in UNPACKED and not unpacked:
            inner = read_texts(unpack(file, data_dir), data_dir, any_bytes, unpacked=True)
            texts |= inner if is_own else {f"{name}/{part}": inner[part] for part in inner}
        elif kind is None or (any_bytes and (is_own or kind == NOT_UTF8)):
            texts[name] = whole_file(file, is_text=not any_bytes)
        elif is_own:
            how = CONVERTERS.get(kind, "")
            raise DataError(f"{file}: {kind}{how}; expected text in UTF-8; {BYTES_ADVICE}")
        else:
            texts[name] = kind
    return texts


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


def list_files(folder: Path, data_dir: Path) -> dict[str, Path]:
    """Return a file by name, or the files in a folder by path, without hidden files, folders of
    runs, and our own files in data_dir.

    Links are followed, as by tar -h, and each file and folder counts once; links to nothing and
    special files are among the files.
    """
    if not folder.is_dir():
        return {folder.name: folder}
    seen = {os.path.realpath(data_dir / name) for name in ("prepared", "downloads")}
    files = []
    found = [folder]
    links = []
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


def group_by_split(path: Path, documents: Mapping[str, list[FileSlice]]) -> Splits:
    """Return the documents of the split that their name names: a folder in it, or a word between
    the file's dots. {} if a split has none; otherwise a document of no split is a DataError."""
    splits = {split: [] for split in SPLITS}
    strays = []
    for name, slices in documents.items():
        folders, _, file = name.rpartition("/")
        # The first word that names a split counts.
        words = [*folders.split("/"), *file.split(".")]
        named = [NAMES[word] for word in words if word in NAMES]
        if named:
            splits[named[0]] += slices
        else:
            strays.append(name)
    if not all(splits.values()):
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


def find_difference(path: Path, checksum: str) -> str:
    """Return a file's checksum and the expected "sha256:..." as text, or "" if they are equal."""
    algorithm, _, digest = checksum.partition(":")
    with path.open("rb") as file:
        actual = hashlib.file_digest(file, algorithm).hexdigest()
    return "" if actual == digest else f"{algorithm} {actual}, not {digest}"


def verify_file(path: Path, checksum: str) -> None:
    """Raise a DataError unless a file can be read and has this checksum."""
    try:
        difference = find_difference(path, checksum)
    except OSError as error:
        reason = error.strerror or error
        raise DataError(f"{path}: cannot be read ({reason}); pass data.path") from error
    if difference:
        raise DataError(f"{path}: wrong file ({difference}); remove it, or pass data.path")
