"""JSON lines, an object with a text in each; and the lines of any file."""

import json
import sys
from array import array
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from ..errors import DataError, invalid_text, require, shorten
from ..files import has_ending, replace_file
from .archives import unpack

LINES = (".jsonl", ".ndjson", ".jsonlines")
TEXT = "text"  # a file of `write_texts`: the texts, one after another
ENDS = "ends"  # a file of `write_texts`: the position where each text ends
LONGEST_LINE = 1 << 30  # bytes of a line
N_FIRST = 10  # lines of a file by which it is known
LATIN_1 = "if it is Latin-1: iconv -f ISO-8859-1 -t UTF-8"
EXPECTED = 'expected JSON in each line, as {"text": "..."}'
JSON_TYPES = {dict: "an object", list: "a list", str: "a text", bool: "true or false"}
JSON_TYPES |= {int: "a number", float: "a number", type(None): "null"}


def read_lines(
    path: Path, start: int = 0, n_byte: int = sys.maxsize, longest: int = sys.maxsize
) -> Iterator[bytes]:
    """Yield the lines in some bytes of a file; each ends with \\n, \\r\\n or \\r.

    A line that is longer than `longest` is cut.
    """
    # Latin-1 has a character for each byte.
    with path.open(encoding="latin-1", newline="") as file:
        file.seek(start)
        while line := file.readline(min(n_byte, longest)):
            n_byte -= len(line)
            yield line.encode("latin-1")


def has_objects(path: Path, any_object: bool = False) -> bool:
    """Return True if one of the first lines is an object with a text, or any object of JSON."""
    lines = filter(bytes.strip, read_lines(path, longest=LONGEST_LINE))
    return any(is_object(line, any_object) for line in islice(lines, N_FIRST))


def is_object(line: bytes, any_object: bool) -> bool:
    try:
        content = json.loads(line)
    except (ValueError, RecursionError):
        return False
    has_text = isinstance(content, dict) and isinstance(content.get("text"), str)
    return has_text or (any_object and isinstance(content, dict))


def unpack_lines(path: Path, data_dir: Path) -> Iterator[tuple[Path, int, int]]:
    """Yield the file with the texts of JSON lines, written once, and the bounds of each text that
    is not empty."""
    folder = unpack(path, data_dir, write_texts)
    start = 0
    for end in array("q", (folder / ENDS).read_bytes()):
        if end > start:
            yield folder / TEXT, start, end
        start = end


def write_texts(path: Path, folder: Path) -> None:
    """Write the texts of JSON lines into one file, and the end of each into another."""
    ends = array("q")
    n_byte = 0
    with (folder / TEXT).open("wb") as file:
        for number, line in enumerate(read_lines(path, longest=LONGEST_LINE + 1), 1):
            where = f"{path}: line {number:,}"
            if len(line) > LONGEST_LINE:
                limit = f"{LONGEST_LINE:,} bytes; put it into a file"
                raise DataError(f"{where} is longer than {limit}")
            n_byte += file.write(parse_line(where, line) if line.strip() else b"")
            ends.append(n_byte)
    (folder / ENDS).write_bytes(ends.tobytes())


def parse_line(where: str, line: bytes) -> bytes:
    """Return the text in a line; DataError says what the line has instead."""
    try:
        return find_text(json.loads(line)).encode()
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
    raise DataError(f"{where} has no text: {problem}; {EXPECTED}")


def find_text(content: Any) -> str:
    if not isinstance(content, dict):
        raise ValueError(f"it is {JSON_TYPES[type(content)]}")
    if "text" not in content:
        keys = ", ".join(islice(content, N_FIRST)) or "none"
        raise ValueError(f"there is no key text; its keys: {shorten(keys)}")
    if not isinstance(content["text"], str):
        raise ValueError(f"its text is {JSON_TYPES[type(content['text'])]}")
    return content["text"]


def save_texts(texts: Iterable[str], path: Path) -> None:
    """Write texts as JSON lines, which `unpack_lines` reads."""
    require(not isinstance(texts, str), "texts", "one text", "a list of texts")
    require(has_ending(path, LINES), "path", path, f"a file whose name ends with {LINES[0]}")

    def save_part(part: Path) -> None:
        with part.open("w", encoding="utf-8") as file:
            for text in texts:
                require(isinstance(text, str), "texts", repr(text), "texts")
                print(json.dumps({"text": text}), file=file)

    replace_file(path, save_part)
