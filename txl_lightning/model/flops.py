"""Floating-point operations of training."""

from torch import nn

from .transformer_xl import TransformerXL


def flops_per_token(net: TransformerXL, tgt_len: int) -> float:
    """Return the operations of matrix products for a token, forward and backward.

    As is usual (Kaplan et al. 2020; Chowdhery et al. 2022), embeddings, norms, the projections of
    memory and what is recomputed are left out, and the softmax is over the whole vocabulary.
    """
    config = net.config
    weights = sum(
        part.weight.numel() for part in net.layers.modules() if isinstance(part, nn.Linear)
    )
    softmax = config.n_token * config.d_model
    seen = config.mem_len + (tgt_len + 1) / 2
    # Scores by content, scores by distance, and the sum of values.
    attention = 3 * config.n_layer * config.n_head * config.head_width * seen
    # A product and a sum for each weight that a token meets, and twice that backward.
    return 6 * (weights + softmax + attention)
