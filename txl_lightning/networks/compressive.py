"""Compressive Transformer: old memory is compressed before it is forgotten (Rae et al. 2019).

B rows   U tokens in the unit   M states of memory   C compressed ones   S = C + M + U visible
T = S + 1   N layers   D width   F inner width   H heads   K width of a head
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

import torch
from torch import Tensor, einsum, nn
from torch.nn import functional as F

from ..errors import require, require_at_least
from ..model.positions import shift
from .stateful import State, StateMemory, new_zeros
from .units import UnitConfig, UnitMemory, UnitNetwork


@dataclass(frozen=True)
class CompressiveTransformerConfig(UnitConfig):
    """A Compressive Transformer (Rae et al. 2019, Section 3).

    Args:
        n_state: States M of each layer in memory, a multiple of unit_len.
        n_compressed: Compressed states C of each layer, of `rate` states each.
        rate: States that are compressed to one; a divisor of unit_len.
        n_head: Attention heads H.
        d_inner: Inner width F of the feed-forward layer; default 4 d_model.
        dropatt: Probability of dropping attention weights.
    """

    n_state: int = 64
    n_compressed: int = 32
    rate: int = 4
    n_head: int = 4
    d_inner: int | None = None
    dropatt: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, n_state=1, n_compressed=1, rate=1, n_head=1, d_inner=1)
        is_possible = self.n_state % self.unit_len == 0
        require(is_possible, "n_state", self.n_state, f"a multiple of unit_len ({self.unit_len})")
        is_possible = self.unit_len % self.rate == 0
        require(is_possible, "rate", self.rate, f"a divisor of unit_len ({self.unit_len})")
        expected = f"a multiple of n_head ({self.n_head})"
        require(self.d_model % self.n_head == 0, "d_model", self.d_model, expected)

    @property
    def inner_width(self) -> int:
        return 4 * self.d_model if self.d_inner is None else self.d_inner

    @property
    def n_visible(self) -> int:
        """States S that the last token of a unit may attend to."""
        return self.n_compressed + self.n_state + self.unit_len

    def build(self) -> "CompressiveTransformer":
        """Return a new network."""
        return CompressiveTransformer(self)


class CompressiveMemory(UnitMemory):
    """The state also has the loss of the last unit's compression, which `loss` counts."""

    def end_segment(self) -> Self:
        memory = super().end_segment()
        if not self.has_gradient:
            return memory
        # Also where nothing is carried on: the segment's loss needs it.
        state, begun = memory.state_N
        lost = {"lost_B": self.state_N[0]["lost_B"]}
        return replace(memory, state_N=(state | lost, begun))


class CompressiveTransformer(UnitNetwork):
    """After each unit, the oldest U states of memory become U / rate compressed ones (Algorithm 1).

    What compresses them learns to keep what attention reads, by a loss of its own.
    """

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__(config, norm=nn.LayerNorm(config.d_model))
        sizes = (config.n_head, config.n_visible, config.d_model // config.n_head)
        self.position_HSK = nn.Parameter(torch.zeros(sizes))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))

    def empty_state(self, batch_size: int) -> State:
        config = self.config
        sizes = (batch_size, config.n_layer)
        return {
            "h_BNMD": new_zeros(self, *sizes, config.n_state, config.d_model),
            "compressed_BNCD": new_zeros(self, *sizes, config.n_compressed, config.d_model),
            "lost_B": new_zeros(self, batch_size),
        }

    def make_memory(self, batch_size: int, mem_len: int) -> CompressiveMemory:
        memory = super().make_memory(batch_size, mem_len)
        return CompressiveMemory(memory.state_N, memory.mem_len)

    def read_unit(
        self, tokens_BU: Tensor, state: State, doc_pos_BU: Tensor
    ) -> tuple[Tensor, State]:
        config = self.config
        h_BUD = self.drop(self.embedding(tokens_BU))
        mask_BUS = find_mask(doc_pos_BU, config)
        position_HSK = self.position_HSK[:, -mask_BUS.size(2) :]
        before = (state["compressed_BNCD"].unbind(1), state["h_BNMD"].unbind(1))
        after = []
        for layer, compressed_BCD, memory_BMD in zip(self.layers, *before, strict=True):
            h_BUD, of_layer = layer(h_BUD, compressed_BCD, memory_BMD, position_HSK, mask_BUS)
            after.append(of_layer)
        compressed, memories, lost = zip(*after, strict=True)
        # Where the states that were compressed are of the document, and not empty.
        is_old_B = doc_pos_BU[:, -1] >= config.unit_len - 1 + config.n_state
        return self.norm(h_BUD), {
            "h_BNMD": torch.stack(memories, dim=1),
            "compressed_BNCD": torch.stack(compressed, dim=1),
            "lost_B": torch.stack(lost).mean(0) * is_old_B,
        }

    def loss(
        self,
        tokens_BL: Tensor,
        targets_BL: Tensor,
        memory: StateMemory | None = None,
        *inputs: Any,
        **named: Any,
    ) -> tuple[Tensor, StateMemory]:
        before = self.empty_memory(len(tokens_BL)) if memory is None else memory
        nats_BL, after = super().loss(
            tokens_BL, targets_BL, before.keep_gradient(), *inputs, **named
        )
        # The loss of the last unit's compression has a gradient, and changes no value.
        state, begun = after.state_N
        lost_B = state["lost_B"]
        is_scored_BL = (targets_BL >= 0).to(nats_BL.device)
        nats_BL = nats_BL + (lost_B - lost_B.detach())[:, None] * is_scored_BL
        # It counts once, also if no unit ends in the next segment.
        nothing = {"lost_B": torch.zeros_like(lost_B)}
        after = replace(after, state_N=(state | nothing, begun), has_gradient=before.has_gradient)
        return nats_BL, after.end_segment()


