"""Texts in files: slices of them, splits, and a user's own files, folders and archives."""

import codecs
import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Literal

from ..errors import DataError, name_copy, print_notice
from ..files import LFS_POINTER, has_ending
from ..process import is_child
from .archives import ARCHIVES, COMPRESSED, PACKED, UNPACKED, list_files, unpack_once
from .json_lines import (
    DEFAULT_FORMAT,
    LATIN_1,
    LINES,
    TEXT,
    Identifier,
    LineFormat,
    has_objects,
    read_lines,
    unpack_lines,
)
from .split_names import SPLITS, group_by_split, list_first, print_warning, warn_of_order

CHUNK = 1 << 20
FRACTIONS = (0.9, 0.05, 0.05)  # of train, val and test, unless others are given
DocumentUnit = Literal["files", "lines"]  # one document of a text: each file, or each line
SUFFIXES = (".npy", ".bin", ".ds")  # endings of files of ids
PLAIN = ("", ".log", ".txt")  # endings of files that may have any text
TABLES = (".json", ".csv", ".tsv")  # endings of texts that are not read as their author may think
JSON = re.compile(rb'\s*(\[\s*)?\{\s*"')  # the beginning of an object, or of an array of objects
BEGINNINGS = {
    b"\xff\xfe\0\0": "UTF-32", b"\0\0\xfe\xff": "UTF-32",
    b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16", b"%PDF-": "a PDF",
    b"\x1f\x8b": "compressed by gzip", b"\xfd7zXZ\0": "compressed by xz",
    b"\x28\xb5\x2f\xfd": "compressed by zstd", b"PK\3\4": "a zip",
} | {b"BZh%d1AY&SY" % level: "compressed by bzip2" for level in range(1, 10)}  # fmt: skip
"""Kinds of files by their first bytes; UTF-32 comes first, as its mark begins like UTF-16's."""
NOT_UTF8 = "not in UTF-8"
BINARY = "a binary file"
LFS = "a Git LFS pointer"  # which stands for a file that is not there
PACKERS = ("gzip", "bzip2", "xz", "zstd")
CONVERTERS = {name: f" (iconv -f {name} -t UTF-8)" for name in ("UTF-32", "UTF-16")}
CONVERTERS |= {f"compressed by {name}": f" ({name} -dc)" for name in PACKERS}
CONVERTERS |= {"a PDF": " (pdftotext)", NOT_UTF8: f" ({LATIN_1})", LFS: " (git lfs pull)"}
BYTES_ADVICE = "fit and prepare read any file with data.vocab bytes"
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
    identifier: Identifier | None = field(default=None, kw_only=True)  # of a record of JSON lines

    @property
    def bounds(self) -> tuple[int, int]:
        return self.start, self.stop

    @property
    def n_byte(self) -> int:
        return self.stop - self.start

    def extend(self, stop: int) -> "FileSlice":
        return replace(self, stop=stop)

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
        for line in read_lines(self.path, start, self.n_byte):
            yield FileSlice(self.path, start, start + len(line), line, is_text=self.is_text)
            start += len(line)


Splits = dict[str, list[FileSlice]]  # slices of train, val and test


def slice_file(path: Path, is_text: bool = False) -> list[FileSlice]:
    """Return a file as one slice, or no slice if it is empty; OSError if there is none. A text
    has no byte order mark."""
    size = path.stat().st_size
    start = 0
    if is_text and size:
        with path.open("rb") as file:
            start = 3 if file.read(3) == codecs.BOM_UTF8 else 0
    return [FileSlice(path, start, size, is_text=is_text)] if size > start else []


def count_bytes(path: Path, data_dir: Path, any_bytes: bool, how: LineFormat) -> int:
    """Return the bytes of the texts at a path, unpacked and without the JSON around them; 0 if
    they cannot be read, which `find_documents` refuses."""
    with suppress(OSError, DataError):
        # A million documents take seconds, one by one.
        texts = read_texts(path, data_dir, any_bytes, how, are_joined=True).values()
        return sum(part.n_byte for each in texts if isinstance(each, list) for part in each)
    return 0


