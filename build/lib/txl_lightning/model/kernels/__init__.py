"""Implementations of the same attention, with one signature:

    attend(q_BLHK, kv_BS2HK, terms, mask_BLS, dropatt) -> out_BLHK

`kv_BS2HK` holds keys and values, `terms` the distance terms of a score, `mask_BLS` is True where a
query may attend to a state (at least itself), and `dropatt` is the dropout of attention weights.
"""

from typing import Any

import torch
from torch import Tensor

from . import matmul, per_head, reference, sdpa

REASONS = {
    "sdpa": "as fast as others on a GPU, or faster; torch.compile fuses its elementwise operations",
    "per_head": "the fastest on a CPU; torch.compile cannot trace it",
}
"""Reasons for the choices below, measured in docs/engineering-log.md and experiments/gpu."""


def choose_kernel(device: torch.device, is_compiled: bool = False) -> str:
    """Return the fastest kernel; on devices other than a CPU and an H200, none was measured."""
    return "sdpa" if device.type != "cpu" or is_compiled else "per_head"


def attend(q_BLHK: Tensor, *others: Any) -> Tensor:
    """Compute attention with the fastest kernel for this device."""
    kernel = choose_kernel(q_BLHK.device, torch.compiler.is_compiling())
    return KERNELS[kernel](q_BLHK, *others)


KERNELS = {
    "auto": attend,
    "reference": reference.attend,
    "per_head": per_head.attend,
    "matmul": matmul.attend,
    "sdpa": sdpa.attend,
}
