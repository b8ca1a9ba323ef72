"""Compile the network with torch.compile (model.compile)."""

from inspect import signature
from types import MethodType

import torch

from ..model import TransformerXL


def compile_in_place(net: TransformerXL) -> None:
    """Compile the functions of training and evaluation; the weights keep their names.

    Two functions are compiled and bound to the network, so that a copy uses its own weights.
    """
    # Since torch 2.13; without it, all networks of a process share the recompilation limit.
    is_available = "isolate_recompiles" in signature(torch.compile).parameters
    options = {"isolate_recompiles": True} if is_available else {}
    # A loss whose shapes depend on the targets would be recompiled for every segment.
    for name in ("hidden",) if net.head.reads_targets else ("loss", "hidden"):
        if name not in vars(net):
            compiled = torch.compile(getattr(TransformerXL, name), **options)
            setattr(net, name, MethodType(compiled, net))