def split_by_fractions(slices: Sequence[FileSlice], fractions: Sequence[float]) -> Splits:
    """Split slices by fractions: whole slices by their first byte, a single one at a character."""
    sizes = [part.n_byte for part in slices]
    first = fractions[0] * sum(sizes)
    second = (fractions[0] + fractions[1]) * sum(sizes)
    if len(slices) == 1:
        [part] = slices
        inner = [find_character(part, part.start + int(cut)) for cut in (first, second)]
        return cut_slice(part, [part.start, *inner, part.stop])
    starts = [0, *accumulate(sizes)][:-1]
    val = bisect_left(starts, first)
    test = bisect_left(starts, second)
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
    paths: Sequence[Path],
    fractions: Sequence[float],
    data_dir: Path,
    any_bytes: bool = False,
    how: LineFormat = DEFAULT_FORMAT,
) -> Splits:
    """Return the splits of one file, folder or archive, or of three for train, val and test.

    One text is cut by `fractions`, unless its file names give the splits; archives are unpacked
    under `data_dir`. DataError if nothing can be read, or if it is not text and not `any_bytes`.
    """
    if len(paths) == len(SPLITS):
        texts = [find_slices(path, data_dir, any_bytes, how) for path in paths]
        return dict(zip(SPLITS, texts, strict=True))
    if len(paths) != 1:
        expected = "expected one, or three: train, val and test"
        raise DataError(f"data.path: invalid number of files {len(paths)}; {expected}")
    documents = find_documents(paths[0], data_dir, any_bytes, how)
    is_cut = max(fractions) < 1
    splits = group_by_split(paths[0], documents, is_cut) if len(documents) > 1 else None
    if splits is None:
        splits = split_by_fractions([*chain(*documents.values())], fractions)
        if len(documents) == len(SPLITS) and all(len(each) == 1 for each in splits.values()):
            warn_of_order(paths[0], documents)
        return splits
    if is_cut and tuple(fractions) != FRACTIONS:
        print_warning(paths[0], "data.split has no effect, because names of files give the splits")
    return splits


def find_slices(path: Path, data_dir: Path, any_bytes: bool, how: LineFormat) -> list[FileSlice]:
    """Return the whole text of a file, a folder or an archive."""
    return [*chain(*find_documents(path, data_dir, any_bytes, how).values())]


def has_records(path: Path, data_dir: Path, how: LineFormat) -> bool:
    """Return True if a file is JSON lines by its name or its content, whatever keys are given.

    For a folder or an archive, True if one in it is, or is packed.
    """
    if not path.is_dir() and not has_ending(path, ARCHIVES):
        return has_documents(path, data_dir, how)
    files = list_files(path if path.is_dir() else unpack_once(path, data_dir), data_dir).values()
    endings = (*LINES, *UNPACKED)
    return any(
        each.is_file() and (has_ending(each, endings) or is_lines(each, how, False, True))
        for each in files
    )


def has_documents(path: Path, data_dir: Path, how: LineFormat = DEFAULT_FORMAT) -> bool:
    """Return True if a path may contain several documents."""
    if path.is_dir() or has_ending(path, ARCHIVES):
        return True
    if has_ending(path, COMPRESSED):
        path = unpack_once(path, data_dir) / path.stem
    return has_ending(path, LINES) or is_lines(path, how, is_own=False, any_bytes=False)


def find_documents(
    path: Path, data_dir: Path, any_bytes: bool, how: LineFormat
) -> dict[str, list[FileSlice]]:
    """Return the texts in a file, a folder or an archive by name; DataError if there are none."""
    try:
        if not path.exists():
            expected = "expected a text file, a folder or an archive"
            raise DataError(f"{path.absolute()}: no such file; {expected}")
        if has_ending(path, PACKED):
            advice = "unpack it first (.zip, .gz, .bz2, .xz and .zst need not be)"
            raise DataError(f"{path}: packed; {advice}")
        return select_texts(path, read_texts(path, data_dir, any_bytes, how))
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
        found = f", only {list_first(others)}" if others else ""
        has_ids = any(has_ending(Path(name), SUFFIXES) for name in texts)
        ids = ", or data.ids for ids" if has_ids else ""
        raise DataError(f"{path}: no text in it{found}; expected a text in UTF-8{ids}")
    others += [f"{name} (empty)" for name, each in documents.items() if not each]
    tables = [name for name, each in documents.items() if each and is_table(each[0])]
    if others and not is_child():
        print_notice(f"warning: {path}: skipped: {list_first(others)} ({len(others):,})")
    if tables and not is_child():
        read = "read as plain text, with all its marks; for the texts in it, make JSON lines"
        print_notice(f"warning: {path}: {read}: {list_first(tables)} ({len(tables):,})")
    return documents


