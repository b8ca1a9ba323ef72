"""Layers with bfloat16 or int8 weights, for faster inference on a CPU.

O outputs   D inputs
"""

from typing import Literal

import torch
from torch import Tensor, nn

from ..errors import require
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16", "int8"]


class NarrowLinear(nn.Module):
    """A linear map without gradient; inputs, outputs and bias stay in float32."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.bias = None if linear.bias is None else linear.bias.data
        self.pack(linear.weight.data)

    def forward(self, *parts: Tensor) -> Tensor:
        # The layer of keys and values is called with memory and segment.
        return self.multiply(parts[0] if len(parts) == 1 else torch.cat(parts, dim=1))


class Bfloat16Linear(NarrowLinear):
    def pack(self, weight_OD: Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight_OD.bfloat16())
        self.bias = None if self.bias is None else self.bias.bfloat16()

    def multiply(self, x: Tensor) -> Tensor:
        product = torch.ops.mkldnn._linear_pointwise
        return product(x.bfloat16(), self.packed, self.bias, "none", [], "").to(x.dtype)


class Int8Linear(NarrowLinear):
    """One scale per output and one per token: no token changes another token's result."""

    def pack(self, weight_OD: Tensor) -> None:
        self.scale_O = find_scale(weight_OD)[:, 0]
        self.zero_O = torch.zeros(len(weight_OD), dtype=torch.long)
        rounded_OD = (weight_OD / self.scale_O[:, None]).round().to(torch.int8)
        self.packed = torch.ops.onednn.qlinear_prepack(rounded_OD, None)

    def multiply(self, x: Tensor) -> Tensor:
        scale = find_scale(x)
        rounded, product = (x / scale).round_().to(torch.int8), torch.ops.onednn.qlinear_pointwise
        weight = (self.packed, self.scale_O, self.zero_O)
        out = product(rounded, 1.0, 0, *weight, None, 1.0, 0, torch.float32, "none", [], "")
        return out.mul_(scale) if self.bias is None else torch.addcmul(self.bias, out, scale)


def find_scale(x: Tensor) -> Tensor:
    """Return the divisors that make the largest absolute value along the last axis 127."""
    return x.abs().amax(-1, keepdim=True).clamp_(min=torch.finfo(x.dtype).tiny).div_(127)


def narrow_weights(net: TransformerXL, weights: Weights) -> TransformerXL:
    """Return the network after replacing its layers' weights, for inference only.

    Embeddings, softmax, keys and values stay in float32. It can no longer be trained, saved or
    moved to another device.

    Raises:
        ValueError: the device does not support them.
    """
    kinds = {"float32": None, "bf16": Bfloat16Linear, "int8": Int8Linear}
    require(weights in kinds, "weights", weights, f"one of {', '.join(kinds)}")
    if (kind := kinds[weights]) is None:
        return net
    has_products = net.device.type == "cpu" and torch.backends.mkldnn.is_available()
    if weights == "bf16":
        has_products &= torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(has_products, "weights", weights, f"float32 on this {net.device.type}")
    require(net.compute_dtype == torch.float32, "weights", weights, "a network in float32")
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, kind(module))
    return net
