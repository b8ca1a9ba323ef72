"""Position schemes: one small class each, from distance_T to the `DistanceTerms` of every layer.

Beyond the training length, sinusoidal schemes extrapolate; learned schemes clamp to clamp_len.

B rows   L queries   H heads   K head width   D width   N layers
M in memory   S = M + L visible states   T = S + 1 distances   C = clamp_len + 1 learned distances
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from ..imports import import_class
from .config import TransformerXLConfig
from .parts import Linear, make_dropout
from .precision import cast, cast_together, compute_dtype


@dataclass(frozen=True)
class DistanceTerms:
    """Terms that one layer adds to q.k (a) or to the states; None if a scheme does not use them.

    Index T - 1 - d of a tensor over T holds distance d, farthest first. The first entry, distance
    S, is never used: it is the spare column that lets a kernel shift without a copy.
    """

    r_THK: Tensor | None = None
    """Key of each distance; term (b) is q.r."""
    u_HK: Tensor | None = None
    """Content bias; term (c) is u.k."""
    v_HK: Tensor | None = None
    """Position bias; term (d) is v.r."""
    b_TH: Tensor | None = None
    """Term (d) as one number per distance."""
    p_SD: Tensor | None = None
    """Absolute positions, added to the states, oldest first. They count back from the segment's
    end, as in the original: memory gets new positions in each segment."""

    @property
    def n_distance(self) -> int:
        by_distance = self.b_TH if self.r_THK is None else self.r_THK
        return 0 if by_distance is None else by_distance.size(0)

    @property
    def dtype(self) -> torch.dtype | None:
        """Precision of what kernels multiply; None if there is nothing."""
        terms = (self.r_THK, self.b_TH, self.u_HK)
        return next((term.dtype for term in terms if term is not None), None)

    def nearest(self, count: int) -> DistanceTerms:
        """Return the terms of the `count` smallest distances, or of all."""
        r_THK, b_TH = (None if term is None else term[-count:] for term in (self.r_THK, self.b_TH))
        return replace(self, r_THK=r_THK, b_TH=b_TH)

    def to(self, dtype: torch.dtype) -> DistanceTerms:
        """Return the terms of scores in a precision."""
        terms = self.r_THK, self.u_HK, self.v_HK, self.b_TH
        if not [term for term in terms if term is not None and term.dtype != dtype]:
            return self
        r_THK, u_HK, v_HK, b_TH = (cast(term, dtype) for term in terms)
        return replace(self, r_THK=r_THK, u_HK=u_HK, v_HK=v_HK, b_TH=b_TH)

    def lay_out(self) -> DistanceTerms:
        """Return the same terms, contiguous by distance: products with these are the fastest."""
        r_THK = self.r_THK
        if r_THK is not None:
            r_THK = r_THK.permute(1, 2, 0).contiguous().permute(2, 0, 1)
        b_TH = None if self.b_TH is None else self.b_TH.t().contiguous().t()
        return replace(self, r_THK=r_THK, b_TH=b_TH)

    def complete(self, n_state: int) -> DistanceTerms:
        """Return the terms of all T distances; those missing are equal to the farthest there is."""
        n_far = n_state + 1 - self.n_distance
        if not self.n_distance or n_far <= 0:
            return self
        r_THK, b_TH = (
            None if term is None else torch.cat([term[:1].expand(n_far, *term.shape[1:]), term])
            for term in (self.r_THK, self.b_TH)
        )
        return replace(self, r_THK=r_THK, b_TH=b_TH)

    def add_positions(self, memory_BMD: Tensor, h_BLD: Tensor) -> tuple[Tensor, Tensor]:
        """Return memory and segment plus absolute positions, if the scheme has any."""
        if self.p_SD is None:
            return memory_BMD, h_BLD
        p_MD, p_LD = self.p_SD.split([memory_BMD.size(1), h_BLD.size(1)])
        return memory_BMD + p_MD.to(memory_BMD.dtype), h_BLD + p_LD.to(h_BLD.dtype)


def shift(score_BHLT: Tensor) -> Tensor:
    """Return a view of scores by distance, farthest first, as scores by state.

    Row l of the result starts L - l entries into row l of the input, so that distance M + l - s
    is at state s. Entries after a query's own position belong to the next query: mask them.
    (Appendix B, with a spare first column instead of a padded copy.)
    """
    *BH, L, T = score_BHLT.shape
    return score_BHLT.reshape(*BH, L * T)[..., L:].view(*BH, L, T - 1)


def unshift(score_BHLS: Tensor) -> Tensor:
    """Return the gradient of the input of `shift` from its output's gradient: d_BHLT."""
    *BH, L, S = score_BHLS.shape
    # Both have the same order; the L first entries of the input are unused.
    d_BHX = score_BHLS.new_empty(*BH, L * (S + 1))
    d_BHX[..., :L] = 0
    d_BHX[..., L:] = score_BHLS.flatten(-2)
    return d_BHX.view(*BH, L, S + 1)


