"""Small parts: dropout, layer normalization, and the original's initial weights.

matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
projections of embeddings                         normal(0, proj_init_std)
layer-normalization weights                       normal(1, init_std)
every other bias                                  0
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerXLConfig

INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes, except biases per distance."""
PROJECTIONS = ("embedding.projections.", "head.down")
"""Name prefixes of the projections from and to the width of embeddings."""


class VariationalDropout(nn.Dropout):
    """Dropout of the same units for all tokens of a segment's row (Gal and Ghahramani 2016).

    The paper's recipe for Penn Treebank (Section 4.1).
    """

    def forward(self, h_BLD: Tensor) -> Tensor:
        mask_B1D = F.dropout(torch.ones_like(h_BLD[..., :1, :]), self.p, self.training)
        return h_BLD * mask_B1D


def make_dropout(config: TransformerXLConfig) -> nn.Dropout:
    """Return dropout of hidden units."""
    kind = VariationalDropout if config.dropout_type == "variational" else nn.Dropout
    return kind(config.dropout)


def layer_norm(config: TransformerXLConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, config.norm_eps)


def residual_norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return the norms before a sublayer and after its residual sum; one is the identity."""
    norm = layer_norm(config)
    return (nn.Identity(), norm) if config.norm == "post" else (norm, nn.Identity())


class ConcatenatedLinear(nn.Linear):
    """A linear map of [m o h], or of h alone; computes no gradient of m where none is needed."""

    def forward(self, *parts: Tensor) -> Tensor:
        if len(parts) == 1:
            return super().forward(parts[0])
        if torch.compiler.is_compiling():
            return super().forward(torch.cat(parts, dim=1))
        return LinearOfParts.apply(*parts, self.weight)


class LinearOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory_BMD: Tensor, h_BLD: Tensor, weight_ID: Tensor) -> Tensor:
        h_BSD = torch.cat([memory_BMD, h_BLD], dim=1)
        out_BSI = F.linear(h_BSD, weight_ID)
        # Under autocast, products have lower precision than their operands.
        ctx.n_memory = memory_BMD.size(1)
        ctx.save_for_backward(h_BSD.to(out_BSI.dtype), weight_ID)
        return out_BSI

    @staticmethod
    def backward(ctx: Any, d_out_BSI: Tensor) -> tuple[Tensor | None, ...]:
        h_BSD, weight_ID = ctx.saved_tensors
        (needs_memory, needs_h, _), n_memory = ctx.needs_input_grad, ctx.n_memory
        narrow_ID = weight_ID.to(d_out_BSI.dtype)
        d_memory_BMD = d_out_BSI[:, :n_memory] @ narrow_ID if needs_memory else None
        d_h_BLD = d_out_BSI[:, n_memory:] @ narrow_ID if needs_h else None
        d_weight_ID = d_out_BSI.flatten(0, 1).mT @ h_BSD.flatten(0, 1)
        return d_memory_BMD, d_h_BLD, d_weight_ID.to(weight_ID.dtype)


def initialize_vector_math() -> None:
    """Let MKL detect the CPU on one thread, for the whole process.

    While it does, in the first sin, log, exp, sqrt, ... of a process, another thread's function
    uses kernels with half the digits (MKL 2024.2, pytorch/pytorch#188792).
    """
    torch.zeros(1, dtype=torch.float32, device="cpu").sin()


def initialize_weights(model: nn.Module, config: TransformerXLConfig) -> None:
    """Initialize every weight of a network at random, in place."""

    def draw(weight: nn.Parameter) -> None:
        if config.init == "uniform":
            nn.init.uniform_(weight, -config.init_range, config.init_range)
        else:
            nn.init.normal_(weight, 0.0, config.init_std)

    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                draw(module.weight)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, config.init_std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(INITIALIZED_LIKE_WEIGHTS):
            draw(parameter)
    # A tied weight is drawn twice: a seed must keep giving the same weights.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(PROJECTIONS):
            nn.init.normal_(parameter, 0.0, config.proj_init_std)
