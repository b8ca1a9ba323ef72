"""Words counted in bounded memory: what does not fit is sorted, laid aside and merged."""

import heapq
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import groupby
from operator import itemgetter
from pathlib import Path

HELD = 300_000
"""Distinct words in memory at once; about 60 MB."""

RUNS = 100
"""Files read at once."""

Count = tuple[str, int, int]
"""A word, the order of its first occurrence, and how often it occurs."""


def most_common(counts: Iterable[Count], at_most: int | None) -> list[str]:
    """The words by falling count; of those with the same, the first to occur is first."""
    if at_most is None:
        chosen = sorted(counts, key=_rank)
    else:
        chosen = heapq.nsmallest(at_most, counts, key=_rank)
    return [word for word, _, _ in chosen]


def counted(pieces: Iterable[list[str]], held: int = HELD, runs: int = RUNS) -> Iterator[Count]:
    """Every word of a text once.

    Args:
        pieces: its words, in order; none has white space in it.
        held: distinct words to hold in memory.
        runs: files to read at once.
    """
    with tempfile.TemporaryDirectory(prefix="words-") as folder:
        files: list[Path] = []
        counter: Counter[str] = Counter()
        start = 0
        for words in pieces:
            counter.update(words)
            if len(counter) > held:
                files.append(_laid_aside(folder, sorted(_numbered(counter, start))))
                start += len(counter)
                counter.clear()
            if len(files) == runs:
                files = [_laid_aside(folder, _merged(map(_read, files)))]
        last = _numbered(counter, start)
        yield from _merged([*map(_read, files), sorted(last)]) if files else last


def _numbered(counter: Counter[str], start: int) -> Iterator[Count]:
    """A counter is in the order of first occurrence."""
    return ((word, start + i, count) for i, (word, count) in enumerate(counter.items()))


def _merged(runs: Iterable[Iterable[Count]]) -> Iterator[Count]:
    for word, same in groupby(heapq.merge(*runs), key=itemgetter(0)):
        counts = list(same)
        yield word, counts[0][1], sum(count for _, _, count in counts)


def _laid_aside(folder: str, counts: Iterable[Count]) -> Path:
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=folder, delete=False) as file:
        file.writelines(f"{word} {first} {count}\n" for word, first, count in counts)
    return Path(file.name)


def _read(path: Path) -> Iterator[Count]:
    with path.open(encoding="utf-8") as file:
        for line in file:
            word, first, count = line.split(" ")
            yield word, int(first), int(count)


def _rank(count: Count) -> tuple[int, int]:
    _, first, times = count
    return -times, first
