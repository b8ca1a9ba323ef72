"""Nats of a text, and the result of an evaluation; validation in training computes the same.

B rows   L segment   K scored targets   T tokens of a row   N tokens of the text
"""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.store import EvalText
from ..data.stream import IGNORED, Stream
from ..data.tokens import TextTokens, Tokens
from ..errors import NonFiniteError, require
from ..machine import describe_environment, measure_peak_memory
from ..model import EvalSameLength, Network, eval_mode, find_device, find_network
from ..model.adaptation import Adaptation
from ..model.captured import CapturedReader, require_capturable
from ..model.reading import Reader, convert_nats, read_segment, score_segment
from .protocols import PROTOCOLS, Protocol, ProtocolOptions
from .published import list_changed_reading

FETCHED = 16  # segments whose nats are fetched from a GPU together
BLOCKS = 1000  # maximum number of blocks
SHORTEST_BLOCK = 64
"""Minimum tokens per block: neighboring tokens are too correlated to be sampled one by one."""
RESAMPLES = 1000
SEED = 1
LEVEL = 0.95
"""Samples and seed of the block bootstrap, and its confidence level."""


class TokenNats(NamedTuple):
    """Some scored tokens of a text: their positions in it, and the nats of each."""

    position_K: np.ndarray
    nats_K: Tensor


def score_text(model: Network, tokens: Tokens, protocol: Protocol) -> Iterator[TokenNats]:
    """Yield every scored token of a text, a segment at a time, with the model in eval mode."""
    parts = score_segments(model, tokens, protocol)
    device = find_device(find_network(model))
    # Nats are fetched together, because that waits for a GPU.
    while group := list(islice(parts, count_fetched(device))):
        nats_K = torch.cat([part.nats_K for part in group]).cpu()
        counts = [len(part.nats_K) for part in group]
        for part, part_K in zip(group, nats_K.split(counts), strict=True):
            yield TokenNats(part.position_K, part_K)


def count_fetched(device: torch.device) -> int:
    return 1 if device.type == "cpu" else FETCHED


def check_graph(net: Network, protocol: Protocol) -> None:
    """Refuse graphs that could not compute what a network and a protocol do."""
    if not protocol.cuda_graph:
        return
    device = find_device(net).type
    conflicts = {
        "adapt, cache_len or rate": protocol.adaptation.adapts,
        # Casts of weights that it keeps would be freed before the graph reads them.
        "autocast": torch.is_autocast_enabled(device),
    }
    require_capturable(net, find_device(net), "cuda_graph", conflicts)


@torch.inference_mode()
def score_segments(model: Network, tokens: Tokens, protocol: Protocol) -> Iterator[TokenNats]:
    """Yield the scored tokens of each segment, if any, with their nats on the model's device."""
    model = find_network(model)
    stream = protocol.stream(tokens)
    check_graph(model, protocol)
    reader = CapturedReader(model) if protocol.cuda_graph else Reader(model, protocol.adaptation)
    memory = reader.empty_memory(protocol.batch_size, protocol.lengths)
    has_memory = protocol.lengths.resolve(model.config).mem_len > 0
    # At least float32, as nats are.
    dtype = torch.promote_types(next(model.parameters()).dtype, torch.float32)
    for index, segment in enumerate(stream):
        # The host knows which tokens are scored.
        scored_BL = segment.targets_BL != IGNORED
        segment = segment.to(find_device(model))
        nats_K = torch.zeros(0, dtype=dtype, device=find_device(model))
        with eval_mode(model):
            if scored_BL.any() or protocol.adaptation.adapts:
                nats_BL, memory = score_segment(reader, segment, memory)
                index_K = scored_BL.flatten().nonzero()[:, 0]
                nats_K = nats_BL.flatten()[index_K.to(nats_BL.device, non_blocking=True)]
            elif has_memory:
                # A warm-up needs no logits; without memory, it has no effect.
                _, memory = read_segment(reader, segment, memory)
        yield TokenNats(find_positions(stream, index)[scored_BL.numpy()], nats_K)


