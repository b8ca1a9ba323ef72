"""Compilation, activation checkpointing and micro-batches.

B rows   L segment
"""

from dataclasses import replace
from functools import partial
from inspect import signature
from types import MethodType

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from ..data.stream import Segment
from ..evaluation.scoring import segment_nats
from ..model import Memory, TransformerXL


def compile_in_place(net: TransformerXL) -> None:
    """Compile the functions of training and evaluation; the weights keep their names.

    Two functions are compiled and bound to the network, so that a copy uses its own weights.
    """
    # Isolated, from torch 2.13: otherwise all networks of a process share the recompilation limit.
    is_known = "isolate_recompiles" in signature(torch.compile).parameters
    isolated = {"isolate_recompiles": True} if is_known else {}
    # A loss whose shapes depend on the targets would be recompiled for every segment.
    for name in ("loss", "hidden") if net.head.is_compilable else ("hidden",):
        if name not in vars(net):
            compiled = torch.compile(getattr(TransformerXL, name), **isolated)
            setattr(net, name, MethodType(compiled, net))


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are several times as fast on the device."""
    return device.type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)


def enable_activation_checkpointing(net: TransformerXL) -> None:
    """Store only each layer's input; the backward pass recomputes the rest, with equal dropout."""
    for layer in net.layers:
        if not isinstance(layer.forward, partial):
            layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)


def nats_in_micro_batches(
    net: TransformerXL, segment: Segment, memory: Memory, ext_len: int, n_part: int
) -> tuple[Tensor, Memory]:
    """Return `segment_nats` of a segment, computed in n_part parts of its rows.

    The backward pass recomputes each part, with the same random numbers, just before its gradient,
    so that the activations of only one part are stored. For Lightning it is one forward and one
    backward pass: gradients are accumulated, scaled and averaged over ranks as usual.
    """
    n_row = len(segment.tokens_BL)
    if min(n_part, n_row) == 1:
        return segment_nats(net, segment, memory, ext_len)
    share, nats, memories = -(-n_row // n_part), [], []
    for start in range(0, n_row, share):
        rows = slice(start, start + share)
        given = (net, segment.rows(rows), memory.rows(rows), ext_len)
        part_BL, part = checkpoint(segment_nats, *given, use_reentrant=False)
        nats.append(part_BL)
        memories.append(part)
    h_NBMD = torch.cat([part.h_NBMD for part in memories], dim=1)
    filled_B = torch.cat([part.filled_B for part in memories])
    return torch.cat(nats), replace(memory, h_NBMD=h_NBMD, filled_B=filled_B)
