"""JSON lines, an object with a text in each; and the lines of any file."""

import codecs
import hashlib
import json
import math
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache, partial
from io import TextIOWrapper
from itertools import islice, repeat
from pathlib import Path
from typing import Any, BinaryIO

from ..errors import DataError, invalid_text, print_notice, require, shorten
from ..files import flush_to_disk, has_ending, read_json, replace_file, write_json
from ..process import is_child
from .archives import explain_damage, open_compressed, unpack_once

LINES = (".jsonl", ".ndjson", ".jsonlines")
KEY = "text"  # of the text, where no other is given
# Files of `write_texts`: the texts, one after another; the position where each ends; its
# identifier, as JSON in a line; and what is wrong with lines that were left out.
TEXT = "text"
ENDS = "ends"
IDENTIFIERS = "identifiers"
SKIPPED = "skipped"
LONGEST_LINE = 1 << 30  # bytes of a line
N_FIRST = 10  # lines of a file by which it is known
N_SHOWN = 3  # bad lines that are described
MOST_BAD = 1000  # bad lines, as many as are counted where they are an error
LATIN_1 = "if it is Latin-1: iconv -f ISO-8859-1 -t UTF-8"
ARRAY = " (jq -c '.[]' makes JSON lines of an array)"
JSON_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
JSON_TYPES |= {int: "a number", float: "a number", type(None): "null"}

MISSING = object()  # in place of a value that an object lacks

Identifier = str | int | float  # of a document


@dataclass(frozen=True, kw_only=True)
class LineFormat:
    """Settings by which JSON lines are read.

    Args:
        text_key: Key of JSON lines that has the text; a.b is the key b of the object under a.
            Left out, it is text, or for another text of evaluate that of training. With a key, a
            single file is JSON lines, whatever its name.
        id_key: Key of JSON lines that has an identifier, a text or a number, for evaluate
            --per_document.
        skip_bad_lines: Leave out JSON lines without a text, and print how many, instead of an
            error.
    """

    text_key: str | None = None
    id_key: str | None = None
    skip_bad_lines: bool = False

    @property
    def example(self) -> str:
        """Return a line that has what these settings ask for."""
        record: dict[str, Any] = {}
        keys = [key for key in (self.id_key, self.text_key or KEY) if key]
        # a before a.b, which is then a key of that name.
        for key in sorted(keys, key=lambda each: each.count(".")):
            set_value(record, key, "...")
        return json.dumps(record, ensure_ascii=False)


DEFAULT_FORMAT = LineFormat()


@dataclass
class BadLines:
    """Lines without a text: how many, and what is wrong with the first ones."""

    n_line: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, problem: str) -> None:
        self.n_line += 1
        if self.n_line <= N_SHOWN:
            self.first.append(problem)

    def describe(self) -> str:
        """Return what is wrong with the first lines, and if there are others, how many in all."""
        more = "more than " if self.n_line > MOST_BAD else ""
        count = f"{more}{min(self.n_line, MOST_BAD):,} bad lines"
        return "; ".join([*self.first, *[count] * (self.n_line > 1)])


def read_lines(
    path: Path, start: int = 0, n_byte: int = sys.maxsize, longest: int = sys.maxsize
) -> Iterator[bytes]:
    """Yield the lines in some bytes of a file; a line that is longer than `longest` is cut."""
    with path.open("rb") as file:
        # A pipe has no places.
        if start:
            file.seek(start)
        yield from split_lines(file, n_byte, longest)


def split_lines(
    file: BinaryIO, n_byte: int = sys.maxsize, longest: int = sys.maxsize
) -> Iterator[bytes]:
    """Yield the lines in the next bytes of a file, as soon as they come: the one rule of lines.

    Each ends with \\n, \\r\\n or \\r, the last of which is known by the byte after it.
    """
    # Latin-1 has a character for each byte.
    text = TextIOWrapper(file, "latin-1", newline="")
    try:
        while line := text.readline(min(n_byte, longest)):
            n_byte -= len(line)
            yield line.encode("latin-1")
    finally:
        # Else it would close the standard input.
        text.detach()


