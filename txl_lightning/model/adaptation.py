"""Networks that learn from a text while they score it.

The continuous cache is in state_cache.py. Dynamic evaluation (Krause et al. 2018) takes a step on
the mean loss of each segment after its score:

    weights <- weights - rate * gradient + decay * (trained weights - weights)

RmsSteps divide each gradient by the RMS of such gradients on the training text. At the beginning of
each document, the cache is empty and the weights are the trained ones, unless they are kept across
documents.

B rows   L segment   D width
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..errors import convert_fields, require, require_positive
from .config import ContextLengths
from .contract import AnyMemory, Network
from .packing import PackedLinear
from .state_cache import StateCache

USUAL = {"cache_len": 0, "cache_theta": 40.0, "cache_weight": 0.4, "rate": 0.0, "decay": 0.0}
OPTIONAL = ("rate_weights", "rms_tokens", "adapt_across_documents")
"""Settings that are named only where they are used."""
USED_BY = {"cache_theta": "cache_len", "cache_weight": "cache_len"} | dict.fromkeys(
    ("decay", "rate_weights", "rms_tokens"), "rate"
)
"""Values that act only with another one."""
FLOOR = 0.1
"""Share of the mean RMS that is added to each: weights with small gradients take no large steps."""


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
    rate_weights: str | None = None
    """Names of the weights that take steps, as patterns: layers.3.*,*norm*; left out, all.

    A tied weight has the names of both.
    """
    rms_tokens: int | None = None
    """Tokens of the training text whose gradients scale the steps, by their RMS; left out, none."""
    adapt_across_documents: bool = False
    """Keep the cache and the weights where a document begins; the memory forgets as ever."""

    def __post_init__(self) -> None:
        convert_fields(self)
        require_positive(rms_tokens=self.rms_tokens)
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
        return replace(self, **USUAL | self.given)

    @property
    def given(self) -> dict[str, Any]:
        """The values other than None and false, by name."""
        numbers = {name: value for name in USUAL if (value := getattr(self, name)) is not None}
        return numbers | {name: value for name in OPTIONAL if (value := getattr(self, name))}

    def make_steps(self) -> PlainSteps:
        """Return how the weights follow their gradients; ValueError if an RMS is not measured."""
        expected = "null: gradients of the training text are measured by evaluate alone"
        require(not self.rms_tokens, "rms_tokens", self.rms_tokens, expected)
        use = self.fill()
        return PlainSteps(use.rate, use.decay)

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

    def require_no_warmup(self, warmup_len: int) -> None:
        """Refuse a cache across documents with a warm-up, which repeats the text's first token."""
        # Only the beginnings of documents hide these repetitions from the cache.
        is_apart = not (self.cache_len and self.adapt_across_documents and warmup_len)
        expected = f"false with a cache and a warm-up ({warmup_len})"
        require(is_apart, "adapt_across_documents", True, expected)

    def describe(self) -> str:
        names = ("cache_len", "cache_theta", "cache_weight") if self.cache_len else ()
        names += ("rate", "decay") if self.rate else ()
        values = [f"{name} {getattr(self.fill(), name):g}" for name in names]
        return ", ".join(values + [f"{n} {v}" for n in OPTIONAL if (v := getattr(self, n))])


@dataclass(frozen=True)
class RmsAdaptation(Adaptation):
    """An adaptation whose `rms_tokens` of the training text have been read."""

    rms: tuple[Tensor, ...] = field(default=(), compare=False, repr=False)
    """RMS of the gradients of each weight that takes steps."""

    def make_steps(self) -> PlainSteps:
        use = self.fill()
        return RmsSteps(use.rate, use.decay, self.rms)


@dataclass(frozen=True)
class PlainSteps:
    """Dynamic evaluation with one rate for all weights."""

    rate: float
    decay: float

    def take(
        self, weights: Sequence[Tensor], trained: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        """Change the weights; all three are in one order."""
        # Private, as in torch's own optimizers.
        torch._foreach_lerp_(weights, trained, self.decay)
        for weight, gradient in zip(weights, gradients, strict=True):
            weight.sub_(gradient, alpha=self.rate)


@dataclass(frozen=True)
class RmsSteps(PlainSteps):
    """Dynamic evaluation with the RMS rule of Krause et al. 2018:

    weights <- weights - rate * gradient / (rms + floor)
                       + min(decay * rms / mean rms, 1) * (trained weights - weights)
    """

    rms: tuple[Tensor, ...]

    def take(
        self, weights: Sequence[Tensor], trained: Sequence[Tensor], gradients: Sequence[Tensor]
    ) -> None:
        mean = sum(rms.sum() for rms in self.rms) / sum(rms.numel() for rms in self.rms)
        for each in zip(weights, trained, gradients, self.rms, strict=True):
            weight, start, gradient, rms = each
            weight.lerp_(start, (self.decay * rms / mean).clamp(max=1))
            weight.addcdiv_(gradient, rms + FLOOR * mean, value=-self.rate)


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
    forget_casts()


def copy_learning(net: Network, adaptation: Adaptation) -> Network:
    """Return a copy in eval mode, of which the weights that take steps have gradients.

    Raises:
        ValueError: no weight has one of the names, or weights are not whole, or not in float32.
    """
    expected = "0, or whole weights in float32, not packed"
    require(is_trainable(net), "rate", adaptation.rate, expected)
    patterns = [each.strip() for each in (adaptation.rate_weights or "*").split(",")]
    # Tensors made under inference_mode take part in no gradient.
    with torch.inference_mode(False):
        copied = copy.deepcopy(net).eval().requires_grad_(False)
    # A tied weight has the names of both.
    weights = dict(copied.named_parameters(remove_duplicate=False))
    names = [*weights]
    found = [[name for name in names if fnmatchcase(name, each)] for each in patterns]
    unknown = [each for each, some in zip(patterns, found, strict=True) if not some]
    expected = f"names of weights, such as {names[-1]}"
    require(not unknown, "rate_weights", ",".join(unknown), expected)
    learn = {name for some in found for name in some}
    for name in learn:
        weights[name].requires_grad_(True)
    return copied


def find_gradients(net: Network, nats_K: Tensor) -> list[Tensor]:
    """Return the gradients of the mean of some nats, of the weights that take steps."""
    weights = [weight for weight in net.parameters() if weight.requires_grad]
    return list(torch.autograd.grad(nats_K.mean(), weights, materialize_grads=True))


def take_step(net: Network, trained: Network, steps: PlainSteps, nats_K: Tensor) -> None:
    """Take a step on the mean of some nats of a network that learns."""
    if not len(nats_K):
        return
    gradients = find_gradients(net, nats_K)
    pairs = zip(net.parameters(), trained.parameters(), strict=True)
    learning = [pair for pair in pairs if pair[0].requires_grad]
    with torch.no_grad():
        steps.take(*zip(*learning, strict=True), gradients)
    forget_casts()


def forget_casts() -> None:
    """Drop the copies that autocast keeps of weights, which have changed in place."""
    torch.clear_autocast_cache()


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