def find_positions(stream: Stream, index: int) -> np.ndarray:
    """Return the positions in the text of a segment's targets, position_BL."""
    _, start, stop = stream.lengths.find_bounds(stream.n_target, index)
    column_L = np.arange(start, stop) + 1 - stream.warmup_len
    return np.arange(stream.batch_size)[:, None] * stream.row_len + column_L


def stream_nats(
    model: Network,
    tokens: Tensor | np.ndarray,
    *,
    batch_size: int,
    tgt_len: int,
    warmup_len: int = 0,
    mem_len: int | None = None,
    clamp_len: int | None = None,
    same_length: EvalSameLength = None,
    ext_len: int = 0,
    adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
    cuda_graph: bool = False,
) -> Tensor:
    """Return the nats of every scored token of a text, in input order: nats_BT.

    >>> model, vocab = load("version_0")
    >>> ids = vocab.encode_text("to be or not to be")
    >>> stream_nats(model, ids, batch_size=1, tgt_len=8).shape
    torch.Size([1, 17])

    `tokens` are ids in one dimension, read in rows, each with an empty memory at first. The first
    token of a row is not scored; with a warm-up, only the first token of the text is not (nan).
    All lengths are as in `Protocol`. The model's mode is restored. With enough memory, tgt_len
    only affects the speed, unless the adaptation takes a step after each segment.

    Args:
        cuda_graph: compute each segment as one CUDA graph; it has not run on a GPU yet.

    Raises:
        ValueError: an invalid length or id; fewer than two tokens for each row; cuda_graph without
            a GPU, with an adaptation or autocast, or with parts of your own in the network.
    """
    model = find_network(model)
    lengths = {"tgt_len": tgt_len, "warmup_len": warmup_len, "ext_len": ext_len}
    lengths |= {"mem_len": mem_len, "clamp_len": clamp_len, "same_length": same_length}
    how = {"drop_last": True, "adaptation": adaptation, "cuda_graph": cuda_graph}
    protocol = Protocol(batch_size=batch_size, **lengths, **how)
    ids = read_ids(tokens, model.config.n_token)
    row_len = len(ids) // batch_size
    parts = list(score_text(model, TextTokens(ids), protocol))
    nats_K = torch.cat([part.nats_K for part in parts])
    nats_N = nats_K.new_full((batch_size * row_len,), torch.nan)
    nats_N[torch.from_numpy(np.concatenate([part.position_K for part in parts]))] = nats_K
    return nats_N.view(batch_size, row_len)[:, 0 if warmup_len else 1 :].to(find_device(model))


def read_ids(tokens: Tensor | np.ndarray, n_token: int) -> np.ndarray:
    """Return ids of a vocabulary of n_token in one dimension; ValueError if they are none."""
    ids = tokens.cpu().numpy() if isinstance(tokens, Tensor) else np.asarray(tokens)
    require(ids.ndim == 1, "tokens", f"{ids.ndim} dimensions", "ids in one dimension")
    require(ids.dtype.kind in "iu", "tokens", ids.dtype, "whole numbers")
    low = ids.min(initial=0)
    high = ids.max(initial=0)
    last = n_token - 1
    require(0 <= low <= high <= last, "tokens", f"ids from {low} to {high}", f"0 to {last}")
    return ids