def read_compressed_lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a compressed file; DataError if it is damaged."""
    with explain_damage(path), open_compressed(path) as file:
        yield from split_lines(file)


def has_objects(path: Path, any_object: bool = False, key: str | None = None) -> bool:
    """Return True if one of the first lines is an object with a text, or any object of JSON."""
    lines = filter(bytes.strip, read_lines(path, longest=LONGEST_LINE))
    return any(is_object(line, any_object, key or KEY) for line in islice(lines, N_FIRST))


def is_object(line: bytes, any_object: bool, key: str) -> bool:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    is_dict = isinstance(content, dict)
    return is_dict and (any_object or isinstance(find_value(content, key), str))


def unpack_lines(
    path: Path, data_dir: Path, how: LineFormat = DEFAULT_FORMAT, are_joined: bool = False
) -> Iterator[tuple[Path, int, int, Identifier | None]]:
    """Yield the file with the texts of JSON lines, written once, and the bounds and the identifier
    of each text that is not empty; or, if they are joined, those of all texts."""
    options = [how.text_key, how.id_key, how.skip_bad_lines]
    folder = unpack_once(path, data_dir, partial(write_texts, how=how), options)
    # One for all: to make, hash and print a path takes longer than all else.
    text = folder / TEXT
    if are_joined:
        yield text, 0, text.stat().st_size, None
        return
    skipped = BadLines(**read_json(folder / SKIPPED))
    if skipped.n_line and not is_child():
        warn_once(f"{path}: left out: {skipped.describe()}", str(folder))
    start = 0
    ends = array("q", (folder / ENDS).read_bytes())
    for end, identifier in zip(ends, read_identifiers(folder, how), strict=False):
        if end > start:
            yield text, start, end, identifier
        start = end


@cache
def warn_once(text: str, _: str) -> None:
    """Print a warning; once, because the text in a folder is measured before it is read."""
    print_notice(f"warning: {text}")


def is_unpacked(path: Path) -> bool:
    """Return True for a file with the texts of JSON lines."""
    return path.name == TEXT and path.with_name(ENDS).is_file()


def read_identifiers(folder: Path, how: LineFormat) -> Iterator[Identifier | None]:
    if how.id_key is None:
        yield from repeat(None)
        return
    with (folder / IDENTIFIERS).open() as file:
        yield from map(json.loads, file)


def describe_records(slices: Sequence[Any], how: LineFormat) -> dict[str, Any]:
    """Return the sha256 of the identifiers of slices, and how many lines were left out beside them,
    if these are asked for. An id_key without identifiers is a ValueError; other settings that have
    no effect are named in a notice."""
    description: dict[str, Any] = {}
    folders = sorted(path.parent for path in {part.path for part in slices} if is_unpacked(path))
    if how.id_key is not None:
        has_lines = any(part.identifier is not None for part in slices)
        require(has_lines, "id_key", how.id_key, "null, as no file is JSON lines")
        sha256 = hashlib.sha256()
        for part in slices:
            sha256.update(json.dumps(part.identifier).encode() + b"\n")
        description["identifiers"] = sha256.hexdigest()
    if how.skip_bad_lines:
        skipped = (read_json(folder / SKIPPED)["n_line"] for folder in folders)
        description["skipped_lines"] = sum(skipped)
    given = {"text_key": how.text_key, "skip_bad_lines": how.skip_bad_lines}
    unused = ", ".join(name for name, value in given.items() if value and not folders)
    if unused and not is_child():
        warn_once(f"{unused}: no effect, as no file is JSON lines", str(slices[0].path))
    return description


def write_texts(path: Path, folder: Path, how: LineFormat) -> None:
    """Write the texts of JSON lines into one file, and the end and identifier of each into others.

    DataError with the first lines that have none, unless they are left out.
    """
    ends = array("q")
    n_byte = 0
    bad = BadLines()
    with (folder / TEXT).open("wb") as file, (folder / IDENTIFIERS).open("w") as identifiers:
        for where, line in list_filled_lines(path):
            try:
                text, identifier = parse_line(where, line, how)
            except DataError as error:
                bad.add(str(error))
                if bad.n_line > MOST_BAD and not how.skip_bad_lines:
                    break
                continue
            n_byte += file.write(text)
            ends.append(n_byte)
            if how.id_key is not None:
                print(json.dumps(identifier), file=identifiers)
    if bad.n_line and not how.skip_bad_lines:
        fix = "skip_bad_lines true leaves such lines out"
        raise DataError(f"{path}: {bad.describe()}; expected {how.example} in each line; {fix}")
    (folder / ENDS).write_bytes(ends.tobytes())
    write_json(asdict(bad), folder / SKIPPED)


def list_filled_lines(path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield each line that is not blank, after its name; DataError if one is too long."""
    for number, line in enumerate(read_lines(path, longest=LONGEST_LINE + 1), 1):
        if len(line) > LONGEST_LINE:
            limit = f"{LONGEST_LINE:,} bytes; put it into a file"
            raise DataError(f"{path}: line {number:,} is longer than {limit}")
        if line.removeprefix(codecs.BOM_UTF8).strip():
            yield f"line {number:,}", line


