"""Layers in another precision than their weights, as under autocast."""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn
from torch.func import functional_call

from .parts import CASTING, CASTS


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are at least twice as fast on the device."""
    if device.type == "cuda":
        return True
    capabilities = torch.cpu.get_capabilities()
    # Intel's units for AVX-512 take twice as long for bfloat16 as for float32; AMD's, half as long.
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    return bool(capabilities.get("amx_bf16") or (is_amd and capabilities.get("avx512_bf16")))


HALF = (torch.bfloat16, torch.float16)


def call(module: nn.Module, *args: Any) -> Any:
    return module(*args)


def call_with_weights_in(
    dtype: torch.dtype, module: nn.Module, *args: Any, call: Callable[..., Any] = call
) -> Any:
    """Call a module with its weights in `dtype`, to which `args` have been cast already.

    Gradients arrive in the weights' own precision. Autocast would cast each weight, and most
    activations, in an operation of its own; it casts what modules of other classes compute.
    """
    if torch.compiler.is_compiling():
        return call_as_traced(dtype, module, *args)
    owners = [each for each in find_modules(module) if each._parameters]
    weights = [w for each in owners for w in each._parameters.values() if w is not None]
    # FSDP2 gathers its DTensors in `dtype`; importing that class takes as long as torch.
    weights = [w for w in weights if w.dtype != dtype and not hasattr(w, "full_tensor")]
    if not weights:
        return call(module, *args)
    if not all(type(each) in CASTING and "forward" not in vars(each) for each in owners):
        with torch.autocast(weights[0].device.type, dtype, enabled=dtype in HALF):
            return call(module, *args)
    before = CASTS.found
    cast = CastTogether.apply(dtype, *weights)
    try:
        CASTS.found = {id(weight): each for weight, each in zip(weights, cast, strict=True)}
        return call(module, *args)
    finally:
        CASTS.found = before


def call_as_traced(dtype: torch.dtype, module: nn.Module, *args: Any) -> Any:
    """Do the same as torch.compile can trace it: the graph has casts, and changes no module."""
    weights = dict(module.named_parameters())
    if all(w.dtype == dtype or hasattr(w, "full_tensor") for w in weights.values()):
        return module(*args)
    return functional_call(module, {name: w.to(dtype) for name, w in weights.items()}, args)


FOUND: WeakKeyDictionary[nn.Module, list[tuple]] = WeakKeyDictionary()
"""For each module, those inside it, and the modules of each."""


def find_modules(module: nn.Module) -> list[nn.Module]:
    """Return a module and those inside it; torch's `modules` walks through them at each call."""
    found = FOUND.get(module)
    # Private: a submodule, or a parametrization, may have been exchanged since.
    if found is None or any(tuple(inside.values()) != modules for _, inside, modules in found):
        found = [(ref(m), m._modules, tuple(m._modules.values())) for m in module.modules()]
        FOUND[module] = found
    return [each() for each, _, _ in found]


class CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.dtype = weights[0].dtype
        return cast_together(weights, dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        # With create_graph, by operations that have a gradient.
        if torch.is_grad_enabled():
            return None, *(gradient.to(ctx.dtype) for gradient in gradients)
        return None, *cast_together(gradients, ctx.dtype)


def cast_together(tensors: Iterable[Tensor], dtype: torch.dtype) -> tuple[Tensor, ...]:
    cast = tuple(torch.empty_like(tensor, dtype=dtype) for tensor in tensors)
    # Private, as in torch's own optimizers.
    torch._foreach_copy_(cast, tensors)
    return cast
