"""Weights in the precision of what they are used with, as under autocast."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

MULTIPLES = {"cuda": 8}
"""Half-precision products of other widths are several times slower: no aligned reads."""


class Casts(threading.local):
    """Weights of the layer that a thread is calling, cast together; by the id of each."""

    found: dict[int, Tensor] = {}  # noqa: RUF012 (never modified)


CASTS = Casts()


def compute_dtype(weight: Tensor) -> torch.dtype:
    """Return the precision of products with a weight: autocast's, or the weight's."""
    device = weight.device.type
    is_cast = torch.is_autocast_enabled(device)
    return torch.get_autocast_dtype(device) if is_cast else weight.dtype


def cast(weight: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """Return a weight in the precision of what it is used with; gradients reach its own."""
    if weight is None or weight.dtype == dtype:
        return weight
    if torch.compiler.is_compiling():
        return weight.to(dtype)
    found = CASTS.found.get(id(weight))
    return weight.to(dtype) if found is None or found.dtype != dtype else found


@contextmanager
def cast_together(module: nn.Module, dtype: torch.dtype) -> Iterator[None]:
    """Cast the weights inside a module by one operation for what `cast` returns in the block.

    A GPU starts an operation for each cast otherwise. The module itself is not changed.
    """
    if torch.compiler.is_compiling():
        # The compiler joins casts itself.
        yield
        return
    # FSDP2 gathers its DTensors in `dtype`; importing that class takes as long as torch.
    weights = [w for w in module.parameters() if w.dtype != dtype and not hasattr(w, "full_tensor")]
    before = CASTS.found
    if weights:
        together = CastTogether.apply(dtype, *weights)
        CASTS.found = {id(w): each for w, each in zip(weights, together, strict=True)}
    try:
        yield
    finally:
        CASTS.found = before


class CastTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, dtype: torch.dtype, *weights: Tensor) -> tuple[Tensor, ...]:
        ctx.kinds = [weight.dtype for weight in weights]
        # A weight that nothing asks for gets no gradient, rather than one of zeros.
        ctx.set_materialize_grads(False)
        together = copy_together(weights, [dtype] * len(weights))
        is_learned = ctx.needs_input_grad[1:]
        frozen = [each for each, learns in zip(together, is_learned, strict=True) if not learns]
        ctx.mark_non_differentiable(*frozen)
        return together

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        there = [n for n, gradient in enumerate(gradients) if gradient is not None]
        kinds = [ctx.kinds[n] for n in there]
        given = [gradients[n] for n in there]
        # With create_graph, by operations that have a gradient.
        if torch.is_grad_enabled():
            wide = [gradient.to(kind) for gradient, kind in zip(given, kinds, strict=True)]
        else:
            wide = copy_together(given, kinds)
        found = dict(zip(there, wide, strict=True))
        return None, *(found.get(n) for n in range(len(gradients)))


def copy_together(tensors: Iterable[Tensor], kinds: list[torch.dtype]) -> tuple[Tensor, ...]:
    """Return copies of tensors, each in a precision."""
    pairs = zip(tensors, kinds, strict=True)
    copies = tuple(torch.empty_like(tensor, dtype=kind) for tensor, kind in pairs)
    if copies:
        # Private, as in torch's own optimizers.
        torch._foreach_copy_(copies, tensors)
    return copies


def widen(tensor: Tensor, dtype: torch.dtype, n_dim: int = 1) -> Tensor:
    """Return a tensor in a precision, its last dimensions as long as a device multiplies fast."""
    multiple = MULTIPLES.get(tensor.device.type, 1) if dtype.itemsize == 2 else 1
    shape = [*tensor.shape[:-n_dim], *(n + -n % multiple for n in tensor.shape[-n_dim:])]
    if shape == [*tensor.shape]:
        return tensor.to(dtype)
    wide = torch.zeros(shape, dtype=dtype, device=tensor.device)
    wide[tuple(map(slice, tensor.shape))] = tensor
    return wide