def parse_line(where: str, line: bytes, how: LineFormat) -> tuple[bytes, Identifier | None]:
    """Return the text in a line, and its identifier if there is a key of it; DataError says what
    the line has instead."""
    lacks = "text"
    try:
        content = json.loads(line)
        text = find_text(content, how.text_key or KEY).encode()
        lacks = "identifier"
        return text, None if how.id_key is None else find_identifier(content, how.id_key)
    except UnicodeDecodeError as error:
        raise DataError(f"{invalid_text(where, error)}; {LATIN_1}") from error
    except UnicodeEncodeError as error:
        raise invalid_text(where, error) from error
    except RecursionError:
        problem = "it is nested too deeply"
    except json.JSONDecodeError as error:
        cause = error.msg.removesuffix(" at")
        problem = f"it is not JSON ({cause} at character {error.pos + 1})"
    except ValueError as error:
        problem = str(error)
    hint = ARRAY if line.lstrip().startswith(b"[") else ""
    raise DataError(f"{where} has no {lacks}: {problem}{hint}")


def find_text(content: Any, key: str) -> str:
    if not isinstance(content, dict):
        raise ValueError(f"it is {JSON_TYPES[type(content)]}")
    text = require_value(content, key)
    if not isinstance(text, str):
        raise ValueError(f"its {key} is {JSON_TYPES[type(text)]}")
    return text


def find_identifier(content: dict[str, Any], key: str) -> Identifier:
    identifier = require_value(content, key)
    if isinstance(identifier, bool) or not isinstance(identifier, Identifier):
        kind = JSON_TYPES[type(identifier)]
        raise ValueError(f"its {key} is {kind}, not a text or a number")
    if isinstance(identifier, float) and not math.isfinite(identifier):
        raise ValueError(f"its {key} is {identifier}")
    # Half of a surrogate pair is no text.
    str(identifier).encode()
    return identifier


def require_value(content: dict[str, Any], key: str) -> Any:
    value = find_value(content, key)
    if value is MISSING:
        keys = ", ".join(islice(content, N_FIRST)) or "none"
        raise ValueError(f"there is no key {key}; its keys: {shorten(keys)}")
    return value


def find_value(content: dict[str, Any], key: str) -> Any:
    """Return the value of a key, or of a.b that of the key b of the object under a; or MISSING."""
    if key in content:
        return content[key]
    first, _, rest = key.partition(".")
    inner = content.get(first)
    return find_value(inner, rest) if rest and isinstance(inner, dict) else MISSING


def set_value(content: dict[str, Any], key: str, value: Any) -> None:
    """Put a value where `find_value` finds it."""
    first, _, rest = key.partition(".")
    inner = content.get(first, {})
    if rest and isinstance(inner, dict):
        content[first] = inner
        set_value(inner, rest, value)
    else:
        content[key] = value


def write_identifiers(pieces: Iterable[tuple], path: Path) -> Iterator[tuple[Any, Any]]:
    """Yield the ids and starts of pieces; write the identifiers of their documents, in lines."""
    with path.open("w") as file:
        for ids, starts, identifiers in pieces:
            file.writelines(json.dumps(each) + "\n" for each in identifiers)
            yield ids, starts
    flush_to_disk(path)


def save_texts(texts: Iterable[str], path: Path, key: str | None = None) -> None:
    """Write texts as JSON lines under a key, which `unpack_lines` reads."""
    require(not isinstance(texts, str), "texts", "one text", "a list of texts")
    require(has_ending(path, LINES), "path", path, f"a file whose name ends with {LINES[0]}")

    def save_part(part: Path) -> None:
        with part.open("w", encoding="utf-8") as file:
            for text in texts:
                require(isinstance(text, str), "texts", repr(text), "texts")
                print(json.dumps({key or KEY: text}), file=file)

    replace_file(path, save_part)
