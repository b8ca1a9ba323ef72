"""Calls of a network by training, evaluation and generation, and its nats in other units.

B rows   L segment   T tokens of a row   D width   V vocabulary   Y tokens of any rows
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import require
from .adaptation import (
    Adaptation,
    AdaptedMemory,
    Piece,
    copy_learning,
    restore_weights,
    take_step,
)
from .adaptive import PlainSoftmax
from .config import EvalLengths
from .contract import AnyMemory, Network, has_states, stop_gradient
from .nats import nats_of_logits
from .state_cache import StateCache
from .transformer_xl import TransformerXL


class Reader:
    """A network as evaluation and generation call it; it may adapt to what it reads.

    Without a rate its weights are constant, and its memory has keys and values if these are, too.
    `hidden` reads a segment, and `score` scores it. `loss` scores it, and then learns from it if
    `adaptation` has a rate: only the weights of a copy change. Arguments are as in a network.

    Args:
        net: a network in eval mode.
        adaptation: a continuous cache, steps after each segment, or both; by default neither.
        keeps_keys: False for a memory of states, where weights change, or where shapes must not.

    Raises:
        ValueError: an adaptation that the network cannot have.
    """

    def __init__(
        self,
        net: Network,
        adaptation: Adaptation = Adaptation(),  # noqa: B008 (frozen)
        keeps_keys: bool = True,
    ) -> None:
        adaptation = adaptation.fill()
        cache_len = adaptation.cache_len
        rate = adaptation.rate
        self.trained = net
        self.config = net.config
        self.adaptation = adaptation
        self.has_states = has_states(net)
        name = type(net).__name__
        expected = f"0, as {name} lacks hidden and head, or its calls have hooks or other code"
        require(self.has_states or not cache_len, "cache_len", cache_len, expected)
        self.keeps_keys = keeps_keys and not rate and isinstance(net, TransformerXL)
        self.steps = adaptation.make_steps() if rate else None
        self.net = copy_learning(net, adaptation) if rate else net

    @property
    def head(self) -> nn.Module:
        """The softmax of the states that `hidden` returns."""
        if isinstance(self.net, TransformerXL) and self.has_states:
            return self.net.head
        return PlainSoftmax(self.net.head if self.has_states else nn.Identity())

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AnyMemory:
        """Return the memory before any token: the network's, perhaps with a continuous cache."""
        use = self.adaptation
        rate = use.rate
        is_possible = not rate or batch_size == 1
        require(is_possible, "rate", rate, f"0, or a single row, not {batch_size}")
        make = self.net.empty_cache if self.keeps_keys else self.net.empty_memory
        with torch.inference_mode(False):
            memory = make(batch_size, lengths)
        if not use.cache_len:
            return memory
        return AdaptedMemory(memory, StateCache(use.cache_len, use.cache_theta, use.cache_weight))

    def __call__(self, tokens_BL: Tensor, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        """Return logits_BLV of the network alone, and the next memory; inputs as in `hidden`."""
        h_BLD, memory = self.hidden(tokens_BL, *inputs)
        return self.head(h_BLD), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return the states h_BLD, or logits of a network that has none, and the next memory."""
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        if not isinstance(memory, AdaptedMemory):
            return self.read(tokens_BL, memory, doc_pos_BL, n_reread)
        h_BLD, inner = self.read(tokens_BL, memory.memory, doc_pos_BL, n_reread)
        new = slice(memory.n_reread, None)
        cache = memory.cache.append(h_BLD[:, new], tokens_BL[:, new])
        return h_BLD, AdaptedMemory(inner, cache, n_reread)

    def read(
        self, tokens_BL: Tensor, memory: AnyMemory, doc_pos_BL: Tensor | None, n_reread: int
    ) -> tuple[Tensor, AnyMemory]:
        """Return h_BLD and the network's own memory, without a continuous cache."""
        read = self.net.hidden if self.has_states else self.net
        return read(tokens_BL, memory, doc_pos_BL, n_reread)

    def score(
        self, tokens_BL: Tensor, targets_BL: Tensor, memory: AnyMemory
    ) -> tuple[Tensor, AnyMemory]:
        """Return the same as `loss`, and learn nothing; each row is one document."""
        nats_BL, _, memory = self._score(Piece(tokens_BL, targets_BL), memory, n_reread=0)
        return nats_BL, memory

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return nats_BL of the targets, and the next memory; then learn from the segment."""
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        segment = Piece(tokens_BL, targets_BL, doc_pos_BL)
        if self.adaptation.rate:
            with torch.inference_mode(False), torch.enable_grad():
                return self._learn(segment, memory, n_reread)
        nats_BL, _, memory = self._score(segment, memory, n_reread)
        return nats_BL, memory

    def _learn(self, segment: Piece, memory: AnyMemory, n_reread: int) -> tuple[Tensor, AnyMemory]:
        # Tensors made under inference_mode take part in no gradient; copies do.
        segment = Piece(*(each if each is None else each.clone() for each in segment))
        parts = []
        is_one = self.adaptation.adapt_across_documents
        for piece in [segment] if is_one else segment.cut():
            if piece.starts and not is_one:
                restore_weights(self.net, self.trained)
            memory = set_reread(memory, piece.n_context)
            n_last = min(n_reread, piece.tokens_BL.size(1))
            nats_BL, network_BL, memory = self._score(piece, memory, n_last)
            memory = end_step(memory)
            parts.append(nats_BL)
        # Documents before the last one are over: a step for them would have no effect.
        begin = 0 if is_one else [0, *piece.starts][-1]
        is_scored_L = piece.targets_BL[0, begin:].to(network_BL.device) >= 0
        take_step(self.net, self.trained, self.steps, network_BL[0, begin:][is_scored_L])
        return torch.cat(parts, dim=1), set_reread(memory, n_reread)

    def _score(
        self, piece: Piece, memory: AnyMemory, n_reread: int
    ) -> tuple[Tensor, Tensor, AnyMemory]:
        """Return nats_BL of the mixture; nats_BL of the network, with gradient; and the memory."""
        tokens_BL, targets_BL, doc_pos_BL = piece
        if not isinstance(memory, AdaptedMemory):
            nats_BL, memory = self.net.loss(tokens_BL, targets_BL, memory, doc_pos_BL, n_reread)
            return nats_BL.detach(), nats_BL, memory
        h_BLD, memory = self.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        network_BL = self.head.nats(h_BLD[:, piece.n_context :], targets_BL)
        doc_pos_BL = self.adaptation.find_documents(doc_pos_BL)
        nats_BL = memory.cache.mix_nats(network_BL.detach(), targets_BL, doc_pos_BL)
        return nats_BL, network_BL, memory


def end_step(memory: AnyMemory) -> AnyMemory:
    """Return SG(memory): a step reaches its own segment only, also of a network without SG."""
    if isinstance(memory, AdaptedMemory):
        return replace(memory, memory=stop_gradient(memory.memory))
    return stop_gradient(memory)


def set_reread(memory: AnyMemory, n_reread: int) -> AnyMemory:
    """Return a memory whose continuous cache has read the first tokens of the next segment."""
    return replace(memory, n_reread=n_reread) if isinstance(memory, AdaptedMemory) else memory


class Segment(Protocol):
    """The part of `data/stream.py`'s Segment that a network reads."""

    tokens_BL: Tensor
    targets_BL: Tensor
    doc_pos_BL: Tensor | None
    n_reread: int
    n_context: int

    def choose_targets(self, head: Any) -> Tensor:
        """Return the targets where a softmax reads them."""


def score_segment(
    net: Network | Reader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, AnyMemory]:
    """Return nats_BL of a segment's targets, 0 where IGNORED, and the memory for the next one."""
    targets_BL = segment.choose_targets(getattr(net, "head", None))
    doc_pos_BL = segment.doc_pos_BL
    return net.loss(segment.tokens_BL, targets_BL, memory, doc_pos_BL, segment.n_reread)


def read_segment(net: Reader, segment: Segment, memory: AnyMemory) -> tuple[Tensor, AnyMemory]:
    """Return the states h_BLD that predict a segment's targets, and the memory for the next one."""
    h_BLD, memory = net.hidden(segment.tokens_BL, memory, segment.doc_pos_BL, segment.n_reread)
    return h_BLD[:, segment.n_context :], memory


def read_segments(
    net: Reader,
    tokens_BT: Tensor,
    memory: AnyMemory,
    bounds: Iterable[int],
    ext_len: int = 0,
    find_doc_pos: Callable[[int, int], Tensor | None] = lambda start, stop: None,
) -> Iterator[tuple[Tensor, AnyMemory]]:
    """Yield the states h_BLD of each segment between two bounds, and the memory after it.

    `ext_len` tokens before a segment are read again with it. `find_doc_pos` returns the doc_pos_BL
    of the columns from one to another; by default, each row is one document.
    """
    for start, stop in pairwise(bounds):
        first = max(start - ext_len, 0)
        doc_pos_BL = find_doc_pos(first, stop)
        h_BLD, memory = net.hidden(tokens_BT[:, first:stop], memory, doc_pos_BL, min(ext_len, stop))
        yield h_BLD[:, start - first :], memory


def score_answers(
    net: Reader, segment: Segment, memory: AnyMemory
) -> tuple[Tensor, Tensor, AnyMemory]:
    """Return nats_BL, right_BL (the target is the most likely token), and the next memory."""
    expected = "nothing, as the text is of a task"
    require(not net.adaptation.adapts, "adapt", "a cache or rate", expected)
    h_BLD, memory = read_segment(net, segment, memory)
    logits_BLV = net.head(h_BLD)
    targets_BL = segment.targets_BL
    nats_Y = nats_of_logits(logits_BLV.flatten(0, 1), targets_BL.flatten())
    return nats_Y.view_as(targets_BL), logits_BLV.argmax(dim=-1) == targets_BL, memory


def convert_nats(nats: float, unit: str, bytes_per_token: float | None = None) -> dict[str, float]:
    """Return mean nats per token in other units, by name.

    bits = nats / ln 2 and perplexity = exp(nats), computed from the mean; perplexities are never
    averaged. Bits per byte of text compare models with different vocabularies.
    """
    bits = nats / math.log(2)
    values = {"nats": nats, f"bits_per_{unit}": bits, "perplexity": math.exp(min(nats, 700.0))}
    return values | ({"bits_per_byte": bits / bytes_per_token} if bytes_per_token else {})
