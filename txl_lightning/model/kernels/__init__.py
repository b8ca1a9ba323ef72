"""The same attention, several ways, behind one signature:

    attend(q_BLHK, kv_BS2HK, terms, mask_BLS, dropatt) -> out_BLHK

where `kv_BS2HK` has the keys and the values, `terms` is what distance adds to a score, `mask_BLS`
says which states a query may see (at least itself), and `dropatt` is the probability of dropping an
attention weight.
"""

from typing import Any

import torch
from torch import Tensor

from . import matmul, per_head, reference, sdpa
from .cuda import CUDA_KERNELS as CUDA_KERNELS


def choose_kernel(device: torch.device, dtype: torch.dtype, is_compiled: bool = False) -> str:
    """Return the fastest kernel, or of equal ones the smallest (experiments/README.md)."""
    # per_head cannot be traced by torch.compile, which fuses what sdpa has beside its products.
    if device.type != "cpu" or is_compiled:
        return "sdpa"
    # Half precision is converted for each product of a tile; matmul makes fewer, larger ones.
    return "per_head" if dtype in (torch.float32, torch.float64) else "matmul"


def attend(q_BLHK: Tensor, *others: Any) -> Tensor:
    """Compute with the kernel that is fastest here."""
    kernel = choose_kernel(q_BLHK.device, q_BLHK.dtype, torch.compiler.is_compiling())
    return KERNELS[kernel](q_BLHK, *others)


KERNELS = {
    "auto": attend,
    "reference": reference.attend,
    "per_head": per_head.attend,
    "matmul": matmul.attend,
    "sdpa": sdpa.attend,
    **CUDA_KERNELS,
}
