"""A candidate: linear maps with zeros up to widths that a GPU multiplies fast, in their casts.

Weights keep their shapes. Each call casts a weight into a matrix with more rows and columns, of
zeros, and multiplies with that; so does the backward pass. Zeros change no sum.

I outputs   D inputs   L tokens in the segment
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning.model.parts import Linear, multiply, weight_gradient
from txl_lightning.model.precision import compute_dtype, widen


def widen_maps(module: nn.Module) -> None:
    """Make all linear maps inside a module wide; between two maps of a sequence, states are, too.

    Dropout between them then draws other numbers than without.
    """
    for sequence in module.modules():
        maps = [each for each in sequence.children() if type(each) is Linear]
        for each in maps:
            each.__class__ = WideLinear
        if isinstance(sequence, nn.Sequential):
            for each in maps[:-1]:
                each.keeps_width = True


class WideLinear(Linear):
    """A linear map by wide products.

    `keeps_width`: its output has the columns of zeros, for a map that adds them anyway.
    """

    keeps_width = False

    def forward(self, x: Tensor) -> Tensor:
        # Set by `join`.
        n_memory = getattr(x.grad_fn, "n_memory", 0)
        return WideMap.apply(x, self.weight, self.bias, n_memory, self.keeps_width)


class WideMap(torch.autograd.Function):
    """x W^T + b; the gradient of the first n_memory states of x is left out."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight_ID: Tensor,
        bias_I: Tensor | None,
        n_memory: int,
        keeps_width: bool,
    ) -> Tensor:
        dtype = compute_dtype(weight_ID)
        wide = widen(x, dtype), widen(weight_ID, dtype, 2)
        ctx.save_for_backward(*wide, weight_ID, bias_I)
        ctx.width = x.size(-1)
        ctx.dtype = x.dtype
        ctx.n_memory = n_memory
        out = F.linear(*wide, None if bias_I is None else widen(bias_I, dtype))
        return out if keeps_width else out[..., : len(weight_ID)]

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, wide_ID, weight_ID, bias_I = ctx.saved_tensors
        n_out, n_in = weight_ID.shape
        n_memory = ctx.n_memory
        d_out = widen(d_out, x.dtype)
        d_x = None
        if ctx.needs_input_grad[0]:
            d_h = multiply(d_out[:, n_memory:], wide_ID.t())[..., : ctx.width]
            d_x = F.pad(d_h, (0, 0, n_memory, 0)) if n_memory else d_h
            d_x = d_x.to(ctx.dtype)
        d_weight_ID = weight_gradient(d_out, x)[:n_out, :n_in].to(weight_ID.dtype)
        d_bias_I = None
        if bias_I is not None:
            d_bias_I = d_out.flatten(0, -2).sum(0)[:n_out].to(bias_I.dtype)
        return d_x, d_weight_ID, d_bias_I, None, None
