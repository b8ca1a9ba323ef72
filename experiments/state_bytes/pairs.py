"""A text of pairs of a key and a value, in which most keys repeat with the same value.

Every second token is a value, and the distance to the last occurrence of its key is random, so one
text tests all distances. A text for training is a curriculum: in the first half of a row, the
longest distance grows from EASIEST to LONGEST pairs.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from txl_lightning.files import write_text

KEYS = 250
VALUES = 8
LONGEST = 192  # pairs from a key to where it was before; less than KEYS
EASIEST = 8
FRESH = 0.3  # share of pairs whose key gets a new value
FIRST_KEY = 0x4E00  # a character
FIRST_VALUE = ord("a")
PAIR_BYTES = 4
"""Of a key and a value in UTF-8."""


def write_pairs(paths: Sequence[Path], seed: int, lengths: Iterable[Sequence[int]]) -> None:
    """Write a file for each split; `lengths` has the numbers of pairs of its rows."""
    rng = np.random.default_rng(seed)
    for path, counts in zip(paths, lengths, strict=True):
        eased = path.stem == "train"
        rows = [draw_pairs(rng, count, count // 2 if eased else 0) for count in counts]
        text = "".join(chr(FIRST_KEY + k) + chr(FIRST_VALUE + v) for row in rows for k, v in row)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(text, path)


def draw_pairs(rng: np.random.Generator, count: int, easy: int = 0) -> list[tuple[int, int]]:
    """Draw pairs; distances of repeated keys are uniform in their logarithm.

    Over the first `easy` pairs, the longest distance grows from EASIEST to LONGEST. A key gets a
    new value only after LONGEST pairs, there, too: no far key ever has two values.
    """
    pairs = []
    last = {}
    while len(pairs) < count:
        here = len(pairs)
        longest = EASIEST * (LONGEST / EASIEST) ** min(1, here / easy) if easy else LONGEST
        back = int(np.exp(rng.uniform(0, np.log(longest + 1))))
        earlier = here - back
        if rng.random() < FRESH or earlier < 0:
            key = int(rng.integers(KEYS))
            if here - last.get(key, -LONGEST - 1) <= LONGEST:
                continue
            value = int(rng.integers(VALUES))
        else:
            key, value = pairs[earlier]
            if last[key] != earlier:
                continue
        pairs.append((key, value))
        last[key] = here
    return pairs


def find_distances(text: str, n_row: int) -> np.ndarray:
    """Return, for each character, the distance to its key's last value; 0 for keys and new values.

    A key that repeats after more than LONGEST pairs has a new value. 0, too, where the last value
    is in another of the `n_row` rows in which the text is read.
    """
    distance_N = np.zeros(len(text), np.int64)
    last = {}
    row_len = len(text) // n_row
    for place in range(1, len(text), 2):
        key = text[place - 1]
        away = place - last.get(key, -2 * LONGEST - 2)
        distance_N[place] = away if away <= min(2 * LONGEST, place % row_len - 1) else 0
        last[key] = place
    return distance_N
