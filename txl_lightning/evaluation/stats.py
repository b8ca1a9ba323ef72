"""Nats of a text of any length, counted in constant memory, and how sure their mean is."""

from pathlib import Path

import numpy as np
from torch import Tensor

from ..data.stream import Stream
from .protocols import Protocol
from .scoring import TokenNats

BLOCKS = 1000
"""Blocks at most."""

SHORTEST_BLOCK = 64
"""Tokens in a block at least: neighbours are too much alike to be drawn one by one."""

RESAMPLES = 1000
SEED = 1
LEVEL = 0.95


class NatsAccumulator:
    """Sums in float64 over blocks of consecutive tokens.

    Args:
        n_token: tokens of the text.
    """

    def __init__(self, n_token: int) -> None:
        self.block_len = max(SHORTEST_BLOCK, -(-n_token // BLOCKS))
        n_block = -(-n_token // self.block_len)
        self.nats = np.zeros(n_block)
        self.count = np.zeros(n_block, np.int64)

    def add(self, part: TokenNats) -> None:
        """Count some tokens, each once."""
        block_K, n_block = part.at_K // self.block_len, len(self.nats)
        self.nats += np.bincount(block_K, float64(part.nats_K), n_block)
        self.count += np.bincount(block_K, minlength=n_block)

    @property
    def n_scored(self) -> int:
        """Tokens counted."""
        return int(self.count.sum())

    @property
    def mean(self) -> float:
        """Nats of a token."""
        return float(self.nats.sum() / self.n_scored)

    def interval(self) -> tuple[float, float] | None:
        """Where the mean of a text like this one lies, LEVEL of the time; None of a single block.

        A block bootstrap (Kuensch 1989): blocks are drawn with replacement.
        """
        there = self.count > 0
        nats, count = self.nats[there], self.count[there]
        if len(nats) < 2:
            return None
        random, equally = np.random.default_rng(SEED), np.full(len(nats), 1 / len(nats))
        drawn = (random.multinomial(len(nats), equally) for _ in range(RESAMPLES))
        means = [(times @ nats) / (times @ count) for times in drawn]
        low, high = np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
        return float(low), float(high)

    def described(self) -> dict[str, float]:
        """How the interval is made."""
        blocks = {"block_len": self.block_len, "blocks": int((self.count > 0).sum())}
        return {"level": LEVEL, **blocks, "resamples": RESAMPLES, "seed": SEED}


class ColdStarts:
    """How many times a token is scored first of all, with nothing before it to be seen.

    The text's own beginning is one of them; beginnings of documents are not counted.

    Args:
        protocol: how the text is read.
        stream: the text, as it is read.
        mem_len: states remembered.
    """

    def __init__(self, protocol: Protocol, stream: Stream, mem_len: int) -> None:
        self.row_len, self.warmed = stream.row_len, protocol.warmup_len > 0
        self.in_each_segment = not mem_len and not protocol.ext_len
        self.count = 0

    def add(self, part: TokenNats) -> None:
        """Count those of a segment."""
        if self.in_each_segment:
            self.count += len(np.unique(part.at_K // self.row_len))
        elif self.warmed:
            self.count += int((part.at_K == 1).sum())
        else:
            self.count += int((part.at_K % self.row_len == 1).sum())


class PerToken:
    """The nats of every token in input order, as a .npy file; nan where none are scored.

    Args:
        path: the file.
        n_token: tokens of the text.
    """

    def __init__(self, path: Path, n_token: int) -> None:
        self.nats = np.lib.format.open_memmap(path, "w+", np.float32, (n_token,))
        self.nats[:] = np.nan

    def add(self, part: TokenNats) -> None:
        """Put some tokens' nats in their places."""
        self.nats[part.at_K] = part.nats_K.numpy()


def float64(nats_K: Tensor) -> np.ndarray:
    """The same numbers, so that millions of them can be added."""
    return nats_K.double().numpy()