class Sinusoidal(nn.Module):
    """Section 3.3: keys projected from fixed sinusoids of distance, with biases u and v."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        H = config.n_head
        K = config.head_width
        self.d_model = config.d_model
        self.n_layer = config.n_layer
        n_bias = config.n_layer if config.untie_r else 1
        self.drop = make_dropout(config)
        self.r_nets = nn.ModuleList(
            Linear(config.d_model, H * K, bias=False) for _ in range(config.n_layer)
        )
        self.u_NHK = nn.Parameter(torch.zeros(n_bias, H, K))
        self.v_NHK = nn.Parameter(torch.zeros(n_bias, H, K))

    def forward(self, distance_T: Tensor) -> list[DistanceTerms]:
        dtype = compute_dtype(self.u_NHK)
        R_TD = self.drop(sinusoids(distance_T, self.d_model).to(dtype))
        heads = self.u_NHK.shape[1:]
        # Under autocast, u, v and each W_R.
        with cast_together(self, dtype):
            biases = cast(self.u_NHK, dtype), cast(self.v_NHK, dtype)
            r_NTHK = [r_net(R_TD).unflatten(-1, heads) for r_net in self.r_nets]
        u_NHK, v_NHK = (bias.expand(self.n_layer, -1, -1) for bias in biases)
        return [
            DistanceTerms(r_THK=r_THK, u_HK=u_HK, v_HK=v_HK)
            for r_THK, u_HK, v_HK in zip(r_NTHK, u_NHK, v_NHK, strict=True)
        ]


class Learned(nn.Module):
    """A learned key and bias for each distance, and u (labml; the original's attn_type 1)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        N = config.n_layer
        C = config.n_distance
        H = config.n_head
        K = config.head_width
        self.r_NCHK = nn.Parameter(torch.zeros(N, C, H, K))
        self.b_NCH = nn.Parameter(torch.zeros(N, C, H))
        self.u_NHK = nn.Parameter(torch.zeros(N, H, K))

    def forward(self, distance_T: Tensor) -> list[DistanceTerms]:
        row_T = distance_T.clamp(max=self.r_NCHK.size(1) - 1)
        return [
            DistanceTerms(r_THK=r_CHK[row_T], u_HK=u_HK, b_TH=b_CH[row_T])
            for r_CHK, u_HK, b_CH in zip(self.r_NCHK, self.u_NHK, self.b_NCH, strict=True)
        ]


class Shaw(nn.Module):
    """Shaw et al. 2018: a learned key for each clipped distance, shared by a layer's heads."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.n_head = config.n_head
        shape = (config.n_layer, config.n_distance, config.head_width)
        self.r_NCK = nn.Parameter(torch.zeros(shape))

    def forward(self, distance_T: Tensor) -> list[DistanceTerms]:
        row_T = distance_T.clamp(max=self.r_NCK.size(1) - 1)
        return [
            DistanceTerms(r_THK=r_CK[row_T][:, None].expand(-1, self.n_head, -1))
            for r_CK in self.r_NCK
        ]


class AbsoluteSinusoidal(nn.Module):
    """Vaswani et al. 2017: sinusoids added before the first layer (the original's attn_type 2)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        self.config = config
        self.drop = make_dropout(config)

    def forward(self, distance_T: Tensor) -> list[DistanceTerms]:
        p_SD = self.drop(sinusoids(distance_T[1:], self.config.d_model))
        return [DistanceTerms(p_SD=p_SD)] + [DistanceTerms()] * (self.config.n_layer - 1)


class AbsoluteLearned(nn.Module):
    """Al-Rfou et al. 2019: learned positions added before every layer (its attn_type 3)."""

    def __init__(self, config: TransformerXLConfig) -> None:
        super().__init__()
        shape = (config.n_layer, config.n_distance, config.d_model)
        self.p_NCD = nn.Parameter(torch.zeros(shape))

    def forward(self, distance_T: Tensor) -> list[DistanceTerms]:
        row_S = distance_T[1:].clamp(max=self.p_NCD.size(1) - 1)
        return [DistanceTerms(p_SD=p_CD[row_S]) for p_CD in self.p_NCD]


def sinusoids(distance_T: Tensor, d_model: int) -> Tensor:
    """Return R_TD: sines, then cosines, of each distance (Vaswani et al. 2017, Section 3.5).

    Always float32: half precision cannot distinguish neighboring distances.
    """
    even = torch.arange(0, d_model, 2, device=distance_T.device, dtype=torch.float32)
    inv_freq = 1 / 10000 ** (even / d_model)
    with torch.autocast(distance_T.device.type, enabled=False):
        angle = distance_T.to(torch.float32)[:, None] * inv_freq
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


SCHEMES = {
    "sinusoidal": Sinusoidal,
    "learned": Learned,
    "shaw": Shaw,
    "absolute_sinusoidal": AbsoluteSinusoidal,
    "absolute_learned": AbsoluteLearned,
}


RELATIVE = Sinusoidal, Learned, Shaw
"""Schemes whose terms depend on each distance alone."""


def find_scheme(name: str) -> type[nn.Module]:
    """Return a class of SCHEMES, or import one by its dotted name."""
    return SCHEMES[name] if name in SCHEMES else import_class("positions", name)
