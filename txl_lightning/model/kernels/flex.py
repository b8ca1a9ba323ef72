"""Relative attention through PyTorch's FlexAttention, which adds (b) + (d) to each score.

Distance scores are written to memory, content scores are not. For CUDA: PyTorch has no
gradient of FlexAttention elsewhere. The gradient of (b) + (d) is scattered, each entry once.

B rows   L queries   S visible states   H heads   K head width   T = S + 1 distances   Y = L * T
"""

from collections.abc import Callable
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import BlockMask, create_block_mask, flex_attention

from ..positions import DistanceTerms
from .sdpa import scores_by_distance


def attend(
    q_BLHK: Tensor,
    kv_BS2HK: Tensor,
    terms: DistanceTerms,
    mask_BLS: Tensor,
    dropatt: float,
) -> Tensor:
    """Softmax of (a) + (b) + (c) + (d) over sqrt(K), times the values: out_BLHK."""
    k_BSHK, value_BSHK = kv_BS2HK.unbind(2)
    assert not dropatt  # TransformerXLConfig refuses it: FlexAttention has no dropout.
    S, score_BHLT = k_BSHK.size(1), scores_by_distance(q_BLHK, terms)
    add_distance = None
    if score_BHLT is not None:
        score_BHY = score_BHLT.expand(len(q_BLHK), -1, -1, -1).flatten(2)
        first = q_BLHK.size(1)

        def add_distance(score, b, h, l, s):  # noqa: E741
            # As in positions.shift: without the first L entries, rows of S are scores by state.
            return score + score_BHY[b, h, first + l * S + s]

    query_BLHK = q_BLHK if terms.u_HK is None else q_BLHK + terms.u_HK
    # Under autocast, u may have higher precision.
    states = (query_BLHK.to(k_BSHK.dtype), k_BSHK, value_BSHK)
    states = (state.transpose(1, 2) for state in states)
    out_BHLK = fused_attention()(*states, score_mod=add_distance, block_mask=blocks(mask_BLS))
    return out_BHLK.transpose(1, 2)


@cache
def fused_attention() -> Callable[..., Tensor]:
    """Compile FlexAttention; uncompiled, it writes every score to memory."""
    # One graph per combination of lengths, of which a run has few.
    return torch.compile(flex_attention, dynamic=False)


@lru_cache(maxsize=1)
def blocks(mask_BLS: Tensor) -> BlockMask:
    """Find the tiles that are not fully masked, once for all layers, which share the mask."""

    def is_visible(b, h, l, s):  # noqa: E741
        return mask_BLS[b, l, s]

    B, L, S = mask_BLS.shape
    return create_block_mask(is_visible, B, None, L, S, device=mask_BLS.device)
