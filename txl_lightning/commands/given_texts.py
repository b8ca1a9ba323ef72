"""Texts that commands are given by a path: what is there, and the standard input."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from ..data.archives import COMPRESSED, TARS
from ..data.json_lines import read_compressed_lines, read_lines, split_lines
from ..data.text_files import BINARY, CONVERTERS, NOT_UTF8, NUL_WITHIN, SUFFIXES, find_kind_of_bytes
from ..errors import DataError, name_copy
from ..files import STORE_FILE, explain_write_errors, has_ending, has_mark

STDIN = "stdin"  # file with a copy of the standard input


def find_kind(path: Path) -> str:
    """Return the setting of a path: path for a text, ids for a file of ids, or store."""
    # Also of a damaged store, which is then refused as one, by name.
    if has_mark(path, STORE_FILE):
        return "store"
    return "ids" if path.suffix in SUFFIXES and path.is_file() else "path"


def copy_stdin(key: str, folder: str) -> str:
    """Copy the standard input into a file in a folder, and return its path; DataError if there is
    nothing."""
    path = Path(folder, STDIN)
    # Else nothing says where there is no space: in $TMPDIR.
    with explain_write_errors(path), path.open("wb") as file:
        shutil.copyfileobj(sys.stdin.buffer, file)
    if not path.stat().st_size:
        raise DataError(f"{key}: invalid -; expected a text on the standard input; it is empty")
    return str(path)


def read_raw_lines(path: str) -> Iterator[bytes]:
    """Yield the lines of a file, or of the standard input for -, as soon as they come; a compressed
    file is unpacked. DataError if the first line is of no text."""
    file = Path(path)
    if path == "-":
        lines = split_lines(sys.stdin.buffer)
    elif has_ending(file, COMPRESSED) and not has_ending(file, TARS):
        lines = read_compressed_lines(file)
    else:
        lines = read_lines(file)
    for number, line in enumerate(lines):
        kind = None if number else find_kind_of_bytes(line[:NUL_WITHIN])
        # A line may have a NUL, and where it is not UTF-8 is said later.
        if kind not in (None, NOT_UTF8, BINARY):
            converter = CONVERTERS.get(kind, "")
            raise DataError(f"{name_given(path)}: {kind}{converter}; expected text in UTF-8")
        yield line


def name_given(path: str) -> str:
    return "the standard input" if path == "-" else path


def drop_compression(path: str) -> Path:
    """Return the path without the ending of a compressed file."""
    file = Path(path)
    return file.with_suffix("") if has_ending(file, COMPRESSED) else file


@contextmanager
def open_given(key: str, path: str) -> Iterator[str]:
    """Yield a path; for - that of a copy of the standard input, which is removed at the end."""
    if path != "-":
        yield path
        return
    with TemporaryDirectory(prefix="txl-") as folder, name_stdin(folder):
        yield copy_stdin(key, folder)


def name_stdin(folder: str) -> AbstractContextManager[None]:
    """Show the copy in a folder as the standard input, in notices and errors."""
    return name_copy(Path(folder, STDIN), "the standard input")
