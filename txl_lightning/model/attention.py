"""Attention over the segment and its memory: projections, then one call to a kernel.

B rows   L segment   S = M + L seen   H heads   K head width   D width
"""

import torch
from torch import Tensor, nn

from .config import TransformerXLConfig
from .kernels import KERNELS
from .positions import DistanceTerms


class RelativeAttention(nn.Module):
    """Multi-head attention whose scores know distance, not position (Section 3.3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        D, inner = config.d_model, config.n_head * config.head_width
        self.heads = (config.n_head, config.head_width)
        self.dropatt = config.dropatt
        self.attend = KERNELS[config.kernel]
        self.q_net = nn.Linear(D, inner, bias=False)
        self.kv_net = nn.Linear(D, 2 * inner, bias=False)
        self.o_net = nn.Linear(inner, D, bias=False)

    def forward(
        self, h_BLD: Tensor, seen_BSD: Tensor, terms: DistanceTerms, visible_BLS: Tensor
    ) -> Tensor:
        """What the L states read from the S states they may see: out_BLD."""
        q_BLHK = self.q_net(h_BLD).unflatten(-1, self.heads)
        k_BSHK, value_BSHK = self.kv_net(seen_BSD).unflatten(-1, (2, *self.heads)).unbind(2)
        dropatt = self.dropatt if self.training else 0.0
        out_BLHK = self.attend(q_BLHK, k_BSHK, value_BSHK, terms, visible_BLS, dropatt)
        return self.o_net(out_BLHK.flatten(-2))


def join(memory_BMD: Tensor, h_BLD: Tensor) -> Tensor:
    """All that the segment can see, [SG(memory) o h] (Section 3.2): seen_BSD."""
    return torch.cat([memory_BMD.to(h_BLD.dtype), h_BLD], dim=1)
