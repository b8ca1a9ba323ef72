"""Implementations of the same attention, with one signature:

    attend(q_BLHK, kv, terms, mask, dropatt) -> out_BLHK

`kv` are keys and values: kv_BS2HK, or k_BSHK and v_BSHK where they are kept. `terms` are the
distance terms of a score, perhaps of fewer distances (`DistanceTerms.complete`). `mask.mask_BLS` is
True where a query may attend to a state (at least itself). `dropatt` is the dropout of attention
weights. All but `mask` are in one precision.
"""

import torch
from torch import Tensor

from ..memory import KeysValues, Mask
from ..positions import DistanceTerms
from . import per_head, reference, sdpa

REASONS = {
    "sdpa": "as fast as others on a GPU, or faster; torch.compile fuses its elementwise operations",
    "per_head": "the fastest on a CPU; torch.compile cannot trace it",
}
"""Reasons for the choices below, measured in docs/engineering-log.md and experiments/gpu."""


def choose_kernel(device: torch.device, is_compiled: bool = False) -> str:
    """Return the fastest kernel; on devices other than a CPU and an H200, none was measured."""
    return "sdpa" if device.type != "cpu" or is_compiled else "per_head"


def attend(
    q_BLHK: Tensor, kv: KeysValues, terms: DistanceTerms, mask: Mask, dropatt: float
) -> Tensor:
    """Compute attention with the fastest kernel for this device."""
    is_compiled = torch.compiler.is_compiling()
    kernel = choose_kernel(q_BLHK.device, is_compiled)
    # Without gradients, this one is the fastest on a GPU, too, for keys and values that are kept.
    if not (isinstance(kv, Tensor) or torch.is_grad_enabled() or is_compiled or dropatt):
        kernel = "per_head"
    return KERNELS[kernel](q_BLHK, kv, terms, mask, dropatt)


KERNELS = {
    "auto": attend,
    "reference": reference.attend,
    "per_head": per_head.attend,
    "sdpa": sdpa.attend,
}
