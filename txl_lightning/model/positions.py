"""What distance adds to an attention score: one small class for each scheme.

B rows   L queries   H heads   K head width   D width   N layers
S states seen   T = S + 1 distances
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from .config import TransformerXLConfig


@dataclass(frozen=True)
class DistanceTerms:
    """The terms that one layer adds to q.k (a); those a scheme does not have are None.

    Index T - 1 - d of a tensor over T holds distance d, farthest first. The first entry, distance
    S, is never seen: it is the spare column that lets a kernel shift without a copy.
    """

    r_THK: Tensor | None = None
    """Key of each distance, met by the query: term (b)."""
    u_HK: Tensor | None = None
    """Bias met by the content's key: term (c)."""
    v_HK: Tensor | None = None
    """Bias met by the distance's key: term (d)."""
    b_TH: Tensor | None = None
    """Term (d) already reduced to a number for each distance."""


def shift(score_BHLT: Tensor) -> Tensor:
    """Read scores by distance, farthest first, as scores by state; no copy is needed.

    Row l of the result starts L - l entries into row l of the input, so distance M + l - s lands
    on state s. Entries right of a query's own place belong to the next query: mask them.
    (Appendix B, with a spare first column instead of a padded copy.)
    """
    *BH, L, T = score_BHLT.shape
    return score_BHLT.reshape(*BH, L * T)[..., L:].view(*BH, L, T - 1)


class Sinusoidal(nn.Module):
    """Section 3.3: keys projected from fixed sinusoids of distance, with biases u and v."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        H, K = config.n_head, config.head_width
        self.d_model = config.d_model
        self.clamp_len = config.clamp_len
        self.n_layer = config.n_layer
        n_bias = config.n_layer if config.untie_r else 1
        self.drop = nn.Dropout(config.dropout)
        self.r_nets = nn.ModuleList(
            nn.Linear(config.d_model, H * K, bias=False) for _ in range(config.n_layer)
        )
        self.u_NHK = nn.Parameter(torch.zeros(n_bias, H, K))
        self.v_NHK = nn.Parameter(torch.zeros(n_bias, H, K))

    def forward(self, seen_len: int) -> list[DistanceTerms]:
        """The terms of every layer, when `seen_len` (S) states can be seen."""
        distance_T = torch.arange(seen_len, -1, -1, device=self.u_NHK.device)
        R_TD = sinusoids(distance_T.clamp(min=0, max=self.clamp_len), self.d_model)
        R_TD = self.drop(R_TD.to(self.u_NHK.dtype))
        heads = self.u_NHK.shape[1:]
        u_NHK, v_NHK = (bias.expand(self.n_layer, -1, -1) for bias in (self.u_NHK, self.v_NHK))
        return [
            DistanceTerms(r_THK=r_net(R_TD).unflatten(-1, heads), u_HK=u_HK, v_HK=v_HK)
            for r_net, u_HK, v_HK in zip(self.r_nets, u_NHK, v_NHK, strict=True)
        ]


def sinusoids(distance_T: Tensor, d_model: int) -> Tensor:
    """R_TD: the sines, then the cosines, of each distance (Vaswani et al. 2017, Section 3.5).

    Always float32: half precision cannot tell neighbouring distances apart.
    """
    even = torch.arange(0, d_model, 2, device=distance_T.device, dtype=torch.float32)
    inv_freq = 1 / 10000 ** (even / d_model)
    with torch.autocast(distance_T.device.type, enabled=False):
        angle = distance_T.to(torch.float32)[:, None] * inv_freq
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


SCHEMES = {"sinusoidal": Sinusoidal}