class NatsAccumulator:
    """Sums in float64 over blocks of consecutive tokens of a text of n_token."""

    def __init__(self, n_token: int) -> None:
        self.block_len = max(SHORTEST_BLOCK, -(-n_token // BLOCKS))
        n_block = -(-n_token // self.block_len)
        self.nats = np.zeros(n_block)
        self.count = np.zeros(n_block, np.int64)

    def add(self, part: TokenNats) -> None:
        block_K = part.position_K // self.block_len
        n_block = len(self.nats)
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
        nats = self.nats[is_scored]
        count = self.count[is_scored]
        if len(nats) < 2:
            return []
        equally = np.full(len(nats), 1 / len(nats))
        times = np.random.default_rng(SEED).multinomial(len(nats), equally, RESAMPLES)
        means = (times @ nats) / (times @ count)
        return np.quantile(means, [(1 - LEVEL) / 2, (1 + LEVEL) / 2]).tolist()

    def summary(self, unit: str, n_byte: float | None) -> dict[str, Any]:
        size = n_byte / self.n_scored if n_byte else None
        means = convert_nats(self.mean, unit, size)
        ends = [convert_nats(nats, unit, size) for nats in self.interval()]
        interval = {name: [end[name] for end in ends] or None for name in means}
        blocks = {"block_len": self.block_len, "blocks": int((self.count > 0).sum())}
        interval |= {"level": LEVEL, **blocks, "resamples": RESAMPLES, "seed": SEED}
        counts = {"tokens_scored": self.n_scored, "bytes_scored": n_byte or None}
        return counts | means | {"interval": interval}


def evaluate(
    model: Network,
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
    model = find_network(model)
    stream = protocol.stream(text.tokens)
    n_byte: float | None = 0.0
    n_cold = 0
    began = time.perf_counter()
    total = NatsAccumulator(stream.end)
    mem_len = protocol.lengths.resolve(model.config).mem_len
    for part in score_text(model, text.tokens, protocol):
        size = text.count_bytes(part.position_K)
        n_byte = None if size is None or n_byte is None else n_byte + size
        n_cold += count_cold_starts(part, stream, mem_len)
        total.add(part)
        if nats_N is not None:
            nats_N[part.position_K] = part.nats_K.numpy()
        report(len(part.position_K))
    if not total.n_scored:
        raise ValueError(f"{text.name}: no token is scored; expected a text of two tokens or more")
    if not math.isfinite(total.mean):
        raise NonFiniteError(f"{text.name}: nats {total.mean}; {explain_nats(protocol.adaptation)}")
    seconds = time.perf_counter() - began
    record = describe_reading(model, text, protocol) | {"cold_starts": n_cold, "tokens": stream.end}
    if n_byte is None and text.bytes_per_token and stream.end == len(text.tokens):
        # Of a whole text, and not of a part, the mean size of a token is known.
        n_byte = total.n_scored * text.bytes_per_token
    record |= total.summary(text.vocab.unit, n_byte)
    record["unknown_share"] = text.unknown_share(stream.end)
    record |= {"seconds": seconds, "tokens_per_second": total.n_scored / seconds}
    record["peak_memory_bytes"] = measure_peak_memory(find_device(model))
    return record | describe_environment(find_device(model))


def explain_nats(adaptation: Adaptation) -> str:
    """Return what may have made nats that are not finite."""
    if adaptation.cache_len and adaptation.cache_weight == 1:
        return "with cache_weight 1, a token that is not in the cache has no probability"
    cause = f"the rate {adaptation.rate:g} is too large, or " if adaptation.rate else ""
    return cause + "the network's weights are invalid"


def count_cold_starts(part: TokenNats, stream: Stream, mem_len: int) -> int:
    """Return how many targets of a segment are scored with a context of only one token.

    The text's own beginning counts; beginnings of documents do not.
    """
    column_K = part.position_K % stream.row_len
    # With a warm-up, only the first row begins with its own first token.
    is_cold_K = (part.position_K if stream.warmup_len else column_K) == 1
    if not mem_len and not stream.ext_len:
        place_K = column_K + stream.warmup_len - 1
        is_cold_K |= place_K % stream.lengths.tgt_len == 0
    return int(is_cold_K.sum())


def describe_reading(model: Network, text: EvalText, protocol: Protocol) -> dict[str, Any]:
    """Return the text and the protocol as plain values, with the lengths in use."""
    lengths = {field.name: getattr(protocol, field.name) for field in fields(ProtocolOptions)}
    standard = PROTOCOLS[protocol.name]
    changed = [name for name in lengths if lengths[name] != getattr(standard, name)]
    changed += list_changed_reading(text, protocol)
    lengths |= protocol.lengths.resolve(model.config)._asdict()
    lengths["tgt_len"] = protocol.tgt_len or protocol.stream(text.tokens).end
    record = {"protocol": protocol.full_name}
    adaptation = protocol.adaptation
    record["adaptation"] = adaptation.fill().given if adaptation.adapts else None
    record |= {"changed": changed, "source": protocol.source}
    record |= {"text": text.name, "split": text.split, "fingerprint": text.fingerprint}
    record |= {"corpus": text.corpus, "vocab_tokens": text.vocab.n_token}
    return record | {"lengths": lengths}
