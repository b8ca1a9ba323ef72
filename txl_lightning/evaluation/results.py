"""One evaluation as a record of plain values."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..data.store import EvalText
from ..errors import NonFiniteError
from ..model import TransformerXL
from .environment import describe_environment, peak_memory
from .protocols import PROTOCOLS, Protocol
from .scoring import TokenNats, score_text
from .stats import NatsAccumulator, count_cold_starts, readings


def evaluate(
    model: TransformerXL,
    text: EvalText,
    protocol: Protocol,
    watchers: Sequence[Callable[[TokenNats], None]] = (),
) -> dict[str, Any]:
    """Score a text in constant memory; each watcher is called with each part that is scored.

    Raises:
        ValueError: an impossible length, or a text with nothing to score.
        NonFiniteError: a token whose probability is not a number.
    """
    stream, n_byte, n_cold, began = protocol.stream(text.tokens), 0.0, 0, time.perf_counter()
    total = NatsAccumulator(stream.end)
    mem_len = protocol.lengths.resolve(model.config).mem_len
    for part in score_text(model, text.tokens, protocol):
        n_byte += text.count_bytes(part.position_K) or 0.0
        n_cold += count_cold_starts(part, stream, mem_len)
        for watch in (total.add, *watchers):
            watch(part)
    if not total.n_scored:
        raise ValueError(f"{text.name}: nothing in it is scored; it must have two tokens or more")
    if not math.isfinite(total.mean):
        raise NonFiniteError(f"{text.name}: nats {total.mean}; the network's weights are of no use")
    seconds = time.perf_counter() - began
    return {
        **describe_reading(model, text, protocol),
        "cold_starts": n_cold,
        "tokens": stream.end,
        **summarize_nats(total, text.vocab.unit, n_byte),
        "seconds": seconds,
        "tokens_per_second": total.n_scored / seconds,
        "peak_memory_bytes": peak_memory(model.device),
        **describe_environment(model.device),
    }


def describe_reading(model: TransformerXL, text: EvalText, protocol: Protocol) -> dict[str, Any]:
    """Return which text is read and how, with the lengths in use."""
    fields, usual = asdict(protocol), asdict(PROTOCOLS[protocol.name])
    lengths = {name: fields[name] for name in fields if name not in ("name", "source", "unit")}
    changed = [name for name in lengths if fields[name] != usual[name]]
    lengths |= protocol.lengths.resolve(model.config)._asdict()
    lengths["tgt_len"] = protocol.tgt_len or protocol.stream(text.tokens).end
    return {
        "protocol": protocol.name,
        "changed": changed,
        "source": protocol.source,
        "text": text.name,
        "split": text.split,
        "fingerprint": text.fingerprint,
        "lengths": lengths,
    }


def summarize_nats(total: NatsAccumulator, unit: str, n_byte: float) -> dict[str, Any]:
    """Return the means in all units, each with its interval."""
    size = n_byte / total.n_scored if n_byte else None
    means = readings(total.mean, unit, size)
    ends = [readings(nats, unit, size) for nats in total.interval() or ()]
    interval = {name: [end[name] for end in ends] or None for name in means}
    return {
        "tokens_scored": total.n_scored,
        "bytes_scored": n_byte or None,
        **means,
        "interval": interval | total.describe(),
    }
