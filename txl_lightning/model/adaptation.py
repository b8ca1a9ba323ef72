"""Networks that adapt to the text that they are measured on: settings, memory and reader.

The continuous cache is in state_cache.py. Dynamic evaluation (Krause et al. 2018) takes a step on
the loss of each segment after its score, with a step back towards the trained weights:

    weights <- weights - rate * gradient + decay * (trained weights - weights)

Both follow the ends of documents: in each, the cache is empty and the weights are the trained ones
at first, so that a document is scored as if no other were before it.

B rows   L segment   D width   V vocabulary
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..errors import convert_fields, require, require_at_least
from .config import EvalLengths
from .contract import AnyMemory, Network, has_states
from .inference import Reader, make_reader
from .parts import PackedLinear
from .state_cache import StateCache, mix_logp

MAX_THETA = 75.0  # exp of it is a float32, also the sum of a million


@dataclass(frozen=True)
class CacheConfig:
    """Settings of a continuous cache; by default there is none."""

    cache_len: int = 0
    """States in the continuous cache of each row; 0: no cache."""
    cache_theta: float = 40.0
    """Sharpness of the cache: factor of the cosine of two states."""
    cache_weight: float = 0.4
    """Share of the cache in the mixture with the network, lambda in the paper."""

    def __post_init__(self) -> None:
        convert_fields(self)
        require_at_least(self, cache_len=0)
        is_valid = 0 <= self.cache_theta <= MAX_THETA
        require(is_valid, "cache_theta", self.cache_theta, f"from 0 to {MAX_THETA:g}")
        is_share = 0 <= self.cache_weight < 1
        require(is_share, "cache_weight", self.cache_weight, "from 0, less than 1")


@dataclass(frozen=True)
class Adaptation(CacheConfig):
    """What an evaluation learns from the text that it has scored; by default nothing.

    >>> Adaptation(cache_len=2000, rate=0.1).describe()
    'cache_len 2000, cache_theta 40, cache_weight 0.4, rate 0.1, decay 0'
    """

    rate: float = 0.0
    """Step size of dynamic evaluation, which reads a single row; 0: constant weights."""
    decay: float = 0.0
    """Share of the way back to the trained weights in each step of dynamic evaluation."""

    def __post_init__(self) -> None:
        super().__post_init__()
        require(0 <= self.rate < math.inf, "rate", self.rate, "0 or more")
        require(0 <= self.decay <= 1, "decay", self.decay, "from 0 to 1")

    def __bool__(self) -> bool:
        return bool(self.cache_len or self.rate)

    @staticmethod
    def of(options: CacheConfig) -> Adaptation:
        """Return the adaptation among options of other names too."""
        names = [field.name for field in fields(Adaptation) if hasattr(options, field.name)]
        return Adaptation(**{name: getattr(options, name) for name in names})

    def describe(self) -> str:
        names = ("cache_len", "cache_theta", "cache_weight") if self.cache_len else ()
        names += ("rate", "decay") if self.rate else ()
        return ", ".join(f"{name} {getattr(self, name):g}" for name in names)


@dataclass(frozen=True)
class AdaptedMemory:
    """The memory of a network, and the cache of its last states."""

    memory: AnyMemory
    cache: StateCache | None
    n_reread: int = 0
    """First tokens of the next segment that have been read."""

    @property
    def batch_size(self) -> int:
        return self.memory.batch_size

    @property
    def mem_len(self) -> int | None:
        return getattr(self.memory, "mem_len", None)

    def rows(self, index_B: Tensor | slice) -> AdaptedMemory:
        """Return these rows, in this order; a row may occur twice."""
        cache = self.cache and self.cache.rows(index_B)
        return replace(self, memory=self.memory.rows(index_B), cache=cache)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save."""
        return self.memory.tensors() | (self.cache.tensors() if self.cache else {})

    def restore(self, tensors: dict[str, Tensor]) -> AdaptedMemory:
        """Return the memory saved by `tensors`, with the settings of its cache."""
        cache = StateCache.restore(tensors)
        inner = {name: tensors[name] for name in tensors.keys() - cache.tensors().keys()}
        return replace(self, memory=self.memory.restore(inner), cache=cache)


