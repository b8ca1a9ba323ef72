"""Choose how an evaluation adapts, on another text than the one that it measures."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from ..data.tokens import Tokens
from ..model import Network, eval_mode
from ..model.adaptation import is_trainable
from ..model.contract import has_states
from .protocols import Protocol
from .scoring import score_text

CACHE_LEN = 20_000
CHOICES = {
    "rate": (0.1, 0.03, 0.2, 0.0),
    "cache_theta": (20.0, 30.0, 45.0, 60.0),
    "cache_weight": (0.2, 0.3, 0.4, 0.5, 0.6),
}
"""Values to choose from, in this order of names."""
Clock = Callable[[], float]


def choose_adaptation(
    model: Network,
    tokens: Tokens,
    protocol: Protocol,
    seconds: float,
    clock: Clock = time.monotonic,
) -> Protocol:
    """Return a protocol with the values of CHOICES, of those not given, that have the fewest nats.

    Of several rows, and with packed weights, the rate is 0.
    """
    usual = {"cache_len": CACHE_LEN if has_states(model) else 0}
    if protocol.batch_size > 1 or not is_trainable(model):
        usual["rate"] = 0.0
    best = replace(protocol, max_tokens=None, **usual | protocol.given)
    names = [name for name in CHOICES if name not in best.given]
    if not best.cache_len:
        names = [name for name in names if name == "rate"]
    for name in names:
        ways = [replace(best, **{name: value}) for value in CHOICES[name]]
        _, nats = score_in_turns(model, tokens, ways, seconds / len(names), clock)
        # A rate that is too large makes nats that are no numbers.
        nats = [math.inf if math.isnan(each) else each for each in nats]
        best = ways[nats.index(min(nats))]
    return replace(protocol, **best.given)


def score_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol], seconds: float, clock: Clock
) -> tuple[int, list[float]]:
    """Score a text, or what the time allows of it, in several ways; return tokens and nats of each.

    A segment is scored in each way before the next one, so that all have the same tokens.
    """
    n_scored = 0
    nats = [0.0] * len(ways)
    end = clock() + seconds
    # Each way restores the mode that it found, not that of the network before all of them.
    with eval_mode(model):
        for parts in zip(*(score_text(model, tokens, way) for way in ways), strict=True):
            n_scored += len(parts[0].nats_K)
            sums = (part.nats_K.double().sum().item() for part in parts)
            nats = [total + more for total, more in zip(nats, sums, strict=True)]
            if clock() >= end:
                break
    return n_scored, nats
