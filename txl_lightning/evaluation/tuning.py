"""Choose how an evaluation adapts, on another text than the one that it measures.

K scored targets   E thetas   W weights
"""

import math
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from ..data.stream import IGNORED
from ..data.tokens import Tokens
from ..errors import require, require_positive
from ..model import Network, eval_mode, find_device, find_network
from ..model.adaptation import (
    Adaptation,
    RmsAdaptation,
    copy_learning,
    find_gradients,
    is_trainable,
)
from ..model.contract import has_states, stop_gradient
from ..model.reading import Reader, read_segment, score_segment
from ..model.state_cache import mix_logp
from .protocols import Protocol
from .scoring import score_text

CACHE_LEN = 20_000
SECONDS = 90.0
THETAS = (2.0, 5.0, 10.0, 15.0, 22.0, 30.0, 45.0, 60.0)
WEIGHTS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.75, 0.9)
RATES = (0.0, 0.01, 0.03, 0.1, 0.3)
"""Of equally good values, the first is chosen: nothing, if that is as good."""
RMS_RATES = (0.0, 1e-5, 3e-5, 1e-4, 3e-4, 1e-3)
"""Of steps that are divided by the RMS of gradients."""
Clock = Callable[[], float]


@dataclass(frozen=True)
class Limit:
    """Seconds or scored tokens of a text that each step of a choice reads."""

    seconds: float = math.inf
    tokens: int | None = None
    clock: Clock = time.monotonic

    def __post_init__(self) -> None:
        require(self.seconds > 0, "adapt_seconds", self.seconds, "more than 0")
        require_positive(adapt_tokens=self.tokens)

    def share(self, part: float) -> "Limit":
        """Return the limit of a step of a choice: a part of the time, or all of the tokens."""
        return replace(self, seconds=self.seconds * part)

    def take(self, parts: Iterator[list[Tensor]]) -> Iterator[list[Tensor]]:
        """Yield the nats of segments, in several ways each, up to the limit."""
        end = self.clock() + self.seconds
        n_scored = 0
        for each in parts:
            yield each
            n_scored += each[0].size(-1)
            if self.clock() >= end or n_scored >= (self.tokens or math.inf):
                break


@dataclass(frozen=True)
class Choice:
    """A chosen adaptation, and how it was chosen."""

    adaptation: Adaptation
    tried: dict[str, Sequence[float]]
    """The values that were compared, by name."""
    tokens: dict[str, int] = field(default_factory=dict)
    """Scored tokens by which the cache, and the rate, were chosen."""

    @property
    def edges(self) -> list[str]:
        """Names of the values that are the smallest or the largest of those tried, but not 0."""
        ends = {name: (values[0], values[-1]) for name, values in self.tried.items()}
        chosen = {name: getattr(self.adaptation, name) for name in ends}
        return [name for name, value in chosen.items() if value and value in ends[name]]


def choose_adaptation(model: Network, tokens: Tokens, protocol: Protocol, limit: Limit) -> Choice:
    """Return the adaptation with the values, of those not given, that have the fewest nats.

    Of several rows, of a text in one segment, and with packed weights, the rate is 0. Where no
    weight of a cache helps, there is none, unless its length is given.
    """
    model = find_network(model)
    given = protocol.adaptation.given
    usual = {"cache_len": CACHE_LEN if has_states(model) else 0}
    if protocol.batch_size > 1 or protocol.tgt_len is None or not is_trainable(model):
        usual["rate"] = 0.0
    use = replace(protocol.adaptation, **usual | given)
    # A text in one segment is read as it will be: a longer one may need too much memory.
    max_tokens = protocol.max_tokens if protocol.tgt_len is None else None
    way = replace(protocol, max_tokens=max_tokens)
    tried = list_tried(use)
    shares = share_time(tried)
    n_scored = {}
    if "cache" in shares:
        part = limit.share(shares["cache"])
        use, n_scored["cache"] = choose_cache(model, tokens, replace(way, adaptation=use), part)
        if not use.cache_weight and "cache_len" not in given:
            use = replace(use, cache_len=0)
    if "rate" in shares:
        part = limit.share(shares["rate"])
        use, n_scored["rate"] = choose_rate(model, tokens, replace(way, adaptation=use), part)
    expected = "more, because no token of the validation text was scored"
    require(0 not in n_scored.values(), "adapt_seconds", limit.seconds, expected)
    return Choice(use, tried, n_scored)


def list_tried(use: Adaptation) -> dict[str, Sequence[float]]:
    """Return the values to compare, by the names of those that are not given."""
    names = {"cache_theta": THETAS, "cache_weight": WEIGHTS} if use.cache_len else {}
    names |= {"rate": find_rates(use)}
    return {name: values for name, values in names.items() if getattr(use, name) is None}


def find_rates(use: Adaptation) -> Sequence[float]:
    return RMS_RATES if use.rms_tokens else RATES


def share_time(tried: Collection[str]) -> dict[str, float]:
    """Return the share of the time of each step: of the cache, then of the rate."""
    if "rate" not in tried:
        return {"cache": 1} if tried else {}
    # In this share of the time, caches read as many tokens as all rates do in the rest.
    return {"cache": 0.3, "rate": 0.7} if len(tried) > 1 else {"rate": 1}


