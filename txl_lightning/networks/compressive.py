"""Compressive Transformer: old memory is compressed before it is forgotten (Rae et al. 2019).

B rows   U tokens in the unit   M states of memory   C compressed ones   S = C + M + U visible
N layers   D width   F inner width   H heads   K width of a head
"""

from dataclasses import dataclass, replace
from math import inf
from typing import Any, Self

import torch
from torch import Tensor, einsum, nn
from torch.nn import functional as F

from ..errors import require
from .stateful import State, StateMemory
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
        for field in ("n_state", "n_compressed", "rate", "n_head"):
            require(getattr(self, field) >= 1, field, getattr(self, field), "at least 1")
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
    """Its loss of compression is the last unit's, and keeps its gradient for the segment's loss."""

    def end_segment(self) -> Self:
        memory = super().end_segment()
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
        new_zeros = self.position_HSK.new_zeros
        return {
            "h_BNMD": new_zeros(*sizes, config.n_state, config.d_model),
            "compressed_BNCD": new_zeros(*sizes, config.n_compressed, config.d_model),
            "lost_B": new_zeros(batch_size),
        }

    def make_memory(self, batch_size: int, mem_len: int) -> CompressiveMemory:
        memory = super().make_memory(batch_size, mem_len)
        return CompressiveMemory(memory.state_N, memory.mem_len)

    def read(
        self, tokens_BL: Tensor, memory: StateMemory, doc_pos_BL: Tensor
    ) -> tuple[Tensor, StateMemory]:
        state, begun = memory.state_N
        nothing = {"lost_B": torch.zeros_like(state["lost_B"])}
        memory = replace(memory, state_N=(state | nothing, begun))
        return super().read(tokens_BL, memory, doc_pos_BL)

    def read_unit(
        self, tokens_BU: Tensor, state: State, doc_pos_BU: Tensor
    ) -> tuple[Tensor, State]:
        h_BUD = self.drop(self.embedding(tokens_BU))
        mask_BUS = find_mask(doc_pos_BU, self.config)
        layers = zip(
            self.layers, state["h_BNMD"].unbind(1), state["compressed_BNCD"].unbind(1), strict=True
        )
        reads = []
        for layer, memory_BMD, compressed_BCD in layers:
            past_BXD = torch.cat([compressed_BCD, memory_BMD], dim=1)
            h_BUD, read_BUD = layer(h_BUD, past_BXD, self.position_HSK, mask_BUS)
            reads.append(read_BUD)
        after = state
        if tokens_BU.size(1) == self.config.unit_len:
            after = self.end_unit(torch.stack(reads, 1), state, doc_pos_BU)
        return self.norm(h_BUD), after

    def end_unit(self, read_BNUD: Tensor, state: State, doc_pos_BU: Tensor) -> State:
        """Return the state in which the states of a unit follow; the oldest are compressed."""
        unit_len = self.config.unit_len
        h_BNMD = state["h_BNMD"]
        old_BNUD = h_BNMD[:, :, :unit_len]
        pairs = zip(self.layers, old_BNUD.unbind(1), strict=True)
        new_BNCD = torch.stack([layer.compress(old_BUD) for layer, old_BUD in pairs], dim=1)
        compressed_BNCD = torch.cat([state["compressed_BNCD"], new_BNCD], dim=2)
        after = {
            "h_BNMD": torch.cat([h_BNMD, read_BNUD.to(h_BNMD.dtype)], dim=2)[:, :, unit_len:],
            "compressed_BNCD": compressed_BNCD[:, :, new_BNCD.size(2) :],
            "lost_B": state["lost_B"],
        }
        if self.training:
            # Where the old states are of the document, and not empty.
            is_old_B = doc_pos_BU[:, -1] >= unit_len - 1 + h_BNMD.size(2)
            layers = zip(self.layers, read_BNUD.unbind(1), old_BNUD.unbind(1), strict=True)
            lost = [layer.find_lost(*reads) for layer, *reads in layers]
            after["lost_B"] = (torch.stack(lost).mean(0) * is_old_B).to(state["lost_B"].dtype)
        return after

    def list_writing(self) -> list[Tensor]:
        return [weight for layer in self.layers for weight in layer.compression.parameters()]

    def loss(
        self, tokens_BL: Tensor, targets_BL: Tensor, *inputs: Any, **named: Any
    ) -> tuple[Tensor, StateMemory]:
        nats_BL, memory = super().loss(tokens_BL, targets_BL, *inputs, **named)
        # The loss of the last unit's compression has a gradient, and changes no value.
        lost_B = memory.state_N[0]["lost_B"]
        is_scored_BL = (targets_BL >= 0).to(nats_BL.device)
        return nats_BL + (lost_B - lost_B.detach())[:, None] * is_scored_BL, memory


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
        # A convolution whose stride is its width, as a linear map of `rate` states.
        self.compression = nn.Linear(config.rate * D, D)
        self.inner_norm = nn.LayerNorm(D)
        self.up = nn.Linear(D, config.inner_width)
        self.down = nn.Linear(config.inner_width, D)
        self.drop = nn.Dropout(config.dropout)

    def forward(
        self, h_BUD: Tensor, past_BXD: Tensor, position_HSK: Tensor, mask_BUS: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the output, and what memory keeps: the states that attention has read."""
        read_BUD = self.attention_norm(h_BUD)
        context_BSD = torch.cat([past_BXD.to(read_BUD.dtype), read_BUD], dim=1)
        q_BUHK = self.q(read_BUD).unflatten(-1, self.heads)
        k_BSHK, v_BSHK = self.kv(context_BSD).unflatten(-1, (2, *self.heads)).unbind(2)
        score_BHUS = einsum("buhk,bshk->bhus", q_BUHK, k_BSHK)
        of_position_BHUS = einsum("buhk,hsk->bhus", q_BUHK, position_HSK)
        score_BHUS = score_BHUS + order_by_state(of_position_BHUS, score_BHUS.size(-1))
        score_BHUS = (score_BHUS * self.heads[1] ** -0.5).masked_fill(~mask_BUS[:, None], -inf)
        weight_BHUS = self.dropatt(score_BHUS.softmax(dim=-1))
        out_BUD = self.out(einsum("bhus,bshk->buhk", weight_BHUS, v_BSHK).flatten(2))
        h_BUD = h_BUD + self.drop(out_BUD)
        inner_BUF = F.gelu(self.up(self.inner_norm(h_BUD)))
        return h_BUD + self.drop(self.down(inner_BUF)), read_BUD

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
        return (outputs[0] - outputs[1]).square().mean(dim=(1, 2, 3))


def order_by_state(score_BHUX: Tensor, n_state: int) -> Tensor:
    """Return the scores of states from those of distances, farthest first: distance 0 is last."""
    unit_len, n_distance = score_BHUX.shape[-2:]
    device = score_BHUX.device
    state_S = torch.arange(n_state, device=device)
    token_U1 = torch.arange(unit_len, device=device)[:, None]
    distance_US = (token_U1 + n_state - unit_len - state_S).clamp(min=0)
    place_US = n_distance - 1 - distance_US
    return score_BHUX.gather(-1, place_US.expand(*score_BHUX.shape[:-2], -1, -1))
