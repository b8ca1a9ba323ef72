"""A document's bytes as text, a piece at a time."""

import codecs
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from ...errors import DataError
from ..spans import Document

LAST_GAP = re.compile(r"(?s:.*)\S(?= )|(?s:.*)\S(?=[^\S\x1c-\x1f])")
"""Up to the last word's end, best before a space: tokenizers may join a line's end to the word
before it, and do not take the separators 1c to 1f for white space, as Python does."""


def decoded(document: Document) -> Iterator[str]:
    """Its characters, a piece at a time; a character may straddle two of its chunks.

    Raises:
        DataError: it is not UTF-8; with the file and the first such byte in it.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    offset = document.start
    for chunk in chain(document.chunks(), [b""]):
        try:
            if text := decoder.decode(chunk, final=not chunk):
                yield text
        except UnicodeDecodeError as error:
            held = len(error.object) - len(chunk)
            at = offset - held + error.start
            message = f"{document.path}: byte {at} is not UTF-8 text; use data.vocab bytes"
            raise DataError(message) from error
        offset += len(chunk)


def slices(texts: Iterable[str], size: int) -> Iterator[str]:
    """The same text in pieces of at most `size` characters."""
    for text in texts:
        for start in range(0, len(text), size):
            yield text[start : start + size]


def between_words(texts: Iterable[str], longest: float = math.inf) -> Iterator[str]:
    """The same text in pieces that end with a word and go on with white space.

    Where there is no such place in `longest` characters it is cut anywhere.
    """
    held = ""
    for text in filter(None, texts):
        gap = LAST_GAP.match(held)
        anywhere = len(held) if len(held) >= longest else 0
        if cut := gap.end() if gap else anywhere:
            yield held[:cut]
        held = held[cut:] + text
    if held:
        yield held