def is_table(part: FileSlice) -> bool:
    """Return True for a text that may be meant as a table of texts, but is read as plain text."""
    if part.path.suffix not in PLAIN or part.path.name == TEXT:
        return has_ending(part.path, TABLES)
    # Such as the standard input, which has no ending, and a log with its text under another key.
    start = next(replace(part, stop=min(part.start + 100, part.stop)).chunks(), b"")
    return JSON.match(start) is not None


def read_texts(
    path: Path,
    data_dir: Path,
    any_bytes: bool,
    how: LineFormat,
    unpacked: bool = False,
    are_joined: bool = False,
) -> dict[str, list[FileSlice] | str]:
    """Return the texts in each file by its name, or what a file is that is not text.

    Packed files are unpacked, except in an archive (`unpacked`): nested ones grow without limit.
    `are_joined`: all texts of JSON lines are one.
    """
    texts: dict[str, list[FileSlice] | str] = {}
    files = list_files(path, data_dir) if path.is_dir() else {path.name: path}
    for name, file in files.items():
        if not file.is_file():
            texts[name] = "a special file" if file.exists() else "a link to nothing"
            continue
        kind = find_binary(file)
        is_own = file == path
        # By the ending of the name, or by a key that is given for a single file.
        is_meant = has_ending(file, LINES) or (is_own and bool(how.text_key or how.id_key))
        is_raw = any_bytes and not is_meant and kind != LFS and (is_own or kind == NOT_UTF8)
        if has_ending(file, UNPACKED) and kind != LFS and not unpacked:
            is_single = is_own and not has_ending(file, ARCHIVES)
            content = unpack_once(file, data_dir) / (file.stem if is_single else "")
            with name_copy(content, str(file)):
                inner = read_texts(content, data_dir, any_bytes, how, True, are_joined)
            texts |= inner if is_own else {f"{name}/{part}": inner[part] for part in inner}
        elif kind in (None, NOT_UTF8) and (is_meant or is_lines(file, how, is_own, any_bytes)):
            records = unpack_lines(file, data_dir, how, are_joined)
            texts[name] = [FileSlice(*bounds, identifier=each) for *bounds, each in records]
        elif kind is None or is_raw:
            texts[name] = slice_file(file, is_text=not any_bytes)
        elif is_own:
            converter = CONVERTERS.get(kind, "")
            advice = "" if kind == LFS or is_meant else f"; {BYTES_ADVICE}"
            raise DataError(f"{file}: {kind}{converter}; expected text in UTF-8{advice}")
        else:
            texts[name] = kind
    return texts


def find_binary(path: Path) -> str | None:
    """Return what a file is by its first bytes, or None for a text in UTF-8."""
    with path.open("rb") as file:
        return find_kind_of_bytes(file.read(NUL_WITHIN))


def find_kind_of_bytes(start: bytes) -> str | None:
    """Return what a file is that begins so, or None for a text in UTF-8."""
    for mark, kind in BEGINNINGS.items():
        if start.startswith(mark):
            return kind
    if start.startswith(LFS_POINTER):
        return LFS
    if b"\0" in start:
        return BINARY
    try:
        # In a longer file, the last character may be cut.
        is_whole = len(start) < NUL_WITHIN
        codecs.getincrementaldecoder("utf-8")().decode(start, final=is_whole)
    except UnicodeDecodeError:
        return NOT_UTF8
    return None


def is_lines(path: Path, how: LineFormat, is_own: bool, any_bytes: bool) -> bool:
    """Return True for JSON lines by the first lines, of which one has a text, or is an object of a
    single text file."""
    with path.open("rb") as file:
        start = file.read(1000).removeprefix(codecs.BOM_UTF8).lstrip()
    # Most files are known by one character.
    return start.startswith(b"{") and has_objects(path, is_own and not any_bytes, how.text_key)
