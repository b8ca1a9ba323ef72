"""A text of pairs of a key and a value, in which most keys repeat with the same value.

The package's task `recall` scores one token of an example: at a distance of 500 tokens, one of 511.
Here every second token is a value, and the distance to the last occurrence of its key is random, so
that one text tests all distances.
"""

from pathlib import Path

import numpy as np

KEYS, VALUES, LONGEST = 250, 8, 192
"""Keys, values, and the longest distance of a repeated key in pairs; it is less than KEYS."""
FRESH = 0.3
"""Share of pairs whose key gets a new value."""
FIRST_KEY, FIRST_VALUE = 0x4E00, ord("a")
"""Characters of keys and values."""


def write_pairs(folder: Path, counts: dict[str, int]) -> list[str]:
    """Write a file of `counts[split]` pairs for each split, and return their paths."""
    folder.mkdir(parents=True, exist_ok=True)
    for seed, (split, count) in enumerate(counts.items()):
        pairs = draw_pairs(np.random.default_rng(seed), count)
        text = "".join(chr(FIRST_KEY + k) + chr(FIRST_VALUE + v) for k, v in pairs)
        (folder / f"{split}.txt").write_text(text)
    return [str(folder / f"{split}.txt") for split in counts]


def draw_pairs(rng: np.random.Generator, count: int) -> list[tuple[int, int]]:
    """Draw pairs; distances of repeated keys are uniform in their logarithm."""
    pairs, last = [], {}
    while len(pairs) < count:
        back = int(np.exp(rng.uniform(0, np.log(LONGEST + 1))))
        here, earlier = len(pairs), len(pairs) - back
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


def find_distances(text: str) -> np.ndarray:
    """Return, for each character, the distance to its key's last value; 0 for keys and new values.

    A key that repeats after more than LONGEST pairs has a new value.
    """
    distance_N, last = np.zeros(len(text), np.int64), {}
    for place in range(1, len(text), 2):
        key = text[place - 1]
        away = place - last.get(key, -2 * LONGEST - 2)
        distance_N[place] = away if away <= 2 * LONGEST else 0
        last[key] = place
    return distance_N
