"""Parts of all networks with a state: settings, states as memory, and the contract of a network.

B rows   L tokens in the segment   D width   N layers   V vocabulary
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from ..errors import convert_fields, require, require_at_least
from ..model.adaptive import PlainSoftmax, as_indices, embedding_and_head
from ..model.config import ContextLengths, EvalLengths, TransformerXLConfig
from ..model.parts import is_changed, move

State = dict[str, Tensor]
"""Tensors of a layer, or of a network; the first dimension of each is the rows."""
LONG_AGO = 1 << 40  # tokens before a token of a document that began before anything was read


@dataclass(frozen=True)
class StateConfig:
    """Settings that all networks with a state have.

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
        require_at_least(self, n_token=1, n_layer=1, d_model=1)
        expected = "1 (the state is carried) or 0 (it is not)"
        require(self.mem_len in (0, 1), "mem_len", self.mem_len, expected)
        is_possible = 0 <= self.dropout < 1
        require(is_possible, "dropout", self.dropout, "at least 0 and less than 1")


@dataclass(frozen=True)
class StateMemory:
    """The states after a segment, of each layer or of the network, as a value."""

    state_N: tuple[State, ...]
    mem_len: int
    """0: nothing is carried; any other number, as of `recl`: the state is."""
    has_gradient: bool = False
    """False: the states have no gradient into the segment before."""

    @property
    def batch_size(self) -> int:
        return len(next(iter(self.state_N[0].values())))

    def change_each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return a memory with each tensor changed."""
        states = ({name: change(state[name]) for name in state} for state in self.state_N)
        return replace(self, state_N=tuple(states))

    def rows(self, index_B: Tensor | slice) -> Self:
        return self.change_each(lambda tensor: tensor[index_B])

    def to(self, *args: Any, **kwargs: Any) -> Self:
        return self.change_each(lambda tensor: move(tensor, *args, **kwargs))

    def tensors(self) -> dict[str, Tensor]:
        pairs = enumerate(self.state_N)
        return {f"{n}.{name}": state[name] for n, state in pairs for name in state}

    def restore(self, tensors: dict[str, Tensor]) -> Self:
        pairs = enumerate(self.state_N)
        states = ({name: tensors[f"{n}.{name}"] for name in state} for n, state in pairs)
        return replace(self, state_N=tuple(states))

    def resize(self, lengths: ContextLengths) -> Self:
        return replace(self, mem_len=lengths.mem_len).end_segment()

    def keep_gradient(self) -> Self:
        """Return a memory whose next ones have a gradient into the segments before."""
        return replace(self, has_gradient=True)

    def end_segment(self) -> Self:
        """Return the memory for the next segment: without gradient, or empty if mem_len is 0."""
        memory = self if self.has_gradient else self.change_each(Tensor.detach)
        return memory if self.mem_len else memory.forget()

    def forget(self) -> Self:
        """Return an empty memory: all states are zero at first."""
        return self.change_each(torch.zeros_like)


def keep_precision(after: State, before: State) -> State:
    """Return a state in the precision of the one before, which autocast may have lowered.

    Raises:
        ValueError: the tensors have other names or shapes than those of `empty_state`.
    """
    names = [*after] if isinstance(after, dict) else type(after).__name__
    is_named = isinstance(after, dict) and after.keys() == before.keys()
    expected = "those of empty_state"
    require(is_named, "next state", names, f"{expected}: {', '.join(before)}")
    for name in before:
        sizes = [*before[name].shape]
        shape = [*after[name].shape]
        require(shape == sizes, f"next state {name}", shape, f"{expected}: {sizes}")
    return {name: after[name].to(before[name].dtype) for name in before}


def new_zeros(net: nn.Module, *sizes: int) -> Tensor:
    """Return zeros of the device and precision of a module's weights, which may be shards."""
    weight = next(net.parameters())
    return torch.zeros(sizes, dtype=weight.dtype, device=weight.device)


class StateNetwork(nn.Module):
    """Embedding, the parts of a derived class, a norm, and a softmax with the embedding's weights.

    Args:
        norm: of the states before the softmax.
    """

    def __init__(self, config: StateConfig, norm: nn.Module) -> None:
        super().__init__()
        self.config = config
        sizes = {name: getattr(config, name) for name in ("n_token", "d_model", "cutoffs")}
        # As in the Transformer-XL, whose other settings these two do not read: with sinusoids, the
        # width would have to be even.
        unused = {"n_head": 1, "positions": "learned", "clamp_len": 0}
        self.embedding, self.head = embedding_and_head(TransformerXLConfig(**unused, **sizes))
        self.norm = norm
        self.drop = nn.Dropout(config.dropout)
        for table_VD in self.embedding.parameters():
            nn.init.normal_(table_VD, std=config.d_model**-0.5)

    def make_memory(self, batch_size: int, mem_len: int) -> StateMemory:
        """Return the memory before any token."""
        raise NotImplementedError

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        """Return the states h_BLD of all tokens, and the memory after the last."""
        raise NotImplementedError

    @property
    def has_own_calls(self) -> bool:
        """True if a derived class, a patch or a hook may return other logits than the head's."""
        return type(self).forward is not StateNetwork.forward or is_changed(self)

    @property
    def reads_states(self) -> bool:
        """True if calls are those of `hidden` and `head`."""
        return not self.has_own_calls

    def empty_memory(self, batch_size: int, lengths: EvalLengths | None = None) -> StateMemory:
        use = lengths.resolve(self.config) if lengths else self.config
        return self.make_memory(batch_size, use.mem_len)

    def forward(self, tokens_BL: Tensor, *inputs: Any, **named: Any) -> tuple[Tensor, StateMemory]:
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head(h_BLD), memory

    def loss(
        self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any, **named: Any
    ) -> tuple[Tensor, StateMemory]:
        last = slice(-targets_BL.size(1), None)
        if self.has_own_calls:
            logits_BLV, memory = self(tokens_BL, *inputs, **named)
            return PlainSoftmax().nats(logits_BLV[:, last], targets_BL), memory
        h_BLD, memory = self.hidden(tokens_BL, *inputs, **named)
        return self.head.nats(h_BLD[:, last], targets_BL), memory

    def hidden(self, *inputs: Any, **named: Any) -> tuple[Tensor, StateMemory]:
        h_BLD, memory = self.encode(*inputs, **named)
        return h_BLD, memory.end_segment()

    def encode(
        self,
        tokens_BL: Tensor,
        memory: StateMemory | None = None,
        doc_pos_BL: Tensor | None = None,
        n_reread: int = 0,
    ) -> tuple[Tensor, StateMemory]:
        """Return the states h_BLD, and the memory before the tokens that are read again."""
        tokens_BL = as_indices(tokens_BL)
        memory = self.empty_memory(len(tokens_BL)) if memory is None else memory
        if doc_pos_BL is None:
            # Each row is one document.
            doc_pos_BL = torch.full_like(tokens_BL, LONG_AGO, dtype=torch.long)
        if not tokens_BL.size(1):
            return self.embedding(tokens_BL), memory
        n_new = tokens_BL.size(1) - n_reread
        parts = []
        # The next segment may read all tokens again.
        if n_new:
            h_BLD, memory = self.read(tokens_BL[:, :n_new], memory, doc_pos_BL[:, :n_new])
            parts.append(h_BLD)
        if n_reread:
            h_BLD, _ = self.read(tokens_BL[:, n_new:], memory, doc_pos_BL[:, n_new:])
            parts.append(h_BLD)
        return torch.cat(parts, dim=1), memory
