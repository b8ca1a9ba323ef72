"""All that there is to say of one evaluation, in plain values."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

from ..data.eval_text import EvalText
from ..errors import NonFiniteError
from ..model import TransformerXL
from .environment import describe_environment, peak_memory
from .protocols import PROTOCOLS, Protocol
from .scoring import TokenNats, text_parts
from .stats import ColdStarts, NatsAccumulator
from .units import readings


def evaluate(
    model: TransformerXL,
    text: EvalText,
    protocol: Protocol,
    watchers: Sequence[Callable[[TokenNats], None]] = (),
) -> dict[str, Any]:
    """Score a text in constant memory.

    Args:
        model: the network.
        text: what is read.
        protocol: how.
        watchers: are given each part when it is scored.

    Raises:
        ValueError: a length that cannot be, or a text with nothing to score.
    """
    stream, n_byte = protocol.stream(text.tokens), 0.0
    tally, began = NatsAccumulator(stream.end), time.perf_counter()
    mem_len = protocol.lengths.resolve(model.config).mem_len
    cold = ColdStarts(protocol, stream, mem_len)
    for part in text_parts(model, text.tokens, protocol):
        n_byte += text.count_bytes(part.at_K) or 0.0
        for watch in (tally.add, cold.add, *watchers):
            watch(part)
    check(tally, text.name)
    seconds = time.perf_counter() - began
    return {
        **described(model, text, protocol),
        "cold_starts": cold.count,
        **counted(tally, text, n_byte, stream.end),
        "seconds": seconds,
        "tokens_per_second": tally.n_scored / seconds,
        "peak_memory_bytes": peak_memory(model.device),
        **describe_environment(model.device),
    }


def check(tally: NatsAccumulator, name: str) -> None:
    """Refuse a mean that says nothing.

    Raises:
        ValueError: nothing was scored.
        NonFiniteError: a token has no probability that is a number.
    """
    if not tally.n_scored:
        raise ValueError(f"{name}: nothing in it is scored; it must have two tokens or more")
    if not math.isfinite(tally.mean):
        raise NonFiniteError(f"{name}: nats {tally.mean}; the network's weights are of no use")


def described(model: TransformerXL, text: EvalText, protocol: Protocol) -> dict[str, Any]:
    """What is read, and how: lengths as they are used, also where the protocol leaves them."""
    how = asdict(protocol)
    usual = asdict(PROTOCOLS[protocol.name])
    lengths = {name: how[name] for name in how if name not in ("name", "source", "unit")}
    lengths |= protocol.lengths.resolve(model.config)._asdict()
    lengths["tgt_len"] = protocol.tgt_len or protocol.stream(text.tokens).end
    return {
        "protocol": protocol.name,
        "changed": [name for name in lengths if how[name] != usual[name]],
        "source": protocol.source,
        "text": text.name,
        "split": text.split,
        "fingerprint": text.fingerprint,
        "lengths": lengths,
    }


def counted(tally: NatsAccumulator, text: EvalText, n_byte: float, n_token: int) -> dict[str, Any]:
    """What came out; of the means, where they would lie for texts like this one."""
    unit = text.vocab.unit
    size = n_byte / tally.n_scored if n_byte else None
    means = readings(tally.mean, unit, size)
    ends = tally.interval()
    both = [readings(nats, unit, size) for nats in ends] if ends else []
    interval = {name: [end[name] for end in both] or None for name in means}
    return {
        "tokens": n_token,
        "tokens_scored": tally.n_scored,
        "bytes_scored": n_byte or None,
        **means,
        "interval": interval | tally.described(),
    }
