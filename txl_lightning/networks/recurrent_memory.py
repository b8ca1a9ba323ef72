"""Recurrent Memory Transformer: memory tokens carry the state (Bulatov et al. 2022).

B rows   U tokens in the unit   R memory tokens   X = R + U + R   D width   F inner width
H heads   K width of a head
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require, require_at_least
from .stateful import State, new_zeros
from .units import UnitConfig, UnitNetwork


@dataclass(frozen=True)
class RecurrentMemoryTransformerConfig(UnitConfig):
    """A Recurrent Memory Transformer (Bulatov et al. 2022, Section 3.3).

    What it writes is learned only if a step reads the next unit, too: with segments of two units,
    or with model.gradient_segments 2.

    Args:
        n_memory: Memory tokens R.
        n_head: Attention heads H.
        d_inner: Inner width F of the feed-forward layer; default 8/3 d_model.
        dropatt: Probability of dropping attention weights.
    """

    n_memory: int = 8
    n_head: int = 4
    d_inner: int | None = None
    dropatt: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, n_memory=1, n_head=1, d_inner=1)
        expected = f"a multiple of n_head ({self.n_head})"
        require(self.d_model % self.n_head == 0, "d_model", self.d_model, expected)

    @property
    def inner_width(self) -> int:
        return 8 * self.d_model // 3 if self.d_inner is None else self.d_inner

    def build(self) -> "RecurrentMemoryTransformer":
        """Return a new network."""
        return RecurrentMemoryTransformer(self)


class RecurrentMemoryTransformer(UnitNetwork):
    """[_, o, m'] = Transformer([m; x; m]): m is read at the beginning, m' written at the end.

    Equation 2 of the paper; learned embeddings tell reading from writing.
    """

    def __init__(self, config: RecurrentMemoryTransformerConfig) -> None:
        super().__init__(config, norm=nn.RMSNorm(config.d_model, eps=1e-6))
        # As wide as embeddings of tokens begin, so that memory tokens differ from each other.
        std = config.d_model**-0.5
        self.position_UD = nn.Parameter(std * torch.randn(config.unit_len, config.d_model))
        self.reading_RD = nn.Parameter(std * torch.randn(config.n_memory, config.d_model))
        self.writing_RD = nn.Parameter(std * torch.randn(config.n_memory, config.d_model))
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.n_layer))

    def empty_state(self, batch_size: int) -> State:
        return {"memory_BRD": new_zeros(self, batch_size, *self.reading_RD.shape)}

    def read_unit(
        self, tokens_BU: Tensor, state: State, doc_pos_BU: Tensor
    ) -> tuple[Tensor, State]:
        memory_BRD = state["memory_BRD"]
        n_memory = memory_BRD.size(1)
        unit_len = tokens_BU.size(1)
        # The last document began before the unit, so that it goes on in the next memory.
        goes_on_B11 = (doc_pos_BU[:, -1:] >= unit_len)[..., None]
        x_BUD = self.drop(self.embedding(tokens_BU) + self.position_UD[:unit_len])
        read_BRD = memory_BRD + self.reading_RD
        written_BRD = memory_BRD * goes_on_B11 + self.writing_RD
        h_BXD = torch.cat([read_BRD, x_BUD, written_BRD], dim=1)
        mask_BXX = find_mask(doc_pos_BU, n_memory)
        for layer in self.layers:
            h_BXD = layer(h_BXD, mask_BXX)
        h_BXD = self.norm(h_BXD)
        state = {"memory_BRD": h_BXD[:, -n_memory:]}
        return h_BXD[:, n_memory:-n_memory], state


def find_mask(doc_pos_BU: Tensor, n_memory: int) -> Tensor:
    """Return mask_BXX, True where an input attends to another.

    A token attends to the tokens of its document until itself, and to the memory that is read if
    its document began before the unit. What is written attends to all that the last token does, and
    what is read only to itself.
    """
    unit_len = doc_pos_BU.size(1)
    token_U = torch.arange(unit_len, device=doc_pos_BU.device)
    distance_UU = token_U[:, None] - token_U
    mask_BUU = (distance_UU >= 0) & (distance_UU <= doc_pos_BU[..., None])
    reads_BU1 = (doc_pos_BU > token_U)[..., None]
    mask_BUX = F.pad(torch.cat([reads_BU1.expand(-1, -1, n_memory), mask_BUU], -1), (0, n_memory))
    writes_B1X = F.pad(mask_BUX[:, -1:, :-n_memory], (0, n_memory), value=True)
    n_input = mask_BUX.size(2)
    is_read_X = torch.arange(n_input, device=doc_pos_BU.device) < n_memory
    reads_BRX = is_read_X.expand(len(doc_pos_BU), n_memory, -1)
    return torch.cat([reads_BRX, mask_BUX, writes_B1X.expand(-1, n_memory, -1)], dim=1)


class Layer(nn.Module):
    """x + Attention(norm(x)), then x + GEGLU(norm(x))."""

    def __init__(self, config: RecurrentMemoryTransformerConfig) -> None:
        super().__init__()
        D = config.d_model
        self.n_head = config.n_head
        self.dropatt = config.dropatt
        self.attention_norm = nn.RMSNorm(D, eps=1e-6)
        self.qkv = nn.Linear(D, 3 * D, bias=False)
        self.out = nn.Linear(D, D, bias=False)
        self.inner_norm = nn.RMSNorm(D, eps=1e-6)
        self.up = nn.Linear(D, 2 * config.inner_width, bias=False)
        self.down = nn.Linear(config.inner_width, D, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def forward(self, x_BXD: Tensor, mask_BXX: Tensor) -> Tensor:
        qkv_BX3HK = self.qkv(self.attention_norm(x_BXD)).unflatten(-1, (3, self.n_head, -1))
        q_BHXK, k_BHXK, v_BHXK = qkv_BX3HK.transpose(1, 3).unbind(2)
        dropatt = self.dropatt if self.training else 0.0
        mask_B1XX = mask_BXX[:, None]
        o_BHXK = F.scaled_dot_product_attention(q_BHXK, k_BHXK, v_BHXK, mask_B1XX, dropatt)
        x_BXD = x_BXD + self.drop(self.out(o_BHXK.transpose(1, 2).flatten(2)))
        inner_BXF, gate_BXF = self.up(self.inner_norm(x_BXD)).chunk(2, dim=-1)
        return x_BXD + self.drop(self.down(inner_BXF * F.gelu(gate_BXF)))
