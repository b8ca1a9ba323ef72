"""Attention over the segment and its memory: projections, then one call to a kernel.

B rows   L segment   S = M + L seen   H heads   K head width   D width
"""

from collections.abc import Callable

from torch import Tensor, nn

from .config import TransformerXLConfig
from .kernels import KERNELS
from .kernels.inference import Band, Prepared, Ragged
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

    def keys_and_values(self, seen_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """What states are found by, and what is read of them: k_BSHK, value_BSHK."""
        k_BSHK, value_BSHK = self.kv_net(seen_BSD).unflatten(-1, (2, *self.heads)).unbind(2)
        return k_BSHK, value_BSHK

    def forward(
        self,
        h_BLD: Tensor,
        k_BSHK: Tensor,
        value_BSHK: Tensor,
        terms: DistanceTerms | Prepared,
        visible: Tensor | Band | Ragged,
        attend: Callable[..., Tensor],
    ) -> Tensor:
        """What the L states read from those of the S states that they may see: out_BLD."""
        q_BLHK = self.q_net(h_BLD).unflatten(-1, self.heads)
        dropatt = self.dropatt if self.training else 0.0
        out_BLHK = attend(q_BLHK, k_BSHK, value_BSHK, terms, visible, dropatt)
        return self.o_net(out_BLHK.flatten(-2))
