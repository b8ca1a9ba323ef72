"""What a token of training costs, in operations of floating-point numbers."""

from torch import nn

from .transformer_xl import TransformerXL

FORWARD_AND_BACKWARD = 6
"""Operations for each weight that a token meets: a product and a sum, and twice that backwards."""


def flops_per_token(net: TransformerXL, tgt_len: int) -> float:
    """Operations of matrix products for a token of a segment, whatever is computed twice.

    As is usual (Kaplan et al. 2020; Chowdhery et al. 2022), embeddings, norms and what memory's
    states are projected to again count for nothing, and the softmax is that of the whole
    vocabulary. Of S states that a query sees, the mean over a segment is taken.
    """
    config = net.config
    weights = sum(
        part.weight.numel() for part in net.layers.modules() if isinstance(part, nn.Linear)
    )
    softmax = config.n_token * config.d_model
    seen = config.mem_len + (tgt_len + 1) / 2
    # Scores by content, scores by distance, and what is read.
    attention = 3 * config.n_layer * config.n_head * config.head_width * seen
    return FORWARD_AND_BACKWARD * (weights + softmax + attention)
