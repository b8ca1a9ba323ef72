"""Which memory a network has, its device, and its weights packed for a CPU."""

from __future__ import annotations

from typing import Literal

import torch
from torch import nn

from ..errors import require
from .cache import KeyValueCache
from .config import is_transformer_xl, require_transformer_xl
from .parts import PackedLinear, is_onednn_faster
from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


def holds_keys(memory: object) -> bool:
    """Return True if a memory has keys and values, which a layer has of its mem_len last tokens."""
    return isinstance(memory, KeyValueCache)


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


def find_device(net: nn.Module) -> torch.device:
    return next(net.parameters()).device
