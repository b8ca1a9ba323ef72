"""The result of an evaluation as plain values with intervals, computed in constant memory.

K scored targets   N tokens of the text
"""

import math
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import numpy as np

from ..data.store import EvalText
from ..data.stream import Stream
from ..errors import NonFiniteError
from ..machine import describe_environment, peak_memory
from ..model import TransformerXL
from .protocols import PROTOCOLS, Protocol, ProtocolOptions
from .scoring import TokenNats, score_text

BLOCKS = 1000
"""Maximum number of blocks."""
SHORTEST_BLOCK = 64
"""Minimum tokens per block: neighboring tokens are too correlated to be sampled one by one."""
RESAMPLES, SEED, LEVEL = 1000, 1, 0.95
"""Samples and seed of the block bootstrap, and its confidence level."""


class NatsAccumulator:
    """Sums in float64 over blocks of consecutive tokens of a text of n_token."""

    def __init__(self, n_token: int) -> None:
        self.block_len = max(SHORTEST_BLOCK, -(-n_token // BLOCKS))
        n_block = -(-n_token // self.block_len)
        self.nats, self.count = np.zeros(n_block), np.zeros(n_block, np.int64)

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

    def interval(self) -> list[float]:
        """Return the confidence interval of the mean at LEVEL; [] for a single block.

        A block bootstrap (Kuensch 1989): blocks are drawn with replacement.
        """
        is_scored = self.count > 0
        nats, count = self.nats[is_scored], self.count[is_scored]
        if len(nats) < 2:
            return []
        equally = np.full(len(nats), 1 / len(nats))
        times = np.random.default_rng(SEED).multinomial(len(nats), equally, RESAMPLES)
        means = (times @ nats) / (times @ count)
        return np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()

    def summary(self, unit: str, n_byte: float) -> dict[str, Any]:
        """Return the means in all units, each with its interval."""
        size = n_byte / self.n_scored if n_byte else None
        means = readings(self.mean, unit, size)
        ends = [readings(nats, unit, size) for nats in self.interval()]
        interval = {name: [end[name] for end in ends] or None for name in means}
        blocks = {"block_len": self.block_len, "blocks": int((self.count > 0).sum())}
        interval |= {"level": LEVEL, **blocks, "resamples": RESAMPLES, "seed": SEED}
        counts = {"tokens_scored": self.n_scored, "bytes_scored": n_byte or None}
        return counts | means | {"interval": interval}


def readings(nats: float, unit: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return mean nats per token in other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats), computed from the mean; perplexities are never
    averaged. Bits per byte of text compare models with different vocabularies.
    """
    bits = nats / math.log(2)
    values = {"nats": nats, f"bits_per_{unit}": bits, "perplexity": math.exp(min(nats, 700.0))}
    return values | ({"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {})


def evaluate(
    model: TransformerXL,
    text: EvalText,
    protocol: Protocol,
    nats_N: np.ndarray | None = None,
    report: Callable[[int], object] = lambda count: None,
) -> dict[str, Any]:
    """Score a text in constant memory, and report the number of scored tokens per segment.

    nats_N receives the nats of scored tokens, at their positions in the text.

    Raises:
        ValueError: an invalid length, or a text without scored tokens.
        NonFiniteError: nats that are not finite.
    """
    stream, n_byte, n_cold, began = protocol.stream(text.tokens), 0.0, 0, time.perf_counter()
    total = NatsAccumulator(stream.end)
    mem_len = protocol.lengths.resolve(model.config).mem_len
    for part in score_text(model, text.tokens, protocol):
        n_byte += text.count_bytes(part.position_K) or 0.0
        n_cold += count_cold_starts(part, stream, mem_len)
        total.add(part)
        if nats_N is not None:
            nats_N[part.position_K] = part.nats_K.numpy()
        report(len(part.position_K))
    if not total.n_scored:
        raise ValueError(f"{text.name}: no token is scored; expected a text of two tokens or more")
    if not math.isfinite(total.mean):
        raise NonFiniteError(f"{text.name}: nats {total.mean}; the network's weights are invalid")
    seconds = time.perf_counter() - began
    record = describe_reading(model, text, protocol) | {"cold_starts": n_cold, "tokens": stream.end}
    record |= total.summary(text.vocab.unit, n_byte)
    record |= {"seconds": seconds, "tokens_per_second": total.n_scored / seconds}
    record["peak_memory_bytes"] = peak_memory(model.device)
    return record | describe_environment(model.device)


def count_cold_starts(part: TokenNats, stream: Stream, mem_len: int) -> int:
    """Return how many targets of a segment are scored with a context of only one token.

    The text's own beginning counts; beginnings of documents do not.
    """
    if not mem_len and not stream.ext_len:
        return len(np.unique(part.position_K // stream.row_len))
    column_K = part.position_K if stream.warmup_len else part.position_K % stream.row_len
    return int((column_K == 1).sum())


def describe_reading(model: TransformerXL, text: EvalText, protocol: Protocol) -> dict[str, Any]:
    """Return the text and the protocol as plain values, with the lengths in use."""
    fields, standard = asdict(protocol), asdict(PROTOCOLS[protocol.name])
    lengths = {name: fields[name] for name in asdict(ProtocolOptions())}
    changed = [name for name in lengths if fields[name] != standard[name]]
    lengths |= protocol.lengths.resolve(model.config)._asdict()
    lengths["tgt_len"] = protocol.tgt_len or protocol.stream(text.tokens).end
    record = {"protocol": protocol.name, "changed": changed, "source": protocol.source}
    record |= {"text": text.name, "split": text.split, "fingerprint": text.fingerprint}
    return record | {"lengths": lengths}
