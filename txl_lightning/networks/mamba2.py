"""Mamba-2: a selective state space, which is linear attention with a decay (Dao and Gu 2024).

B rows   L tokens in the segment   C in a chunk   T = C + 1   D width
H heads   P width of a head   K width of the state   X channels   W taps   V = W - 1
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
class Mamba2Config(StateConfig):
    """A Mamba-2 (Dao and Gu 2024, Section 7).

    Args:
        expand: Inner width, in widths D.
        d_head: Width P of a head.
        d_state: Width K of the state of each channel.
        n_tap: Tokens that the convolution of x, B and C reads.
        chunk_len: Tokens that are computed at once; it changes nothing but speed.
    """

    expand: int = 2
    d_head: int = 64
    d_state: int = 64
    n_tap: int = 4
    chunk_len: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        require_at_least(self, expand=1, d_head=1, d_state=1, n_tap=1, chunk_len=1)
        expected = f"a divisor of expand * d_model ({self.inner_width})"
        require(self.inner_width % self.d_head == 0, "d_head", self.d_head, expected)

    @property
    def inner_width(self) -> int:
        return self.expand * self.d_model

    @property
    def n_head(self) -> int:
        return self.inner_width // self.d_head

    def build(self) -> RecurrentNetwork:
        """Return a new network."""
        layers = (Layer(self) for _ in range(self.n_layer))
        return RecurrentNetwork(self, layers, norm=nn.RMSNorm(self.d_model, eps=1e-5))


class Layer(nn.Module):
    """x + Mixer(norm(x)); there is no feed-forward layer."""

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(config.d_model, eps=1e-5)
        self.mixer = Mixer(config)
        self.drop = nn.Dropout(config.dropout)

    def empty_state(self, batch_size: int) -> State:
        return self.mixer.empty_state(batch_size)

    def forward(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        y_BLD, state = self.mixer(self.norm(x_BLD), state, doc_pos_BL)
        return x_BLD + self.drop(y_BLD), state


class Mixer(nn.Module):
    """S_t = a_t S_{t-1} + d_t x_t B_t^T,  y_t = S_t C_t + skip x_t,  a_t = exp(-d_t exp(log_rate)).

    B and C, which all heads share, are keys and queries (Section 6). d_t = softplus(... + bias).
    """

    def __init__(self, config: Mamba2Config) -> None:
        super().__init__()
        self.config = config
        n_head = config.n_head
        self.widths = [config.inner_width, config.d_state, config.d_state]
        self.xbc = nn.Linear(config.d_model, sum(self.widths), bias=False)
        n_channel = sum(self.widths)
        self.conv_XW = nn.Parameter(draw_taps(n_channel, config.n_tap))
        bound = config.n_tap**-0.5  # as torch begins the bias of a convolution
        self.conv_bias_X = nn.Parameter(torch.empty(n_channel).uniform_(-bound, bound))
        self.step = nn.Linear(config.d_model, n_head, bias=False)
        self.step_bias_H = nn.Parameter(draw_step_bias(n_head))
        self.log_rate_H = nn.Parameter(torch.empty(n_head).uniform_(1, 16).log())
        self.skip_H = nn.Parameter(torch.ones(n_head))
        self.gate = nn.Linear(config.d_model, config.inner_width, bias=False)
        self.norm = nn.RMSNorm(config.inner_width, eps=1e-5)
        self.out = nn.Linear(config.inner_width, config.d_model, bias=False)

    def empty_state(self, batch_size: int) -> State:
        config = self.config
        return empty_state(self.conv_XW, (batch_size, config.n_head, config.d_head, config.d_state))

    def forward(self, x_BLD: Tensor, state: State, doc_pos_BL: Tensor) -> tuple[Tensor, State]:
        xbc_BLX, before_BVX = convolve_causally(
            self.xbc(x_BLD), state["before_BVX"], self.conv_XW, doc_pos_BL
        )
        x_BLX, b_BLK, c_BLK = F.silu(xbc_BLX + self.conv_bias_X).split(self.widths, dim=-1)
        x_BLHP = x_BLX.unflatten(-1, (self.config.n_head, -1))
        step_BLH = F.softplus(at_least_float32(self.step(x_BLD)) + self.step_bias_H)
        inputs = (
            c_BLK[:, :, None],
            b_BLK[:, :, None],
            x_BLHP * step_BLH[..., None],
            -self.log_rate_H.exp() * step_BLH,
        )
        y_BLHP, state_BHPK = read_in_chunks(
            read_chunk, inputs, state["state_BHPK"], doc_pos_BL, self.config.chunk_len
        )
        y_BLX = (y_BLHP + self.skip_H[:, None] * x_BLHP).flatten(2)
        out_BLD = self.out(self.norm((y_BLX * F.silu(self.gate(x_BLD))).to(x_BLD.dtype)))
        return out_BLD, {"state_BHPK": state_BHPK, "before_BVX": before_BVX}


def read_chunk(
    c_B1CK: Tensor, b_B1CK: Tensor, x_BHCP: Tensor, decay_BHCT: Tensor, state_BHPK: Tensor
) -> tuple[Tensor, Tensor]:
    """Return y_BHCP and the state after a chunk (Section 6)."""
    y_BHCP = read_state(c_B1CK, b_B1CK, x_BHCP, state_BHPK, decay_BHCT)
    return y_BHCP, write_state(b_B1CK, x_BHCP, state_BHPK, decay_BHCT)
