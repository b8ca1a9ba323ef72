"""Precisions that a device is fast in; layers under autocast, or with bfloat16 weights."""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call

from ..errors import require
from .contract import is_transformer_xl, require_transformer_xl
from .parts import PackedLinear, is_onednn_faster

if TYPE_CHECKING:
    from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return float64 for sums, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are at least twice as fast on the device."""
    capabilities = torch.cpu.get_capabilities()
    is_fast_cpu = any(capabilities.get(name, False) for name in ("amx_bf16", "avx512_bf16"))
    return device.type == "cuda" or is_fast_cpu


def call_with_weights_in(dtype: torch.dtype, module: nn.Module, *args: Any) -> Any:
    """Call a module with its weights in `dtype`, to which `args` have been cast already.

    Gradients arrive in the weights' own precision. Autocast would cast each weight, and most
    activations, in an operation of its own.
    """
    weights = dict(module.named_parameters())
    # FSDP2 gathers its DTensors in `dtype`; importing that class takes as long as torch.
    is_ready = all(w.dtype == dtype or hasattr(w, "full_tensor") for w in weights.values())
    if is_ready:
        return module(*args)
    if torch.compiler.is_compiling():  # which fuses casts, and warns of autograd functions
        cast = [weight.to(dtype) for weight in weights.values()]
    else:
        cast = CastTogether.apply(dtype, *weights.values())
    return functional_call(module, dict(zip(weights, cast, strict=True)), args)


class CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = weights[0].dtype
        return cast_together(weights, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *cast_together(gradients, ctx.dtype)


def cast_together(tensors: Iterable[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    cast = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    # Private, as in torch's own optimizers.
    torch._foreach_copy_(cast, tensors)
    return cast


def pack_weights(net: "TransformerXL", weights: Weights) -> "TransformerXL":
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
        is_supported = is_supported and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    require(is_supported, "weights", weights, f"float32 on this {net.device.type}")
    require(is_float32, "weights", weights, "a network in float32")
    dtype = torch.float32 if weights == "float32" else torch.bfloat16
    for name, module in list(net.layers.named_modules()):
        if isinstance(module, nn.Linear):
            net.layers.set_submodule(name, PackedLinear(module, dtype))
    return net
