"""Networks that learn from a text while they score it.

The continuous cache is in state_cache.py. Dynamic evaluation (Krause et al. 2018) takes a step on
the mean loss of each segment after its score:

    weights <- weights - rate * gradient + decay * (trained weights - weights)

At the beginning of each document, the cache is empty and the weights are the trained ones.

B rows   L segment   D width
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import convert_fields, require
from .config import EvalLengths
from .contract import AnyMemory, Network, has_states
from .inference import Reader, make_reader
from .parts import PackedLinear
from .state_cache import StateCache

USUAL = {"cache_len": 0, "cache_theta": 40.0, "cache_weight": 0.4, "rate": 0.0, "decay": 0.0}
USED_BY = {"cache_theta": "cache_len", "cache_weight": "cache_len", "decay": "rate"}
"""Values that act only with another one."""


@dataclass(frozen=True)
class Adaptation:
    """Settings of learning from a text while it is scored; None is the usual value.

    >>> Adaptation(cache_len=2000, rate=0.1).describe()
    'cache_len 2000, cache_theta 40, cache_weight 0.4, rate 0.1, decay 0'
    """

    cache_len: int | None = None
    """States in a continuous cache of each row; left out, or 0: no cache."""
    cache_theta: float | None = None
    """Sharpness of the cache, the factor of the cosine of two states; left out, 40."""
    cache_weight: float | None = None
    """Share of the cache in the mixture with the network; left out, 0.4."""
    rate: float | None = None
    """Step size of dynamic evaluation, which reads a single row; left out, or 0: no steps."""
    decay: float | None = None
    """Share of the way back to the trained weights in each step; left out, 0."""

    def __post_init__(self) -> None:
        convert_fields(self)
        # Of theta: `state_cache.SHIFT`.
        for name, most in zip(USUAL, (10**9, 75, 1, 10**6, 1), strict=True):
            value = getattr(self, name)
            is_valid = value is None or 0 <= value <= most
            require(is_valid, name, value, f"from 0 to {most:,}")

    @property
    def adapts(self) -> bool:
        return bool(self.cache_len or self.rate)

    def fill(self) -> Adaptation:
        """Return the same with usual values in place of None."""
        return Adaptation(**USUAL | self.given)

    @property
    def given(self) -> dict[str, Any]:
        """The values other than None, by name."""
        return {name: value for name in USUAL if (value := getattr(self, name)) is not None}

    def require_used(self) -> None:
        """Refuse values that have no effect, because the cache or the steps that have them lack."""
        for name, whole in USED_BY.items():
            value = getattr(self, name)
            is_used = value is None or getattr(self, whole) is not None
            require(is_used, name, value, f"null without {whole}")

    def describe(self) -> str:
        names = ("cache_len", "cache_theta", "cache_weight") if self.cache_len else ()
        names += ("rate", "decay") if self.rate else ()
        return ", ".join(f"{name} {getattr(self.fill(), name):g}" for name in names)


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
    def mem_len(self) -> int:
        return self.memory.mem_len + (self.cache.cache_len if self.cache else 0)

    def rows(self, index_B: Tensor | slice) -> AdaptedMemory:
        """Return these rows, in this order; a row may occur twice."""
        cache = self.cache and self.cache.rows(index_B)
        return replace(self, memory=self.memory.rows(index_B), cache=cache)

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save; weights that have learned are in the reader."""
        cache = self.cache.tensors() if self.cache else {}
        inner = prefix_names("network.", self.memory.tensors())
        return {**inner, **cache, "n_reread": torch.tensor(self.n_reread)}

    def restore(self, tensors: dict[str, Tensor]) -> AdaptedMemory:
        """Return the memory saved by `tensors`, with the settings of this one."""
        cache = self.cache and self.cache.restore(tensors)
        inner = self.memory.restore(select_names("network.", tensors))
        return AdaptedMemory(inner, cache, int(tensors["n_reread"]))


class Piece(NamedTuple):
    """A segment, or a part of it: tokens, and the targets of all of them or of the last ones."""

    tokens_BL: Tensor
    targets_BL: Tensor
    doc_pos_BL: Tensor | None = None

    @property
    def n_context(self) -> int:
        """First tokens that an earlier segment has read."""
        return self.tokens_BL.size(1) - self.targets_BL.size(1)

    @property
    def starts(self) -> list[int]:
        """Places among the targets where documents of the first row begin."""
        if self.doc_pos_BL is None:
            return []
        return (self.doc_pos_BL[0, self.n_context :] == 0).nonzero()[:, 0].tolist()

    def cut(self) -> list[Piece]:
        """Return what is before the first document that begins, if anything, and what follows."""
        if not self.starts:
            return [self]
        first = self.starts[0]
        begin = self.n_context + first
        cuts = [begin], [first], [begin]
        tensors = zip(self, cuts, strict=True)
        parts = [tensor.tensor_split(cut, dim=1) for tensor, cut in tensors]
        before, after = (Piece(*part) for part in zip(*parts, strict=True))
        return [before, after] if first else [after]


