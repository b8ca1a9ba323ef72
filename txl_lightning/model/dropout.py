"""Dropout of hidden units: other units for each token, or the same for all tokens of a row."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerXLConfig


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
