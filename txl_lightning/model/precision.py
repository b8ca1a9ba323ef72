"""Layers in another precision than their weights, as under autocast."""

from collections.abc import Callable, Iterable
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are at least twice as fast on the device."""
    if device.type == "cuda":
        return True
    capabilities = torch.cpu.get_capabilities()
    # Intel's units for AVX-512 take twice as long for bfloat16 as for float32; AMD's, half as long.
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    return bool(capabilities.get("amx_bf16") or (is_amd and capabilities.get("avx512_bf16")))


def call(module: nn.Module, *args: Any) -> Any:
    return module(*args)


def call_with_weights_in(
    dtype: torch.dtype, module: nn.Module, *args: Any, call: Callable[..., Any] = call
) -> Any:
    """Call a module with its weights in `dtype`, to which `args` have been cast already.

    Gradients arrive in the weights' own precision. Autocast would cast each weight, and most
    activations, in an operation of its own; so would a compiled function, were it not only `call`.
    """
    if torch.compiler.is_compiling():
        return call_as_traced(dtype, module, *args)
    places = find_weights(module)
    weights = [parameters[name] for parameters, name in places]
    if are_ready(weights, dtype):
        return call(module, *args)
    cast = CastTogether.apply(dtype, *weights)
    try:
        put_weights(places, cast)
        return call(module, *args)
    finally:
        put_weights(places, weights)


def call_as_traced(dtype: torch.dtype, module: nn.Module, *args: Any) -> Any:
    """Do the same as torch.compile can trace it: it fuses casts, and warns of own functions."""
    weights = dict(module.named_parameters())
    if are_ready(weights.values(), dtype):
        return module(*args)
    return functional_call(module, {name: w.to(dtype) for name, w in weights.items()}, args)


def are_ready(weights: Iterable[Tensor], dtype: torch.dtype) -> bool:
    # FSDP2 gathers its DTensors in `dtype`; importing that class takes as long as torch.
    return all(w.dtype == dtype or hasattr(w, "full_tensor") for w in weights)


Place = tuple[dict[str, Tensor | None], str]
"""A module's own dictionary of weights, and a name in it."""
FOUND: WeakKeyDictionary[nn.Module, list[tuple]] = WeakKeyDictionary()
"""For each module and those inside it: their dictionaries of modules and weights, and modules."""


def find_weights(module: nn.Module) -> list[Place]:
    """Return the places of all weights; one that is shared has several.

    torch's `named_parameters` and `functional_call` walk through all modules at each call.
    """
    found = FOUND.get(module)
    # Private: a submodule, or a parametrization, may have been exchanged since.
    if found is None or any(tuple(inside.values()) != modules for inside, _, modules in found):
        found = [(m._modules, m._parameters, tuple(m._modules.values())) for m in module.modules()]
        FOUND[module] = found
    return [(own, name) for _, own, _ in found for name in own if own[name] is not None]


def put_weights(places: Iterable[Place], weights: Iterable[Tensor]) -> None:
    """Put tensors of any kind where a module looks for its weights."""
    for (parameters, name), weight in zip(places, weights, strict=True):
        parameters[name] = weight


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
