"""Precisions that a device has, or is fast in; layers with bfloat16 weights.

O outputs   D inputs
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return float64 for sums, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are several times as fast on the device."""
    return device.type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)


class Bfloat16Linear(nn.Module):
    """A linear map without gradient; inputs and outputs stay in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        # Private: no public product keeps its weights packed.
        self.packed_OD = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data.bfloat16())
        self.bias = None if linear.bias is None else linear.bias.data.bfloat16()

    def forward(self, *parts: Tensor) -> Tensor:
        # The layer of keys and values is called with memory and segment.
        x = parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)
        product = torch.ops.mkldnn._linear_pointwise
        return product(x.bfloat16(), self.packed_OD, self.bias, "none", [], "").to(x.dtype)


def narrow_weights(net: TransformerXL, weights: Weights) -> TransformerXL:
    """Return the network after replacing its layers' weights, for inference only.

    Embeddings, softmax, keys and values stay in float32. It can no longer be trained, saved or
    moved to another device.

    Raises:
        ValueError: the device does not support them.
    """
    require(weights in ("float32", "bf16"), "weights", weights, "one of float32, bf16")
    if weights == "float32":
        return net
    is_supported = net.device.type == "cpu" and torch.backends.mkldnn.is_available()
    is_supported = is_supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(is_supported, "weights", weights, f"float32 on this {net.device.type}")
    require(net.compute_dtype == torch.float32, "weights", weights, "a network in float32")
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, Bfloat16Linear(module))
    return net
