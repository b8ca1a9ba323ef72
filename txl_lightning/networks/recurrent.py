"""What recurrent networks share: layers that read a segment from a state, and states as memory.

B rows   L tokens in the segment   D width   N layers   V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ..errors import convert_fields, require
from ..model.adaptive import embedding_and_head
from ..model.config import ContextLengths, EvalLengths, TransformerXLConfig

State = dict[str, Tensor]
"""Tensors of one layer; the first dimension of each is the rows."""


@dataclass(frozen=True)
class RecurrentConfig:
    """Settings that all recurrent networks have.

    Args:
        n_token: Vocabulary size V. The command line takes it from the text.
        cutoffs: First id of each cluster of the softmax except the first; default none.
        n_layer: Number of layers N.
        d_model: Width D.
        mem_len: 1 if a segment begins with the state after the segment before; 0 if with none.
        dropout: Probability of dropping hidden units.
    """

    n_token: int = 256
    cutoffs: tuple[int, ...] = ()
    n_layer: int = 4
    d_model: int = 128
    mem_len: int = 1
    dropout: float = 0.0

    def __post_init__(self) -> None:
        convert_fields(self)
        for field in ("n_token", "n_layer", "d_model"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
        require_carried(self.mem_len)
        is_possible = 0 <= self.dropout < 1
        require(is_possible, "dropout", self.dropout, "at least 0 and less than 1")


def require_carried(mem_len: int) -> None:
    require(mem_len in (0, 1), "mem_len", mem_len, "1 (the state is carried) or 0 (it is not)")


class RecurrentLayer(Protocol):
    """A layer that reads a segment from a state, from left to right."""

    def empty_state(self, batch_size: int) -> State:
        """Return the state before any token."""

    def __call__(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        """Return the outputs of all tokens, and the state after the last one.

        What is before a token whose doc_pos_BL is 0 has no effect on it and on those after it.
        """


@dataclass(frozen=True)
class StateMemory:
    """The states of all layers after a segment, as a value."""

    state_N: tuple[State, ...]
    mem_len: int
    has_gradient: bool = False
    """False: the states have no gradient into the segment before."""

    @property
    def batch_size(self) -> int:
        return len(next(iter(self.state_N[0].values())))

    def change_each(self, change: Callable[[Tensor], Tensor]) -> StateMemory:
        """Return a memory with each tensor changed."""
        states = ({name: change(state[name]) for name in state} for state in self.state_N)
        return replace(self, state_N=tuple(states))

    def rows(self, index_B: Tensor | slice) -> StateMemory:
        return self.change_each(lambda tensor: tensor[index_B])

    def to(self, *args: Any, **kwargs: Any) -> StateMemory:
        return self.change_each(lambda tensor: tensor.to(*args, **kwargs))

    def tensors(self) -> dict[str, Tensor]:
        pairs = enumerate(self.state_N)
        return {f"{n}.{name}": state[name] for n, state in pairs for name in state}

    def restore(self, tensors: dict[str, Tensor]) -> StateMemory:
        pairs = enumerate(self.state_N)
        states = ({name: tensors[f"{n}.{name}"] for name in state} for n, state in pairs)
        return replace(self, state_N=tuple(states))

    def resize(self, lengths: ContextLengths) -> StateMemory:
        require_carried(lengths.mem_len)
        return replace(self, mem_len=lengths.mem_len).forget_uncarried()

    def keep_gradient(self) -> StateMemory:
        """Return a memory whose next ones have a gradient into the segments before."""
        return replace(self, has_gradient=True)

    def forget_uncarried(self) -> StateMemory:
        """Return an empty memory if mem_len is 0: the next segment begins with no state."""
        return self if self.mem_len else self.change_each(torch.zeros_like)


class RecurrentNetwork(nn.Module):
    """Embedding, recurrent layers, a norm, and a softmax with the embedding's weights.

    Args:
        layers: read the embeddings one after the other; residual sums are theirs.
        norm: of the states before the softmax.
    """

    def __init__(
        self, config: RecurrentConfig, layers: Iterable[RecurrentLayer], norm: nn.Module
    ) -> None:
        super().__init__()
        self.config = config
        sizes = {name: getattr(config, name) for name in ("n_token", "d_model", "cutoffs")}
        # As in the Transformer-XL, whose other settings these two do not read.
        self.embedding, self.head = embedding_and_head(TransformerXLConfig(n_head=1, **sizes))
        self.layers = nn.ModuleList(layers)
        self.norm = norm
        self.drop = nn.Dropout(config.dropout)
        for table_VD in self.embedding.parameters():
            nn.init.normal_(table_VD, std=config.d_model**-0.5)

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> StateMemory:
        use = lengths.resolve(self.config) if lengths else self.config
        require_carried(use.mem_len)
        states = (layer.empty_state(batch_size) for layer in self.layers)
        return StateMemory(tuple(states), use.mem_len)

    def forward(self, tokens_BL: Tensor, *inputs: Any, **named: Any) -> tuple[Tensor, StateMemory]:
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head(h_BLD), memory

    def loss(
        self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any, **named: Any
    ) -> tuple[Tensor, StateMemory]:
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head.nats(h_BLD[:, -targets_BL.size(1) :], targets_BL), memory

    def hidden(
        self,
        tokens_BL: Tensor,
        memory: StateMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, StateMemory]:
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        if doc_pos_BL is None:
            # Each row is one document, which began long ago.
            doc_pos_BL = torch.full_like(tokens_BL, torch.iinfo(torch.int32).max, dtype=torch.long)
        n_new = tokens_BL.size(1) - n_reread
        # Memory is the state before the tokens that the next segment reads again.
        h_BLD, memory = self.read(tokens_BL[:, :n_new], memory, doc_pos_BL[:, :n_new])
        if n_reread:
            reread_BLD, _ = self.read(tokens_BL[:, n_new:], memory, doc_pos_BL[:, n_new:])
            h_BLD = torch.cat([h_BLD, reread_BLD], dim=1)
        memory = memory if memory.has_gradient else memory.change_each(Tensor.detach)
        return h_BLD, memory.forget_uncarried()

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        """Return the states h_BLD of all tokens, and the states of the layers after the last."""
        h_BLD = self.drop(self.embedding(tokens_BL))
        states = []
        for layer, before in zip(self.layers, memory.state_N, strict=True):
            h_BLD, after = layer(h_BLD, before, doc_pos_BL)
            states.append(after)
        return self.norm(h_BLD), replace(memory, state_N=tuple(states))
