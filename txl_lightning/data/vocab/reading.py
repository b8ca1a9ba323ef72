"""A document's bytes as text, a piece at a time."""

import codecs
import math
import re
from collections.abc import Iterable, Iterator
from itertools import chain

from ...errors import DataError
from ..documents import FileSlice

LAST_GAP = re.compile(r"(?s:.*)\S(?= )|(?s:.*)\S(?=[^\S\x1c-\x1f])")
"""Up to the last word's end, best before a space: tokenizers may join a line's end to the word
before it, and do not take the separators 1c to 1f for white space, as Python does."""


def decode_utf8(document: FileSlice) -> Iterator[str]:
    """Yield a document's characters, a piece at a time.

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
            # The decoder keeps the first bytes of a character that straddles two chunks.
            n_kept = len(error.object) - len(chunk)
            at = offset - n_kept + error.start
            message = f"{document.path}: byte {at} is not UTF-8 text; use data.vocab bytes"
            raise DataError(message) from error
        offset += len(chunk)


def split_by_length(texts: Iterable[str], size: int) -> Iterator[str]:
    """Yield the same text in pieces of at most `size` characters."""
    for text in texts:
        for start in range(0, len(text), size):
            yield text[start : start + size]


def split_between_words(texts: Iterable[str], longest: float = math.inf) -> Iterator[str]:
    """Yield the same text in pieces that end with a word and continue with white space.

    Where `longest` characters have no such place, they are cut anywhere.
    """
    rest = ""
    for text in filter(None, texts):
        gap = LAST_GAP.match(rest)
        anywhere = len(rest) if len(rest) >= longest else 0
        if cut := gap.end() if gap else anywhere:
            yield rest[:cut]
        rest = rest[cut:] + text
    if rest:
        yield rest
