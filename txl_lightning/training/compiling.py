"""Compilation of the network, in its place."""

from types import MethodType

import torch

from ..model import TransformerXL


def compile_in_place(net: TransformerXL) -> None:
    """Compile what training and evaluation call, `loss` and `hidden`; done before, do nothing.

    Nothing is compiled until it is called. The weights keep their names, and a copy of the network
    computes with its own: only the two functions are compiled, and bound to the network. A loss
    whose shapes depend on the targets would be compiled again and again; it is left as it is.
    """
    for name in ("loss", "hidden") if net.head.is_compilable else ("hidden",):
        if name not in vars(net):
            # Isolated, because a process that trains several networks may compile each as often.
            compiled = torch.compile(getattr(TransformerXL, name), isolate_recompiles=True)
            setattr(net, name, MethodType(compiled, net))
