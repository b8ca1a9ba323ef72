"""The contract of a network: all that training, evaluation, generation and checkpoints know of it.

An example of 40 lines is in docs/own_network.md.

B rows   L tokens in the segment   V vocabulary
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from typing import Any, Protocol, Self

import torch
from torch import Tensor, nn

from ..errors import require, to_plain
from ..imports import import_class
from .adaptive import nats
from .config import ContextLengths, EvalLengths, TransformerXLConfig

CLASS = "class_path"
"""Key of the settings that names the class of a config other than TransformerXLConfig."""


class NetworkConfig(Protocol):
    """Settings of a network, as a frozen dataclass with plain values and a default for each."""

    n_token: int
    """Vocabulary size V. The command line takes it from the text."""
    mem_len: int
    """Length of the memory in training, in tokens or states; 0: nothing is remembered."""

    def build(self) -> Network:
        """Return a new network. On the meta device, for its shapes, it has no values to read."""


class AnyMemory(Protocol):
    """Memory of the rows that a network has read, as a value: frozen, without gradient.

    If it has filled_B, the number of states that count in each row, training logs their mean.
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

    Optional, for the continuous cache: a method `hidden`, which returns states h_BLD and the next
    memory from the inputs of `loss` but the targets, and `head`, a module from states to logits.
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


def make_config(settings: Mapping[str, Any]) -> NetworkConfig:
    """Return the config of plain settings: TransformerXLConfig, unless they name another class."""
    values = {name: settings[name] for name in settings if name != CLASS}
    return find_config_class(settings.get(CLASS))(**values)


def find_config_class(name: str | None) -> type[NetworkConfig]:
    """Import a class of configs by its name; None is TransformerXLConfig."""
    if name is None:
        return TransformerXLConfig
    kind, expected = import_class(CLASS, name), "a dataclass with n_token, mem_len and build()"
    is_config = is_dataclass(kind) and {"n_token", "mem_len", "build"} <= {*dir(kind)}
    require(is_config, CLASS, name, expected)
    return kind


def describe_config(config: NetworkConfig) -> dict[str, Any]:
    """Return settings for checkpoints and YAML files: plain values, lists instead of tuples."""
    kind, values = type(config), {name: to_plain(v) for name, v in asdict(config).items()}
    if kind is TransformerXLConfig:
        return values
    return {CLASS: f"{kind.__module__}.{kind.__qualname__}"} | values


def is_transformer_xl(net: Network) -> bool:
    """Return True for a network whose layers are known; those of a derived config may differ."""
    return type(net.config) is TransformerXLConfig


def require_transformer_xl(net: Network, key: str, value: object) -> None:
    """Refuse an optional part that other networks do not have."""
    expected = f"a network of TransformerXLConfig, as {type(net).__name__} does not have this"
    require(is_transformer_xl(net), key, value, expected)


def find_device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device


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


def has_states(net: Network) -> bool:
    """Return True for a network with the optional `hidden` and `head`."""
    return callable(getattr(type(net), "hidden", None)) and hasattr(net, "head")


class PlainReader:
    """A network of any kind with the methods of a `CachedReader`; its states may be its logits."""

    def __init__(self, net: Network) -> None:
        self.net, self.config = net, net.config
        self.empty_memory, self.loss = net.empty_memory, net.loss
        self.hidden, head = (net.hidden, net.head) if has_states(net) else (net, nn.Identity())
        self.head = PlainSoftmax(head)


class PlainSoftmax(nn.Sequential):
    """The softmax of the logits of any head."""

    def nats(self, h_BLD: Tensor, targets_BL: Tensor) -> Tensor:
        return nats(self, h_BLD.flatten(0, -2), targets_BL.flatten()).view(targets_BL.shape)
