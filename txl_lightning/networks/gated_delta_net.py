"""Gated DeltaNet: a matrix as state, which a delta rule corrects (Yang et al. 2024).

B rows   L tokens in the segment   C in a chunk   T = C + 1   D width   F inner width
H heads   K width of keys   P width of values   X channels   W taps   V = W - 1
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from ..errors import require, require_at_least
from ..model.nats import at_least_float32
from .matrix_state import (
    convolve_causally,
    draw_step_bias,
    draw_taps,
    empty_state,
    read_in_chunks,
    read_state,
    write_state,
)
from .recurrent import RecurrentNetwork
from .stateful import State, StateConfig


@dataclass(frozen=True)
class GatedDeltaNetConfig(StateConfig):
    """A Gated DeltaNet (Yang et al. 2024, Section 3.3).

    Args:
        n_head: Heads H, each with a state of its own.
        d_key: Width K of keys and queries of a head; default d_model / n_head.
        d_value: Width P of values of a head; default 2 d_key.
        d_inner: Inner width F of the feed-forward layer; default 8/3 d_model.
        n_tap: Tokens that the convolution of queries, keys and values reads.
        allow_neg_eigval: Tokens write with b_t up to 2, not 1. Eigenvalues of a step are then down
            to -1, and a state can count modulo 2 (Grazzi et al. 2024).
        chunk_len: Tokens that are computed at once; it changes nothing but speed.
    """

    n_head: int = 4
    d_key: int | None = None
    d_value: int | None = None
    d_inner: int | None = None
    n_tap: int = 4
    allow_neg_eigval: bool = False
    chunk_len: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, n_head=1, d_key=1, d_value=1, d_inner=1, n_tap=1, chunk_len=1)
        is_possible = self.d_key is not None or self.d_model % self.n_head == 0
        expected = f"a multiple of n_head ({self.n_head}), unless d_key is given"
        require(is_possible, "d_model", self.d_model, expected)

    @property
    def key_width(self) -> int:
        return self.d_model // self.n_head if self.d_key is None else self.d_key

    @property
    def value_width(self) -> int:
        return 2 * self.key_width if self.d_value is None else self.d_value

    @property
    def inner_width(self) -> int:
        return 8 * self.d_model // 3 if self.d_inner is None else self.d_inner

    @property
    def largest_write(self) -> float:
        return 2.0 if self.allow_neg_eigval else 1.0

    def build(self) -> RecurrentNetwork:
        """Return a new network."""
        layers = (Layer(self) for _ in range(self.n_layer))
        return RecurrentNetwork(self, layers, norm=nn.RMSNorm(self.d_model, eps=1e-6))


class Layer(nn.Module):
    """x + GatedDelta(norm(x)), then x + SwiGLU(norm(x))."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.delta_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.delta = GatedDelta(config)
        self.inner_norm = nn.RMSNorm(config.d_model, eps=1e-6)
        self.up = nn.Linear(config.d_model, 2 * config.inner_width, bias=False)
        self.down = nn.Linear(config.inner_width, config.d_model, bias=False)
        self.drop = nn.Dropout(config.dropout)

    def empty_state(self, batch_size: int) -> State:
        return self.delta.empty_state(batch_size)

    def forward(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        delta_BLD, state = self.delta(self.delta_norm(x_BLD), state, doc_pos_BL)
        x_BLD = x_BLD + self.drop(delta_BLD)
        inner_BLF, gate_BLF = self.up(self.inner_norm(x_BLD)).chunk(2, dim=-1)
        return x_BLD + self.drop(self.down(inner_BLF * F.silu(gate_BLF))), state


class GatedDelta(nn.Module):
    """S_t = a_t S_{t-1} (I - b_t k_t k_t^T) + b_t v_t k_t^T,  o_t = S_t q_t  (equation 10)."""

    def __init__(self, config: GatedDeltaNetConfig) -> None:
        super().__init__()
        self.config = config
        n_head = config.n_head
        self.widths = [n_head * config.key_width] * 2 + [n_head * config.value_width]
        self.qkv = nn.Linear(config.d_model, sum(self.widths), bias=False)
        self.conv_XW = nn.Parameter(draw_taps(sum(self.widths), config.n_tap))
        self.write = nn.Linear(config.d_model, n_head, bias=False)
        self.decay = nn.Linear(config.d_model, n_head, bias=False)
        self.log_rate_H = nn.Parameter(torch.empty(n_head).uniform_(1e-4, 16).log())
        self.decay_bias_H = nn.Parameter(draw_step_bias(n_head))
        self.gate = nn.Linear(config.d_model, self.widths[2], bias=False)
        self.norm = nn.RMSNorm(config.value_width, eps=1e-6)
        self.out = nn.Linear(self.widths[2], config.d_model, bias=False)

    def empty_state(self, batch_size: int) -> State:
        config = self.config
        sizes = (batch_size, config.n_head, config.value_width, config.key_width)
        return empty_state(self.conv_XW, sizes)

    def forward(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        qkv_BLX, before_BVX = convolve_causally(
            self.qkv(x_BLD), state["before_BVX"], self.conv_XW, doc_pos_BL
        )
        parts = F.silu(qkv_BLX).split(self.widths, dim=-1)
        q_BLHK, k_BLHK, v_BLHP = (part.unflatten(-1, (self.config.n_head, -1)) for part in parts)
        write_BLH = self.config.largest_write * self.write(x_BLD).sigmoid()
        log_decay_BLH = -self.log_rate_H.exp() * F.softplus(
            at_least_float32(self.decay(x_BLD)) + self.decay_bias_H
        )
        inputs = (q_BLHK, k_BLHK, v_BLHP, write_BLH[..., None], log_decay_BLH)
        o_BLHP, state_BHPK = read_in_chunks(
            read_chunk, inputs, state["state_BHPK"], doc_pos_BL, self.config.chunk_len
        )
        gate_BLX = F.silu(self.gate(x_BLD))
        out_BLD = self.out(self.norm(o_BLHP.to(x_BLD.dtype)).flatten(2) * gate_BLX)
        return out_BLD, {"state_BHPK": state_BHPK, "before_BVX": before_BVX}


def read_chunk(
    q_BHCK: Tensor,
    k_BHCK: Tensor,
    v_BHCP: Tensor,
    write_BHC1: Tensor,
    decay_BHCT: Tensor,
    state_BHPK: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return o_BHCP and the state after a chunk (Section 3.3); keys and queries get a length of 1.

    A token writes u_t k_t^T, u_t = b_t (v_t - a_t S_{t-1} k_t): what the state lacks. The state has
    all that earlier tokens wrote, so that the u of a chunk are the solution of a triangular system.
    """
    # Here, in the precision of the state: with longer keys, eigenvalues could be below -1, so that
    # the state would grow without limit.
    q_BHCK = F.normalize(q_BHCK, dim=-1) * q_BHCK.size(-1) ** -0.5
    k_BHCK = F.normalize(k_BHCK, dim=-1)
    known_BHCP = k_BHCK @ state_BHPK.mT * decay_BHCT[..., :1]
    earlier_BHCC = write_BHC1 * (k_BHCK @ k_BHCK.mT) * decay_BHCT[..., 1:]
    u_BHCP = torch.linalg.solve_triangular(
        earlier_BHCC, write_BHC1 * (v_BHCP - known_BHCP), upper=False, unitriangular=True
    )
    o_BHCP = read_state(q_BHCK, k_BHCK, u_BHCP, state_BHPK, decay_BHCT)
    return o_BHCP, write_state(k_BHCK, u_BHCP, state_BHPK, decay_BHCT)
