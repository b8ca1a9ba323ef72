"""Kernels for CUDA, imported at their first use on a CUDA tensor, which takes seconds."""

from functools import partial
from importlib import import_module
from typing import Any

from torch import Tensor

from . import sdpa


def attend(name: str, q_BLHK: Tensor, *others: Any) -> Tensor:
    """Compute with the kernel in file `name`; on other devices with sdpa, which is equivalent."""
    kernel = import_module(f".{name}", __package__) if q_BLHK.is_cuda else sdpa
    return kernel.attend(q_BLHK, *others)


CUDA_KERNELS = {"flex": partial(attend, "flex"), "triton": partial(attend, "tiled")}
"""Untested: no GPU has run them, so they are used only on request."""
