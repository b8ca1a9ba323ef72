"""Text that comes in parts: which of it has its final tokens, and where in it each token is.

L tokens
"""

import re
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

import numpy as np

LONGEST_WAIT = 4096  # characters without a place to cut, after which a text is cut anywhere
WORD = re.compile(r"\S+")
WORD_OR_LINE_END = re.compile(r"\r\n|[\r\n]|\S+")


class Spans(NamedTuple):
    """The tokens of a text, and the characters that each stands for."""

    ids_L: np.ndarray
    start_L: list[int]
    stop_L: list[int]


def cut_runs(run: re.Pattern[str], text: str) -> list[str]:
    """Return a text, cut after every LONGEST_WAIT characters of each run that goes on.

    Where it is cut does not depend on what was there when its first characters came.
    """
    cuts = [0]
    for match in run.finditer(text):
        cuts += range(match.start() + LONGEST_WAIT, match.end(), LONGEST_WAIT)
    return [text[start:stop] for start, stop in zip(cuts, [*cuts[1:], len(text)], strict=True)]


def place_pieces(ids_L: np.ndarray, pieces: Iterable[str], text: str) -> Spans:
    """Return where tokens are whose decoded pieces are the text; else, the last one has it all."""
    sizes = [len(piece) for piece, _ in zip(pieces, ids_L, strict=False)]
    if sum(sizes) != len(text):
        sizes = [0] * len(ids_L)
        sizes[-1:] = [len(text)] * len(sizes[-1:])
    stop_L = [*accumulate(sizes)]
    return Spans(ids_L, [0, *stop_L[:-1]][: len(ids_L)], stop_L)


def place_matches(ids_L: np.ndarray, matches: Iterable[tuple[int, re.Match[str]]]) -> Spans:
    """Return where tokens are, of which so many stand for each match; the last one has its text."""
    spans = []
    for count, match in matches:
        spans += [(match.start(), match.start())] * (count - 1)
        spans += [match.span()] * bool(count)
    # Symbols before a text.
    spans = [(0, 0)] * (len(ids_L) - len(spans)) + spans
    return Spans(ids_L, [start for start, _ in spans], [stop for _, stop in spans])


def place_offsets(ids_L: np.ndarray, offsets: Iterable[tuple[int, int]]) -> Spans:
    """Return where tokens are from their offsets: a character is that of its last token."""
    starts = []
    stops = []
    for start, stop in offsets:
        if stops and start < stops[-1]:
            stops[-1] = max(starts[-1], start)
        starts.append(start)
        stops.append(stop)
    return Spans(ids_L, starts, stops)
