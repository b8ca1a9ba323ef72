"""Weights packed for a CPU."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .config import is_transformer_xl, require_transformer_xl
from .parts import is_onednn_faster, multiply_with_onednn
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


class PackedLinear(nn.Module):
    """A linear map without gradient, whose weight is in oneDNN's layout; inputs are cast."""

    def __init__(self, linear: nn.Linear, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = torch.ops.mkldnn._reorder_linear_weight(linear.weight.data.to(dtype))
        self.bias = None if linear.bias is None else linear.bias.data.to(dtype)

    def forward(self, x: Tensor) -> Tensor:
        return multiply_with_onednn(x.to(self.weight.dtype), self.weight, self.bias)


def pack_weights(net: TransformerXL, weights: Weights) -> TransformerXL:
    """Return the network after packing its layers' weights for a CPU, for inference only.

    With bf16, the products of its layers, and cached keys and values, are in bfloat16; sums of
    layers, norms, embeddings and softmax stay in float32. A packed network can no longer be
    trained, saved or moved to another device.

    Raises:
        ValueError: the device does not support them.
    """
    require(weights in ("float32", "bf16"), "weights", weights, "one of float32, bf16")
    if weights == "float32" and not is_transformer_xl(net):
        return net
    require_transformer_xl(net, "weights", weights)
    is_cpu = net.device.type == "cpu"
    is_float32 = is_cpu and net.compute_dtype == torch.float32
    if weights == "float32" and not (is_float32 and is_onednn_faster()):
        return net
    is_supported = is_cpu and torch.backends.mkldnn.is_available()
    if weights == "bf16":
        # Private: no public function tells.
        is_supported = is_supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(is_supported, "weights", weights, f"float32 on this {net.device.type}")
    require(is_float32, "weights", weights, "a network in float32")
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, PackedLinear(module, dtype))
    return net
