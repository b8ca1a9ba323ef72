"""What dropout leaves out: something else for each token, or the same for all of a row."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerXLConfig


class LockedDropout(nn.Dropout):
    """Variational dropout: all tokens of a row drop the same units (Gal and Ghahramani 2016).

    The paper's recipe for Penn Treebank (Section 4.1). Each segment draws anew.
    """

    def forward(self, h_BLD: Tensor) -> Tensor:
        kept_B1D = F.dropout(torch.ones_like(h_BLD[..., :1, :]), self.p, self.training)
        return h_BLD * kept_B1D


DROPOUTS = {"fresh": nn.Dropout, "locked": LockedDropout}


def dropout(config: TransformerXLConfig) -> nn.Dropout:
    """Dropout of hidden units."""
    return DROPOUTS[config.dropout_mask](config.dropout)
