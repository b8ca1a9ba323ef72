"""Nats of a text of any length, counted in constant memory, and how sure their mean is.

K targets that are scored
"""

import math
from pathlib import Path

import numpy as np

from ..data.stream import Stream
from .scoring import TokenNats

BLOCKS = 1000
"""Blocks at most."""
SHORTEST_BLOCK = 64
"""Tokens in a block at least: neighbours are too much alike to be drawn one by one."""
RESAMPLES = 1000
SEED = 1
LEVEL = 0.95


class NatsAccumulator:
    """Sums in float64 over blocks of consecutive tokens of a text of n_token."""

    def __init__(self, n_token: int) -> None:
        self.block_len = max(SHORTEST_BLOCK, -(-n_token // BLOCKS))
        n_block = -(-n_token // self.block_len)
        self.nats = np.zeros(n_block)
        self.count = np.zeros(n_block, np.int64)

    def add(self, part: TokenNats) -> None:
        block_K, n_block = part.position_K // self.block_len, len(self.nats)
        self.nats += np.bincount(block_K, part.nats_K.double().numpy(), n_block)
        self.count += np.bincount(block_K, minlength=n_block)

    @property
    def n_scored(self) -> int:
        return int(self.count.sum())

    @property
    def mean(self) -> float:
        return float(self.nats.sum() / self.n_scored)

    def interval(self) -> tuple[float, float] | None:
        """Return where the mean of a text like this one lies, LEVEL of the time.

        A block bootstrap (Kuensch 1989): blocks are drawn with replacement. None of one block.
        """
        is_scored = self.count > 0
        nats, count = self.nats[is_scored], self.count[is_scored]
        if len(nats) < 2:
            return None
        equally = np.full(len(nats), 1 / len(nats))
        times = np.random.default_rng(SEED).multinomial(len(nats), equally, RESAMPLES)
        means = (times @ nats) / (times @ count)
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def describe(self) -> dict[str, float]:
        blocks = {"block_len": self.block_len, "blocks": int((self.count > 0).sum())}
        return {"level": LEVEL, **blocks, "resamples": RESAMPLES, "seed": SEED}


def count_cold_starts(part: TokenNats, stream: Stream, mem_len: int) -> int:
    """Return how many targets of a segment are scored with only one token before them in sight.

    The text's own beginning is one of them; beginnings of documents are not counted.
    """
    if not mem_len and not stream.ext_len:
        return len(np.unique(part.position_K // stream.row_len))
    column_K = part.position_K if stream.warmup_len else part.position_K % stream.row_len
    return int((column_K == 1).sum())


class PerToken:
    """The nats of every token in input order, as a .npy file; nan where none are scored."""

    def __init__(self, path: Path, n_token: int) -> None:
        self.nats = np.lib.format.open_memmap(path, "w+", np.float32, (n_token,))
        self.nats[:] = np.nan

    def add(self, part: TokenNats) -> None:
        self.nats[part.position_K] = part.nats_K.numpy()


def readings(nats: float, unit: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return mean nats of a token in the field's other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats) of the mean; a mean of perplexities is neither.
    Bits per byte of the text compare models whose tokens are of different kinds.
    """
    bits = nats / math.log(2)
    values = {"nats": nats, f"bits_per_{unit}": bits, "perplexity": math.exp(min(nats, 700.0))}
    return values | ({"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {})
