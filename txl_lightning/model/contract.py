"""The contract of a network: all that training, evaluation, generation and checkpoints know of it.

An example is in docs/own_network.md.

B rows   L tokens in the segment   V vocabulary
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from .config import ContextLengths, EvalLengths, NetworkConfig
from .parts import is_changed


class AnyMemory(Protocol):
    """Memory of the rows that a network has read, as a value: frozen.

    It may have a gradient, which training stops after each step. If it has filled_B, the number of
    states that count in each row, training logs their mean. If it has no gradient by itself,
    `keep_gradient` may return a memory after which the next ones have.
    """

    @property
    def batch_size(self) -> int: ...

    def rows(self, index_B: Tensor | slice) -> Self:
        """Return these rows, in this order; a row may occur twice."""

    def to(self, *args: Any, **kwargs: Any) -> Self:
        """Return the memory on another device."""

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors to save; all that have one dimension for the rows."""

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        """Return the memory saved by `tensors`, perhaps of another number of rows."""

    def resize(self, lengths: ContextLengths) -> Self:
        """Return a memory of other lengths, for a run that continues with another mem_len."""


class Network(Protocol):
    """An nn.Module with its config, `empty_memory`, `loss` and `forward`.

    Optional, for the continuous cache: a method `hidden` and a module `head`. `hidden` has the
    inputs of `loss` but the targets, and returns h_BLD and the next memory; `head` makes logits.
    Optional, for sessions: a method `depends_on_segments`, True if for this mem_len the nats of a
    text depend on the segments in which it is read.
    """

    config: NetworkConfig

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> AnyMemory:
        """Return the memory before any token, with the lengths of training or these."""

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: AnyMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, AnyMemory]:
        """Return -log p(target) in nats_BL, at least float32, and the next memory.

        Args:
            targets_BL: of all tokens, or of the last ones; -100 has 0 nats and no gradient.
            memory: that after the previous segment, not modified; None: an empty one.
            doc_pos_BL: number of tokens of the same document before each token: what is before a 0
                has no effect on what follows. None: each row is one document.
            n_reread: last tokens that memory leaves out, as the next segment reads them again.
        """

    def __call__(self, tokens_BL: Tensor, *inputs: Any) -> tuple[Tensor, AnyMemory]:
        """Return logits_BLV of the token after each, and the next memory, from inputs of `loss`."""


def keep_gradient(memory: AnyMemory) -> AnyMemory:
    """Return a memory after which gradients flow from segment to segment, if the network can."""
    return memory.keep_gradient() if hasattr(memory, "keep_gradient") else memory


def stop_gradient(memory: AnyMemory) -> AnyMemory:
    """Return SG(memory), the same values without gradient."""
    return memory.restore({name: each.detach() for name, each in memory.tensors().items()})


def join_rows(memory: AnyMemory, parts: Sequence[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Return the tensors of one memory with the rows of several that are like `memory`."""
    # In a memory without rows, the dimension of the rows is 0.
    none = memory.rows(slice(0)).tensors()
    joined = dict(memory.tensors())
    for name, tensor in joined.items():
        sizes = zip(tensor.shape, none[name].shape, strict=True)
        rows = [dim for dim, (n, n_none) in enumerate(sizes) if n != n_none]
        if rows:
            joined[name] = torch.cat([part[name] for part in parts], dim=rows[0])
    return joined


def find_device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device


def has_states(net: Network) -> bool:
    """Return True if calls of a network give the same as its optional `hidden` and `head`."""
    has_both = callable(getattr(type(net), "hidden", None)) and hasattr(net, "head")
    return has_both and getattr(net, "reads_states", not is_changed(net))