def find_mask(doc_pos_BU: Tensor, config: CompressiveTransformerConfig) -> Tensor:
    """Return mask_BUS, True where a token attends to a state: all of it is in its document."""
    unit_len = doc_pos_BU.size(1)
    device = doc_pos_BU.device
    token_U = torch.arange(unit_len, device=device)
    # Tokens from the oldest one of each state to the beginning of the unit.
    ages = (
        torch.arange(config.n_compressed, 0, -1, device=device) * config.rate + config.n_state,
        torch.arange(config.n_state, 0, -1, device=device),
        -token_U,
    )
    distance_US = token_U[:, None] + torch.cat(ages)
    return (distance_US >= 0) & (distance_US <= doc_pos_BU[..., None])


class Layer(nn.Module):
    """x + Attention(norm(x)), then x + W_2 gelu(W_1 norm(x))."""

    def __init__(self, config: CompressiveTransformerConfig) -> None:
        super().__init__()
        D = config.d_model
        self.heads = (config.n_head, D // config.n_head)
        self.dropatt = nn.Dropout(config.dropatt)
        self.attention_norm = nn.LayerNorm(D)
        self.q = nn.Linear(D, D, bias=False)
        self.kv = nn.Linear(D, 2 * D, bias=False)
        self.out = nn.Linear(D, D)
        self.rate = config.rate
        self.unit_len = config.unit_len
        # A convolution whose stride is its width, as a linear map of `rate` states.
        self.compression = nn.Linear(config.rate * D, D)
        self.inner_norm = nn.LayerNorm(D)
        self.up = nn.Linear(D, config.inner_width)
        self.down = nn.Linear(config.inner_width, D)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self,
        h_BUD: Tensor,
        compressed_BCD: Tensor,
        memory_BMD: Tensor,
        position_HSK: Tensor,
        mask_BUS: Tensor,
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return the output, and what `end_unit` returns."""
        read_BUD = self.attention_norm(h_BUD)
        context_BSD = torch.cat([compressed_BCD, memory_BMD, read_BUD], dim=1)
        h_BUD = h_BUD + self.drop(self.attend(read_BUD, context_BSD, position_HSK, mask_BUS))
        inner_BUF = F.gelu(self.up(self.inner_norm(h_BUD)))
        h_BUD = h_BUD + self.drop(self.down(inner_BUF))
        return h_BUD, self.end_unit(read_BUD, compressed_BCD, memory_BMD)

    def attend(
        self, read_BUD: Tensor, context_BSD: Tensor, position_HSK: Tensor, mask_BUS: Tensor
    ) -> Tensor:
        q_BUHK = self.q(read_BUD).unflatten(-1, self.heads)
        k_BSHK, v_BSHK = self.kv(context_BSD).unflatten(-1, (2, *self.heads)).unbind(2)
        # `shift` needs a first row that nothing reads.
        position_HTK = F.pad(position_HSK, (0, 0, 1, 0))
        score_BHUS = einsum("buhk,bshk->bhus", q_BUHK, k_BSHK)
        score_BHUS = score_BHUS + shift(einsum("buhk,htk->bhut", q_BUHK, position_HTK))
        score_BHUS = (score_BHUS * self.heads[1] ** -0.5).masked_fill(~mask_BUS[:, None], -inf)
        weight_BHUS = self.dropatt(score_BHUS.softmax(dim=-1))
        return self.out(einsum("bhus,bshk->buhk", weight_BHUS, v_BSHK).flatten(2))

    def end_unit(
        self, read_BUD: Tensor, compressed_BCD: Tensor, memory_BMD: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return compressed_BCD, memory_BMD and lost_B after a whole unit.

        Memory keeps what attention has read; its oldest states are compressed.
        """
        old_BUD = memory_BMD[:, : self.unit_len]
        new_BCD = self.compress(old_BUD)
        lost_B = self.find_lost(read_BUD, old_BUD) if self.training else memory_BMD.new_zeros(())
        compressed_BCD = torch.cat([compressed_BCD, new_BCD], dim=1)
        memory_BMD = torch.cat([memory_BMD, read_BUD], dim=1)
        return compressed_BCD[:, new_BCD.size(1) :], memory_BMD[:, self.unit_len :], lost_B

    def compress(self, old_BUD: Tensor) -> Tensor:
        """Return a state for each `rate` ones, oldest first."""
        return self.compression(old_BUD.unflatten(1, (-1, self.rate)).flatten(2))

    def find_lost(self, read_BUD: Tensor, old_BUD: Tensor) -> Tensor:
        """Return lost_B: how much attention to the compressed states differs from that to the old.

        Its gradient is of the compression alone (Section 3.2, attention-reconstruction loss).
        """
        q_BUHK = F.linear(read_BUD.detach(), self.q.weight.detach()).unflatten(-1, self.heads)
        old_BUD = old_BUD.detach()
        outputs = []
        for states_BXD in (old_BUD, self.compress(old_BUD)):
            kv_BX2HK = F.linear(states_BXD, self.kv.weight.detach()).unflatten(-1, (2, *self.heads))
            q, k, v = (each.transpose(1, 2) for each in (q_BUHK, *kv_BX2HK.unbind(2)))
            outputs.append(F.scaled_dot_product_attention(q, k, v))
        return (outputs[0] - outputs[1]).to(old_BUD.dtype).square().mean(dim=(1, 2, 3))