def choose_cache(
    model: Network, tokens: Tokens, way: Protocol, limit: Limit
) -> tuple[Adaptation, int]:
    """Return the adaptation with the theta and the weight that are best without gradient steps,
    and the number of tokens read."""
    use = way.adaptation
    thetas = THETAS if use.cache_theta is None else (use.cache_theta,)
    weights = WEIGHTS if use.cache_weight is None else (use.cache_weight,)
    weight_W11 = torch.tensor(weights, dtype=torch.float64)[:, None, None]
    nats_WE = torch.zeros(len(weights), len(thetas), dtype=torch.float64)
    n_scored = 0
    for network_K, cache_EK, is_seen_K in limit.take(read_caches(model, tokens, way, thetas)):
        mixed_WEK = -mix_logp(-network_K, cache_EK, weight_W11, is_seen_K)
        nats_WE += mixed_WEK.double().sum(dim=-1)
        n_scored += len(network_K)
    best = int(nats_WE.nan_to_num(nan=math.inf).argmin())
    values = {"cache_theta": thetas[best % len(thetas)]}
    values["cache_weight"] = weights[best // len(thetas)]
    return replace(use, **values), n_scored


@torch.inference_mode()
def read_caches(
    model: Network, tokens: Tokens, way: Protocol, thetas: Sequence[float]
) -> Iterator[list[Tensor]]:
    """Yield nats_K of the network alone, log p_cache of each theta, and which tokens see a state of
    the cache: of the scored tokens of each segment.

    The network reads the text once, and all thetas have the same states.
    """
    stream = way.stream(tokens)
    device = find_device(model)
    reader = Reader(model, replace(way.adaptation, rate=0.0))
    memory = reader.empty_memory(way.batch_size, way.lengths)
    for segment in stream:
        is_scored_BL = segment.targets_BL != IGNORED
        segment = segment.to(device)
        doc_pos_BL = way.adaptation.find_documents(segment.doc_pos_BL)
        targets = segment.targets_BL, doc_pos_BL
        with eval_mode(model):
            h_BLD, memory = read_segment(reader, segment, memory)
            nats_BL = reader.head.nats(h_BLD, segment.choose_targets(reader.head))
        caches = [replace(memory.cache, theta=theta).score(*targets) for theta in thetas]
        is_seen_BL = memory.cache.find_seeing(segment.new_len, doc_pos_BL)
        parts = nats_BL, torch.stack(caches), is_seen_BL
        yield [part.cpu()[..., is_scored_BL] for part in parts]


def choose_rate(
    model: Network, tokens: Tokens, way: Protocol, limit: Limit
) -> tuple[Adaptation, int]:
    """Return the adaptation with the best rate, and the number of tokens read."""
    uses = [replace(way.adaptation, rate=rate) for rate in find_rates(way.adaptation)]
    ways = [replace(way, adaptation=use) for use in uses]
    n_scored, nats = score_in_turns(model, tokens, ways, limit)
    # A rate that is too large makes nats that are no numbers.
    nats = [math.inf if math.isnan(each) else each for each in nats]
    return uses[nats.index(min(nats))], n_scored


def measure_rms(model: Network, tokens: Tokens, way: Protocol) -> RmsAdaptation:
    """Return the adaptation with the RMS of the gradients in the first `rms_tokens` of a text.

    A gradient is that of the mean loss of a segment, as in a step; one row is read.

    Raises:
        ValueError: all gradients are 0, by which nothing can be divided.
    """
    use = way.adaptation
    way = replace(way, batch_size=1, max_tokens=use.rms_tokens)
    net = copy_learning(find_network(model), use)
    memory = net.empty_memory(1, way.lengths)
    sums = [torch.zeros_like(weight) for weight in net.parameters() if weight.requires_grad]
    n_segment = 0
    for segment in way.stream(tokens):
        is_scored_BL = segment.targets_BL != IGNORED
        nats_BL, memory = score_segment(net, segment.to(find_device(model)), memory)
        memory = stop_gradient(memory)
        nats_K = nats_BL[is_scored_BL.to(nats_BL.device)]
        # Without scored tokens there is no step.
        if len(nats_K):
            gradients = find_gradients(net, nats_K)
            sums = [each + g**2 for each, g in zip(sums, gradients, strict=True)]
            n_segment += 1
    expected = "more: in these tokens, the weights that take steps have no gradient"
    is_measured = any(bool(each.any()) for each in sums)
    require(is_measured, "rms_tokens", use.rms_tokens, expected)
    rms = tuple((each / n_segment).sqrt() for each in sums)
    return RmsAdaptation(**vars(use), rms=rms)


def score_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol], limit: Limit
) -> tuple[int, list[float]]:
    """Return the tokens that the limit allows, and the sum of their nats in each way."""
    n_scored = 0
    nats = [0.0] * len(ways)
    for parts in limit.take(read_in_turns(model, tokens, ways)):
        n_scored += len(parts[0])
        sums = (nats_K.double().sum().item() for nats_K in parts)
        nats = [total + more for total, more in zip(nats, sums, strict=True)]
    return n_scored, nats


def read_in_turns(
    model: Network, tokens: Tokens, ways: Sequence[Protocol]
) -> Iterator[list[Tensor]]:
    """Yield nats_K of the same tokens in each way, a segment at a time."""
    for parts in zip(*(score_text(model, tokens, way) for way in ways), strict=True):
        places = [part.position_K for part in parts]
        assert all(np.array_equal(places[0], place) for place in places)
        yield [part.nats_K for part in parts]
