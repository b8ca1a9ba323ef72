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
"""Values to choose from."""
Clock = Callable[[], float]


def choose_adaptation(
    model: Network,
    tokens: Tokens,
    protocol: Protocol,
    seconds: float,
    clock: Clock = time.monotonic,
) -> Protocol:
    """Return a protocol with the values of CHOICES that have the fewest nats, one name after the
    other. A network without states has no cache; several rows and packed weights take no steps."""
    best = replace(protocol, max_tokens=None, cache_len=CACHE_LEN if has_states(model) else 0)
    takes_steps = protocol.batch_size == 1 and is_trainable(model)
    names = ["rate"] if takes_steps else []
    names += ["cache_theta", "cache_weight"] if best.cache_len else []
    for name in names:
        ways = [replace(best, **{name: value}) for value in CHOICES[name]]
        _, nats = score_in_turns(model, tokens, ways, seconds / len(names), clock)
        # A rate that is too large makes nats that are no numbers.
        nats = [math.inf if math.isnan(each) else each for each in nats]
        best = ways[nats.index(min(nats))]
    return replace(best, max_tokens=protocol.max_tokens)


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
