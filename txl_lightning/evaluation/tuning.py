"""Choose how an evaluation adapts, on another text than the one that it measures.

B rows   L segment   K scored targets   H thetas   W weights
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, Literal

import torch

from ..data.stream import IGNORED
from ..data.tokens import Tokens
from ..errors import convert_fields, require
from ..model import Adaptation, AdaptedReader, Network, eval_mode, find_device
from ..model.contract import has_states
from ..model.state_cache import mix_logp
from .protocols import Protocol
from .scoring import score_segment, score_text

CACHE_LEN = 20_000
RATES = (0.1, 0.03, 0.2, 0.0)
THETAS = (15.0, 30.0, 45.0, 60.0)
WEIGHTS = tuple(n / 20 for n in range(18))
Clock = Callable[[], float]


@dataclass(frozen=True)
class AdaptOptions:
    """What an evaluation learns from the text that it has scored; None: not given."""

    adapt: Literal["auto"] | None = None
    """auto: choose those of the next five that are not given, on the validation text of training;
    left out, they are 0 or their defaults."""
    adapt_seconds: float = 60.0
    """Time in which auto chooses."""
    cache_len: int | None = None
    """States in the continuous cache of each row; 0: no cache."""
    cache_theta: float | None = None
    """Sharpness of the cache: factor of the cosine of two states."""
    cache_weight: float | None = None
    """Share of the cache in the mixture with the network."""
    rate: float | None = None
    """Step size of dynamic evaluation, which reads a single row; 0: constant weights."""
    decay: float | None = None
    """Share of the way back to the trained weights in each step of dynamic evaluation."""

    def __post_init__(self) -> None:
        convert_fields(self)
        is_valid = 0 < self.adapt_seconds < math.inf
        require(is_valid, "adapt_seconds", self.adapt_seconds, "more than 0")
        _ = self.given

    @property
    def given(self) -> dict[str, Any]:
        """The values that are given, by the names of an Adaptation; an invalid one is refused."""
        names = [field.name for field in fields(Adaptation) if field.name in vars(self)]
        given = {name: vars(self)[name] for name in names if vars(self)[name] is not None}
        Adaptation(**given)
        return given


def choose_adaptation(
    model: Network,
    tokens: Tokens,
    protocol: Protocol,
    options: AdaptOptions,
    rates: Sequence[float] = RATES,
    clock: Clock = time.monotonic,
) -> tuple[Adaptation, str]:
    """Return the adaptation with the fewest nats of some tokens, and what was chosen in one line.

    First the rate, with a cache of usual settings, then theta and weight of the cache.
    """
    given, seconds = options.given, options.adapt_seconds
    use = Adaptation(**{"cache_len": CACHE_LEN if has_states(model) else 0} | given)
    protocol, counts = replace(protocol, max_tokens=None), []
    if "rate" not in given and len(rates) > 1:
        ways = [replace(protocol, adaptation=replace(use, rate=rate)) for rate in rates]
        count, nats = score_in_turns(model, tokens, ways, seconds / 2, clock)
        best = min(range(len(ways)), key=lambda n: math.inf if math.isnan(nats[n]) else nats[n])
        use = ways[best].adaptation
        counts.append(count)
    if use.cache_len and not {"cache_theta", "cache_weight"} <= given.keys():
        thetas = [given["cache_theta"]] if "cache_theta" in given else THETAS
        weights = [given["cache_weight"]] if "cache_weight" in given else WEIGHTS
        seconds -= seconds / 2 * len(counts)
        count, nats_HW = score_caches(
            model, tokens, replace(protocol, adaptation=use), thetas, weights, seconds, clock
        )
        theta, weight = divmod(int(nats_HW.argmin()), len(weights))
        use = replace(use, cache_theta=thetas[theta], cache_weight=weights[weight])
        counts.append(count)
    read = " and ".join(f"{count:,}" for count in counts)
    return use, f"{use.describe() or 'nothing'}, chosen on {read} tokens"


def score_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol], seconds: float, clock: Clock
) -> tuple[int, list[float]]:
    """Score a text, or what the time allows of it, in several ways; return tokens and nats of each.

    A segment is scored in each way before the next one, so that all have the same tokens.
    """
    n_scored, nats, end = 0, [0.0] * len(ways), clock() + seconds
    # Each way restores the mode that it found, not that of the network before all of them.
    with eval_mode(model):
        for parts in zip(*(score_text(model, tokens, way) for way in ways), strict=True):
            n_scored += len(parts[0].nats_K)
            sums = (part.nats_K.double().sum().item() for part in parts)
            nats = [total + more for total, more in zip(nats, sums, strict=True)]
            if clock() >= end:
                break
    return n_scored, nats


@torch.inference_mode()
def score_caches(
    model: Network,
    tokens: Tokens,
    protocol: Protocol,
    thetas: Sequence[float],
    weights: Sequence[float],
    seconds: float,
    clock: Clock,
) -> tuple[int, torch.Tensor]:
    """Read a text, or what the time allows of it, once; return the tokens, and the nats with each
    theta and weight of the cache."""
    # With a weight of 0, the reader scores without its cache.
    reader = AdaptedReader(model, replace(protocol.adaptation, cache_weight=0.0))
    memory = reader.empty_memory(protocol.batch_size, protocol.lengths)
    n_scored, end, device = 0, clock() + seconds, find_device(model)
    weight_W1 = torch.tensor(weights, dtype=torch.float64, device=device)[:, None]
    nats_HW = torch.zeros(len(thetas), len(weights), dtype=torch.float64)
    with eval_mode(model):
        for segment in map(lambda each: each.to(device), protocol.stream(tokens)):
            nats_BL, memory = score_segment(reader, segment, memory)
            is_scored_BL = segment.targets_BL != IGNORED
            for row, theta in zip(nats_HW, thetas, strict=True):
                cache = replace(memory.cache, theta=theta)
                logp_BL = cache.score(segment.targets_BL, segment.doc_pos_BL)
                pair = (-nats_BL[is_scored_BL].double(), logp_BL[is_scored_BL].double())
                row -= mix_logp(*pair, weight_W1).sum(dim=-1).cpu()
            n_scored += int(is_scored_BL.sum())
            if clock() >= end:
                break
    return n_scored, nats_HW
