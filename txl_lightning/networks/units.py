"""Networks whose state changes only after each unit of so many tokens.

Segments may begin and end within a unit: memory has the tokens of an unfinished unit, which are
read again with those that follow. So what a network computes does not depend on where segments end,
but for one place: a unit begins anew at a segment at whose start documents begin in all rows.

B rows   L tokens in the segment   U in a unit   X of the unfinished unit   D width
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from ..errors import require_at_least
from .stateful import State, StateConfig, StateMemory, StateNetwork, keep_precision


@dataclass(frozen=True)
class UnitConfig(StateConfig):
    """Settings of networks with units.

    Args:
        unit_len: Tokens U after which the state changes; data.tgt_len is a multiple of it.
    """

    unit_len: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, unit_len=1)


class UnitMemory(StateMemory):
    """The state before the present unit, and the tokens of it that were read."""

    def forget(self) -> Self:
        state, begun = super().forget().state_N
        return replace(self, state_N=(state, begun | drop_tokens(begun)))


def drop_tokens(begun: State) -> State:
    """Return the tensors of no unfinished unit."""
    return {name: begun[name][:, :0] for name in ("tokens_BX", "doc_pos_BX")}


class UnitNetwork(StateNetwork):
    """A network with the methods `empty_state` and `read_unit`."""

    def empty_state(self, batch_size: int) -> State:
        """Return the state before any token: zeros."""
        raise NotImplementedError

    def read_unit(
        self, tokens_BU: Tensor, state: State, doc_pos_BU: Tensor
    ) -> tuple[Tensor, State]:
        """Return the states h_BUD of a unit, or of its beginning, and the state after it.

        The state that is returned after a beginning is not used.
        """
        raise NotImplementedError

    def make_memory(self, batch_size: int, mem_len: int) -> UnitMemory:
        device = next(self.parameters()).device
        none_BX = torch.zeros(batch_size, 0, dtype=torch.long, device=device)
        n_read_B = torch.zeros(batch_size, dtype=torch.long, device=device)
        begun = {"tokens_BX": none_BX, "doc_pos_BX": none_BX, "n_read_B": n_read_B}
        return UnitMemory((self.empty_state(batch_size), begun), mem_len)

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        state, begun = memory.state_N
        unit_len = self.config.unit_len
        # In a new pass over a text, all rows begin anew, and so does a unit.
        if begun["tokens_BX"].size(1) and not doc_pos_BL[:, 0].any():
            begun = begun | drop_tokens(begun)
        n_begun = begun["tokens_BX"].size(1)
        # A document is not older than all that was read: an empty state has nothing of it.
        n_new = tokens_BL.size(1)
        before_BL = begun["n_read_B"][:, None] + torch.arange(n_new, device=tokens_BL.device)
        doc_pos_BL = torch.minimum(doc_pos_BL, before_BL)
        tokens = torch.cat([begun["tokens_BX"], tokens_BL], dim=1).split(unit_len, dim=1)
        doc_pos = torch.cat([begun["doc_pos_BX"], doc_pos_BL], dim=1).split(unit_len, dim=1)
        parts = []
        for tokens_BU, doc_pos_BU in zip(tokens, doc_pos, strict=True):
            h_BUD, after = self.read_unit(tokens_BU, state, doc_pos_BU)
            parts.append(h_BUD)
            n_kept = tokens_BU.size(1) % unit_len
            # The state after a beginning of a unit is not kept.
            state = state if n_kept else keep_precision(after, state)
        begun = {
            "tokens_BX": tokens_BU[:, :n_kept],
            "doc_pos_BX": doc_pos_BU[:, :n_kept],
            "n_read_B": begun["n_read_B"] + n_new,
        }
        h_BLD = torch.cat(parts, dim=1)[:, n_begun:]
        # Some weights change only what the next unit reads. DDP waits for their gradient, too: that
        # of a sum of no numbers.
        zero = sum(each[..., :0].sum() for each in after.values() if each.is_floating_point())
        return h_BLD + zero, replace(memory, state_N=(state, begun))
