"""Recompute activations in the backward pass, by layer or in micro-batches, to save memory.

B rows   L segment
"""

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..data.stream import Segment
from ..model import Memory, TransformerXL


def recompute_layers(net: TransformerXL) -> None:
    """Store only each layer's input; the backward pass recomputes the rest, with equal dropout."""
    if not isinstance(net.call_layer, partial):
        net.call_layer = partial(checkpoint, net.call_layer, use_reentrant=False)


def segment_loss(
    net: TransformerXL, segment: Segment, memory: Memory, n_part: int = 1
) -> tuple[Tensor, Memory]:
    """Return nats_BL of a segment's targets, 0 where IGNORED, and the memory after it.

    The rows are computed in n_part parts (micro-batches).

    The backward pass recomputes each part, with the same random numbers, just before its gradient,
    so that the activations of only one part are stored. For Lightning it is one forward and one
    backward pass: gradients are accumulated, scaled and averaged over ranks as usual.
    """
    n_row = len(segment.tokens_BL)
    if min(n_part, n_row) == 1:
        targets_BL, doc_pos_BL = segment.targets_for(net.head), segment.doc_pos_BL
        return net.loss(segment.tokens_BL, targets_BL, memory, doc_pos_BL, segment.n_reread)
    part_len, nats, memories = -(-n_row // n_part), [], []
    for start in range(0, n_row, part_len):
        rows = slice(start, start + part_len)
        inputs = net, segment.rows(rows), memory.rows(rows)
        part_BL, part_memory = checkpoint(segment_loss, *inputs, use_reentrant=False)
        nats.append(part_BL)
        memories.append(part_memory)
    h_NBMD = torch.cat([part.h_NBMD for part in memories], dim=1)
    filled_B = torch.cat([part.filled_B for part in memories])
    return torch.cat(nats), replace(memory, h_NBMD=h_NBMD, filled_B=filled_B)
