"""Layers under autocast: all weights cast by one operation, states that stay in its precision."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call


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
