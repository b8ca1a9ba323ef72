"""Kernels that are measured on a GPU: the package's, and candidates for it."""

from typing import Any

import torch
from torch import Tensor

from txl_lightning import TransformerXL
from txl_lightning.model import kernels
from txl_lightning.model.kernels import sdpa


def attend_with_triton(q_BLHK: Tensor, *others: Any) -> Tensor:
    """Compute attention with Triton on CUDA; elsewhere and in float64 with sdpa, its equivalent."""
    # Triton's products accumulate in float32.
    if not q_BLHK.is_cuda or q_BLHK.dtype == torch.float64:
        return sdpa.attend(q_BLHK, *others)
    # At the first use, because importing Triton takes seconds.
    from experiments.gpu import tiled

    return tiled.attend(q_BLHK, *others)


KERNELS = kernels.KERNELS | {"triton": attend_with_triton}


def use_kernel(net: TransformerXL, name: str) -> None:
    """Let every layer of a network attend with this kernel."""
    for layer in net.layers:
        layer.attention.attend = KERNELS[name]
