"""Choose how an evaluation adapts, on another text than the one that it measures."""

import math
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import product

from torch import Tensor

from ..data.tokens import Tokens
from ..model import Network, eval_mode
from ..model.adaptation import is_trainable
from ..model.contract import has_states
from ..model.state_cache import mix_logp
from .protocols import Protocol
from .scoring import score_text

CACHE_LEN = 20_000
THETAS = (15.0, 30.0, 45.0, 60.0)
WEIGHTS = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6)
RATES = (0.1, 0.03, 0.2, 0.0)
Clock = Callable[[], float]


def choose_adaptation(
    model: Network,
    tokens: Tokens,
    protocol: Protocol,
    seconds: float,
    clock: Clock = time.monotonic,
) -> Protocol:
    """Return a protocol with the values, of those not given, that have the fewest nats.

    Of several rows, and with packed weights, the rate is 0.
    """
    usual = {"cache_len": CACHE_LEN if has_states(model) else 0}
    if protocol.batch_size > 1 or not is_trainable(model):
        usual["rate"] = 0.0
    best = replace(protocol, max_tokens=None, **usual | protocol.given)
    if best.cache_len:
        # In this share of the time, caches read as many tokens as all rates do in the rest.
        share = 1 if best.rate is not None else 0.25
        best = choose_cache(model, tokens, best, seconds * share, clock)
        seconds *= 1 - share
    if best.rate is None:
        ways = [replace(best, rate=rate) for rate in RATES]
        _, nats = score_in_turns(model, tokens, ways, seconds, clock)
        # A rate that is too large makes nats that are no numbers.
        nats = [math.inf if math.isnan(each) else each for each in nats]
        best = ways[nats.index(min(nats))]
    return replace(protocol, **best.given)


def choose_cache(
    model: Network, tokens: Tokens, protocol: Protocol, seconds: float, clock: Clock
) -> Protocol:
    """Return a protocol with the theta and the weight that are best without gradient steps.

    The network and each cache are scored alone, and then mixed with every weight.
    """
    thetas = THETAS if protocol.cache_theta is None else [protocol.cache_theta]
    weights = WEIGHTS if protocol.cache_weight is None else [protocol.cache_weight]
    alone = replace(protocol, cache_weight=1.0, rate=0.0)
    ways = [replace(alone, cache_len=0), *(replace(alone, cache_theta=each) for each in thetas)]
    nats: Counter[tuple[float, float]] = Counter()
    for network_K, *caches in read_in_turns(model, tokens, ways, seconds, clock):
        for (theta, cache_K), weight in product(zip(thetas, caches, strict=True), weights):
            mixed_K = -mix_logp(-network_K, -cache_K, weight)
            nats[theta, weight] += mixed_K.double().sum().item()
    theta, weight = min(nats, key=nats.__getitem__)
    return replace(protocol, cache_theta=theta, cache_weight=weight)


def score_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol], seconds: float, clock: Clock
) -> tuple[int, list[float]]:
    """Return the tokens that the time allows, and the sum of their nats in each way."""
    n_scored = 0
    nats = [0.0] * len(ways)
    for parts in read_in_turns(model, tokens, ways, seconds, clock):
        n_scored += len(parts[0])
        sums = (nats_K.double().sum().item() for nats_K in parts)
        nats = [total + more for total, more in zip(nats, sums, strict=True)]
    return n_scored, nats


def read_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol], seconds: float, clock: Clock
) -> Iterator[list[Tensor]]:
    """Yield nats_K of each segment that the time allows, in each way before the next segment."""
    end = clock() + seconds
    # Each way restores the mode that it found, which another way may have set.
    with eval_mode(model):
        for parts in zip(*(score_text(model, tokens, way) for way in ways), strict=True):
            yield [part.nats_K for part in parts]
            if clock() >= end:
                break
