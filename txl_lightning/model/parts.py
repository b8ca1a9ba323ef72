"""Small parts: dropout, layer normalisation, and the original's initial weights.

matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
projections of embeddings                         normal(0, proj_init_std)
layer-normalisation weights                       normal(1, init_std)
every other bias                                  0
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerXLConfig

INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes that are no biases of a distance."""
PROJECTIONS = ("embedding.projections.", "head.down")
"""What the names of projections from and to the width of embeddings begin with."""


class VariationalDropout(nn.Dropout):
    """Dropout of the same units for all tokens of a segment's row (Gal and Ghahramani 2016).

    The paper's recipe for Penn Treebank (Section 4.1).
    """

    def forward(self, h_BLD: Tensor) -> Tensor:
        kept_B1D = F.dropout(torch.ones_like(h_BLD[..., :1, :]), self.p, self.training)
        return h_BLD * kept_B1D


def make_dropout(config: TransformerXLConfig) -> nn.Dropout:
    """Return dropout of hidden units."""
    kind = VariationalDropout if config.dropout_type == "variational" else nn.Dropout
    return kind(config.dropout)


def layer_norm(config: TransformerXLConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, config.norm_eps)


def residual_norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return what comes before a part and after its residual sum: a norm and nothing."""
    norm = layer_norm(config)
    return (nn.Identity(), norm) if config.norm == "post" else (norm, nn.Identity())


def initialize_weights(model: nn.Module, config: TransformerXLConfig) -> None:
    """Draw every weight of a network, in place."""

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
    # One that is tied is drawn twice, as it has always been for a seed.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(PROJECTIONS):
            nn.init.normal_(parameter, 0.0, config.proj_init_std)