class AdaptedReader:
    """A network that adapts to what it reads, with the methods of a `CachedReader`.

    Only the weights of a copy change. `hidden` reads a segment; `score` scores it too; `loss`
    scores it and then learns from it. Arguments are as in a network's methods.
    """

    def __init__(self, net: Network, adaptation: Adaptation) -> None:
        self.trained = net
        self.config = net.config
        self.use = adaptation.fill()
        is_possible = has_states(net) or not self.use.cache_len
        expected = f"0, as {type(net).__name__} lacks its method hidden, or its head"
        require(is_possible, "cache_len", self.use.cache_len, expected)
        is_possible = not self.use.rate or is_trainable(net)
        require(is_possible, "rate", self.use.rate, "0, or whole weights in float32, not packed")
        self.net = net
        if self.use.rate:
            # Tensors made under inference_mode take part in no gradient.
            with torch.inference_mode(False):
                self.net = copy.deepcopy(net).eval().requires_grad_(True)
        self.inner = make_reader(self.net, uses_cache=not self.use.rate)
        self.head = self.inner.head

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AdaptedMemory:
        is_possible = not self.use.rate or batch_size == 1
        require(is_possible, "rate", self.use.rate, f"0, or a single row, not {batch_size}")
        use = self.use
        cache = StateCache(use.cache_len, use.cache_theta, use.cache_weight)
        with torch.inference_mode(False):
            memory = self.inner.empty_memory(batch_size, lengths)
        return AdaptedMemory(memory, cache if use.cache_len else None)

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AdaptedMemory]:
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
        segment = Piece(tokens_BL, targets_BL, doc_pos_BL)
        nats_BL, _, memory = self._score(segment, memory, n_reread)
        return nats_BL, memory

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AdaptedMemory,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AdaptedMemory]:
        if not self.use.rate:
            return self.score(tokens_BL, targets_BL, memory, doc_pos_BL, n_reread)
        tensors = tokens_BL, targets_BL, doc_pos_BL
        with torch.inference_mode(False), torch.enable_grad():
            # Tensors made under inference_mode take part in no gradient; copies do.
            segment = Piece(*(each if each is None else each.clone() for each in tensors))
            return self._learn(segment, memory, n_reread)

    def _learn(
        self, segment: Piece, memory: AdaptedMemory, n_reread: int
    ) -> tuple[Tensor, AdaptedMemory]:
        nats = []
        for piece in segment.cut():
            if piece.starts:
                self._forget()
            memory = replace(memory, n_reread=piece.n_context)
            n_last = min(n_reread, piece.tokens_BL.size(1))
            nats_BL, network_BL, memory = self._score(piece, memory, n_last)
            nats.append(nats_BL)
        # Documents before the last one are over: a step for them would have no effect.
        begin = [0, *piece.starts][-1]
        is_scored_L = piece.targets_BL[0, begin:].to(network_BL.device) >= 0
        self._step(network_BL[0, begin:][is_scored_L])
        return torch.cat(nats, dim=1), replace(memory, n_reread=n_reread)

    def _score(
        self, piece: Piece, memory: AdaptedMemory, n_reread: int
    ) -> tuple[Tensor, Tensor, AdaptedMemory]:
        """Return nats_BL of the mixture; nats_BL of the network, with gradient; and the memory."""
        (tokens_BL, targets_BL, doc_pos_BL) = piece
        h_BLD, memory = self.hidden(tokens_BL, memory, doc_pos_BL, n_reread)
        network_BL = self.head.nats(h_BLD[:, piece.n_context :], targets_BL)
        nats_BL = network_BL.detach()
        if memory.cache:
            nats_BL = memory.cache.mix_nats(nats_BL, targets_BL, doc_pos_BL)
        return nats_BL, network_BL, memory

    @torch.no_grad()
    def _forget(self) -> None:
        """Return to the trained weights."""
        # Private, as in torch's own optimizers.
        torch._foreach_copy_([*self.net.parameters()], [*self.trained.parameters()])

    def _step(self, nats_K: Tensor) -> None:
        """Take a step on the mean of some nats of the network."""
        if not len(nats_K):
            return
        weights = list(self.net.parameters())
        gradients = torch.autograd.grad(nats_K.mean(), weights, allow_unused=True)
        with torch.no_grad():
            torch._foreach_lerp_(weights, [*self.trained.parameters()], self.use.decay)
            for weight, gradient in zip(weights, gradients, strict=True):
                if gradient is not None:
                    weight.sub_(gradient, alpha=self.use.rate)


def prefix_names(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: tensor for name, tensor in tensors.items()}


def select_names(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors whose names have a prefix, by their names without it."""
    names = [name for name in tensors if name.startswith(prefix)]
    return {name.removeprefix(prefix): tensors[name] for name in names}


def is_trainable(net: Network) -> bool:
    """Return True if weights are whole, in float32 at least, and not packed."""
    is_packed = any(isinstance(module, PackedLinear) for module in net.modules())
    weights = [*net.parameters()]
    return not is_packed and all(w.itemsize > 2 and not hasattr(w, "full_tensor") for w in weights)


def make_adapted_reader(
    net: Network | AdaptedReader, adaptation: Adaptation
) -> Reader | AdaptedReader:
    """Return a network as evaluation calls it, which adapts if this is asked for, or itself."""
    if isinstance(net, AdaptedReader):
        return net
    return AdaptedReader(net, adaptation) if adaptation.adapts else make_reader(net)
