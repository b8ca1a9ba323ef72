"""Networks of layers that each read a segment from a state, from left to right.

B rows   L tokens in the segment   D width
"""

from collections.abc import Iterable
from dataclasses import replace
from typing import Protocol

from torch import Tensor, nn

from .stateful import State, StateConfig, StateMemory, StateNetwork, keep_precision


class RecurrentLayer(Protocol):
    """A layer that reads a segment from a state, from left to right."""

    def empty_state(self, batch_size: int) -> State:
        """Return the state before any token: zeros."""

    def __call__(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        """Return the outputs of all tokens, and the state after the last one.

        What is before a token whose doc_pos_BL is 0 has no effect on it and on those after it.
        """


class RecurrentNetwork(StateNetwork):
    """A network whose memory is the state of each layer.

    Args:
        layers: read the embeddings one after the other; residual sums are theirs.
        norm: of the states before the softmax.
    """

    def __init__(
        self, config: StateConfig, layers: Iterable[RecurrentLayer], norm: nn.Module
    ) -> None:
        super().__init__(config, norm)
        self.layers = nn.ModuleList(layers)

    def make_memory(self, batch_size: int, mem_len: int) -> StateMemory:
        states = (layer.empty_state(batch_size) for layer in self.layers)
        return StateMemory(tuple(states), mem_len)

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        h_BLD = self.drop(self.embedding(tokens_BL))
        states = []
        for layer, before in zip(self.layers, memory.state_N, strict=True):
            h_BLD, after = layer(h_BLD, before, doc_pos_BL)
            states.append(keep_precision(after, before))
        return self.norm(h_BLD), replace(memory, state_N=tuple(states))
