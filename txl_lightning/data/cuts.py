"""Pieces of a text that are encoded at once; what their tokens are does not depend on the cuts."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import replace

from .text_files import CHUNK, FileSlice
from .vocab.base import Vocabulary

PIECE_BYTES = 8 << 20  # bytes of text that are encoded at once, by one process
SPACES = [chr(code).encode() for code in range(0x3001) if chr(code).isspace()]
LONGEST = max(map(len, SPACES))
# Of the bytes of UTF-8, in which a space may have three.
LINE_BREAK = re.compile(
    rb"(?s)(?<=.{%d})" % LONGEST
    + b"".join(b"(?<!%b)" % re.escape(space) for space in SPACES)
    + rb"\n(?!%b)(?=.{%d})" % (b"|".join(map(re.escape, SPACES)), LONGEST)
)


def plan_pieces(slices: Iterable[FileSlice], vocab: Vocabulary) -> Iterator[list[FileSlice]]:
    """Yield lists of slices of about PIECE_BYTES; large ones are cut at lines, if the ids of a
    vocabulary allow it."""
    piece = []
    total = 0
    for part in slices:
        start = part.start
        while start < part.stop:
            is_cut = part.stop - start > PIECE_BYTES and vocab.is_cut_at_lines
            stop = find_line(part, start + PIECE_BYTES) if is_cut else part.stop
            if piece and total + stop - start > PIECE_BYTES:
                yield piece
                piece = []
                total = 0
            piece.append(replace(part, start=start, stop=stop, continues=start > part.start))
            total += stop - start
            start = stop
    if piece:
        yield piece


def find_line(part: FileSlice, offset: int) -> int:
    """Return the first beginning of a line after `offset`, not beside other white space.

    Vocabularies join bytes to characters or words, but none joins two such lines.
    """
    with part.path.open("rb") as file:
        while offset < part.stop:
            file.seek(max(offset - LONGEST - 1, part.start))
            window = file.read(min(CHUNK, part.stop - file.tell()))
            if match := LINE_BREAK.search(window):
                return file.tell() - len(window) + match.end()
            if file.tell() == part.stop:
                break
            # The end may be the beginning of a match.
            offset = file.tell() - LONGEST + 1
    return part.stop
