"""Networks that learn from a text while they score it.

The continuous cache is in state_cache.py. Dynamic evaluation (Krause et al. 2018) takes a step on
the mean loss of each segment after its score:

    weights <- weights - rate * gradient + decay * (trained weights - weights)

At the beginning of each document, the cache is empty and the weights are the trained ones, unless
they are kept across documents.

B rows   L segment   D width
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import convert_fields, require
from .config import ContextLengths
from .contract import AnyMemory, Network
from .packing import PackedLinear
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
    adapt_across_documents: bool = False
    """Keep the cache and the weights where a document begins; the memory forgets as ever."""

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
        """The values other than None and false, by name."""
        numbers = {name: value for name in USUAL if (value := getattr(self, name)) is not None}
        is_kept = self.adapt_across_documents
        return numbers | ({"adapt_across_documents": True} if is_kept else {})

    def find_documents(self, doc_pos_BL: Tensor | None) -> Tensor | None:
        """Return the doc_pos_BL for what is learned: None if documents change nothing."""
        return None if self.adapt_across_documents else doc_pos_BL

    def require_used(self) -> None:
        """Refuse values that have no effect, because the cache or the steps that have them lack."""
        for name, whole in USED_BY.items():
            value = getattr(self, name)
            is_used = value is None or getattr(self, whole) is not None
            require(is_used, name, value, f"null without {whole}")
        is_used = self.adapts or not self.adapt_across_documents
        require(is_used, "adapt_across_documents", True, "false without cache_len or rate")

    def require_one_document(self) -> None:
        """Refuse what acts only between documents, where a text is one."""
        is_one = not self.adapt_across_documents
        require(is_one, "adapt_across_documents", True, "false, as the text is one document")

    def describe(self) -> str:
        names = ("cache_len", "cache_theta", "cache_weight") if self.cache_len else ()
        names += ("rate", "decay") if self.rate else ()
        names += ("adapt_across_documents",) if self.adapt_across_documents else ()
        return ", ".join(f"{name} {getattr(self.fill(), name):g}" for name in names)


@dataclass(frozen=True)
class AdaptedMemory:
    """The memory of a network, and the continuous cache of its last states."""

    memory: AnyMemory
    cache: StateCache
    n_reread: int = 0
    """First tokens of the next segment that have been read."""

    @property
    def batch_size(self) -> int:
        return self.memory.batch_size

    @property
    def mem_len(self) -> int:
        return self.memory.mem_len + self.cache.cache_len

    def rows(self, index_B: Tensor | slice) -> AdaptedMemory:
        """Return these rows, in this order; a row may occur twice."""
        return replace(self, memory=self.memory.rows(index_B), cache=self.cache.rows(index_B))

    def to(self, *args: Any, **kwargs: Any) -> AdaptedMemory:
        """Return the memory on another device, or the network's part in another precision."""
        cache = self.cache.to(*args, **kwargs)
        return replace(self, memory=self.memory.to(*args, **kwargs), cache=cache)

    def resize(self, lengths: ContextLengths) -> AdaptedMemory:
        """Return a memory of other lengths of the network's part."""
        return replace(self, memory=self.memory.resize(lengths))

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save; weights that have learned are in the reader."""
        inner = prefix_names("network.", self.memory.tensors())
        return {**inner, **self.cache.tensors(), "n_reread": torch.tensor(self.n_reread)}

    def restore(self, tensors: dict[str, Tensor]) -> AdaptedMemory:
        """Return the memory saved by `tensors`, with the settings of this one."""
        cache = self.cache.restore(tensors)
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


@torch.no_grad()
def restore_weights(net: Network, trained: Network) -> None:
    """Give a network that learns the trained weights again."""
    # Private, as in torch's own optimizers.
    torch._foreach_copy_([*net.parameters()], [*trained.parameters()])


def take_step(net: Network, trained: Network, adaptation: Adaptation, nats_K: Tensor) -> None:
    """Take a step on the mean of some nats of a network that learns."""
    if not len(nats_K):
        return
    weights = list(net.parameters())
    gradients = torch.autograd.grad(nats_K.mean(), weights, allow_unused=True)
    with torch.no_grad():
        torch._foreach_lerp_(weights, [*trained.parameters()], adaptation.decay)
        for weight, gradient in zip(weights, gradients, strict=True):
            if gradient is not None:
                weight.sub_(gradient, alpha=adaptation.rate)


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