class AdaptedReader:
    """A network that adapts to what it reads, with the methods of a `CachedReader`.

    `loss` scores a segment, and then learns from it; `hidden` only reads. Only the weights of a
    copy of the network change.
    """

    def __init__(self, net: Network, adaptation: Adaptation) -> None:
        self.adaptation, self.learns = adaptation, adaptation.rate > 0
        expected = f"0, as {type(net).__name__} has no method hidden and no head"
        can_cache = has_states(net) or not adaptation.cache_len
        require(can_cache, "cache_len", adaptation.cache_len, expected)
        self.trained, self.config = net, net.config

    @cached_property
    def net(self) -> Network:
        """The network itself or, for gradient steps, a copy."""
        return copy_trainable(self.trained, self.adaptation.rate) if self.learns else self.trained

    @cached_property
    def inner(self) -> Reader:
        return make_reader(self.net, uses_cache=not self.learns)

    @property
    def head(self) -> Any:
        return self.inner.head

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AdaptedMemory:
        expected = "0, because dynamic evaluation reads a single row"
        require(not self.learns or batch_size < 2, "rate", self.adaptation.rate, expected)
        use, cache = self.adaptation, None
        if use.cache_len:
            cache = StateCache(use.cache_len, use.cache_theta, use.cache_weight)
        reader = make_reader(self.trained, uses_cache=not self.learns)
        # Gradients need tensors made outside of inference_mode.
        with torch.inference_mode(False):
            return AdaptedMemory(reader.empty_memory(batch_size, lengths), cache)

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AdaptedMemory]:
        """Return h_BLD and the next memory, without learning."""
        h_BLD, inner = self.inner.hidden(tokens_BL, memory.memory, doc_pos_BL, n_reread)
        new = slice(memory.n_reread, None)
        cache = memory.cache and memory.cache.append(h_BLD[:, new], tokens_BL[:, new])
        return h_BLD, AdaptedMemory(inner, cache, n_reread)

    def score(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AdaptedMemory]:
        """Return nats_BL of the targets, 0 where they are ignored, and the next memory."""
        nats_BL, _, memory = self._score(tokens_BL, targets_BL, memory, doc_pos_BL, n_reread)
        return nats_BL, memory

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AdaptedMemory]:
        """Return what `score` returns, and then learn from the segment."""
        inputs = tokens_BL, targets_BL, memory, doc_pos_BL, n_reread
        return self._learn(*inputs) if self.learns else self.score(*inputs)

    @torch.inference_mode(False)
    @torch.enable_grad()
    def _learn(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None,
        n_reread: int,
    ) -> tuple[Tensor, AdaptedMemory]:
        # Tensors made under inference_mode take part in no gradient; copies do.
        texts = (tokens_BL, targets_BL, doc_pos_BL)
        tokens_BL, targets_BL, doc_pos_BL = (x if x is None else x.clone() for x in texts)
        inputs = tokens_BL, targets_BL, memory, doc_pos_BL, n_reread
        begin_L, before_BL = find_beginnings(tokens_BL, targets_BL, doc_pos_BL), None
        if (begin_L >= 0).any():
            # Documents that begin here have the trained weights, the one before them those so far.
            with torch.no_grad():
                before_BL, _ = self.score(*inputs)
            self._forget()
        nats_BL, network_BL, memory = self._score(*inputs)
        is_last_L = torch.arange(len(begin_L), device=begin_L.device) >= begin_L[-1]
        self._step(network_BL[0, (targets_BL[0] >= 0).to(is_last_L) & is_last_L])
        return nats_BL if before_BL is None else nats_BL.where(begin_L >= 0, before_BL), memory

    def _score(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None,
        n_reread: int,
    ) -> tuple[Tensor, Tensor, AdaptedMemory]:
        """Return nats_BL of the mixture, those of the network, with gradient, and the memory."""
        h_BLD, memory = self.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        network_BL = self.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL)
        nats_BL = network_BL.detach()
        if memory.cache and memory.cache.weight:
            logp_BL = memory.cache.score(targets_BL, doc_pos_BL)
            mixed_BL = -mix_logp(-nats_BL, logp_BL, memory.cache.weight)
            nats_BL = mixed_BL.where(targets_BL.to(mixed_BL.device) >= 0, 0.0)
        return nats_BL, network_BL, memory

    def _step(self, nats_K: Tensor) -> None:
        """Take a step on the mean of some nats of the network."""
        if not len(nats_K):
            return
        weights, trained = list(self.net.parameters()), list(self.trained.parameters())
        gradients = torch.autograd.grad(nats_K.mean(), weights, allow_unused=True)
        with torch.no_grad():
            torch._foreach_lerp_(weights, trained, self.adaptation.decay)
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.sub_(gradient, alpha=self.adaptation.rate)

    @torch.no_grad()
    def _forget(self) -> None:
        """Return to the trained weights."""
        torch._foreach_copy_(list(self.net.parameters()), list(self.trained.parameters()))


def find_beginnings(tokens_BL: Tensor, targets_BL: Tensor, doc_pos_BL: Tensor | None) -> Tensor:
    """Return begin_L, where the document of each new token of the row begins: 0 is the first of
    them, and what is negative was read before."""
    n_new = targets_BL.size(1)
    if doc_pos_BL is None:
        return torch.full((n_new,), -1, device=tokens_BL.device)
    return torch.arange(n_new, device=tokens_BL.device) - doc_pos_BL[0, -n_new:]


def copy_trainable(net: Network, rate: float) -> Network:
    """Return a copy of a network for gradient steps on all of its weights; ValueError if they
    cannot take any."""
    is_packed = any(isinstance(module, PackedLinear) for module in net.modules())
    is_exact = all(w.itemsize >= 4 and not hasattr(w, "full_tensor") for w in net.parameters())
    require(is_exact and not is_packed, "rate", rate, "0, or whole weights in float32")
    with torch.inference_mode(False):
        return copy.deepcopy(net).eval().requires_grad_(True)


def make_adapted_reader(net: Network, adaptation: Adaptation | None) -> Reader | AdaptedReader:
    """Return a network as evaluation calls it, which adapts if this is asked for."""
    return AdaptedReader(net, adaptation) if adaptation else make_reader(net)


def match_reader(net: Network | AdaptedReader, memory: AnyMemory) -> Reader | AdaptedReader:
    """Return a network as evaluation calls it, or itself, to read on from a memory of its own."""
    if isinstance(net, AdaptedReader):
        return net
    is_adapted = isinstance(memory, AdaptedMemory)
    return AdaptedReader(net, Adaptation()) if is_adapted else make_reader(net)
