"""Parts of layers: linear maps, norms and dropout; their initial weights and precision.

matrices, embeddings, u, v, learned positions     init: normal(0, init_std), or uniform
projections of embeddings                         normal(0, proj_init_std)
layer-normalization weights                       normal(1, init_std)
every other bias                                  0

B rows   L tokens   M in memory   S = M + L   D width, or inputs   I, O outputs
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from ..errors import require
from .config import TransformerXLConfig

if TYPE_CHECKING:
    from .transformer_xl import TransformerXL

Weights = Literal["float32", "bf16"]
INITIALIZED_LIKE_WEIGHTS = ("u_NHK", "v_NHK", "r_NCHK", "r_NCK", "p_NCD")
"""Parameters of position schemes, except biases per distance."""
PROJECTIONS = ("embedding.projections.", "head.down")
"""Name prefixes of the projections from and to the width of embeddings."""


class VariationalDropout(nn.Dropout):
    """Dropout of the same units for all tokens of a segment's row (Gal and Ghahramani 2016).

    The paper's recipe for Penn Treebank (Section 4.1).
    """

    def forward(self, h_BLD: Tensor) -> Tensor:
        mask_B1D = F.dropout(torch.ones_like(h_BLD[..., :1, :]), self.p, self.training)
        return h_BLD * mask_B1D


def make_dropout(config: TransformerXLConfig) -> nn.Dropout:
    """Return dropout of hidden units."""
    kind = VariationalDropout if config.dropout_type == "variational" else nn.Dropout
    return kind(config.dropout)


def layer_norm(config: TransformerXLConfig) -> nn.LayerNorm:
    return nn.LayerNorm(config.d_model, config.norm_eps)


def residual_norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return the norms before a sublayer and after its residual sum; one is the identity."""
    norm = layer_norm(config)
    return (nn.Identity(), norm) if config.norm == "post" else (norm, nn.Identity())


class ConcatenatedLinear(nn.Linear):
    """A linear map of [m o h], or of h alone; computes no gradient of m where none is needed."""

    def forward(self, *parts: Tensor) -> Tensor:
        if len(parts) == 1:
            return super().forward(parts[0])
        if torch.compiler.is_compiling():
            return super().forward(torch.cat(parts, dim=1))
        return LinearOfParts.apply(*parts, self.weight)


class LinearOfParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory_BMD: Tensor, h_BLD: Tensor, weight_ID: Tensor) -> Tensor:
        h_BSD = torch.cat([memory_BMD, h_BLD], dim=1)
        out_BSI = F.linear(h_BSD, weight_ID)
        # Under autocast, products have lower precision than their operands.
        ctx.n_memory = memory_BMD.size(1)
        ctx.save_for_backward(h_BSD.to(out_BSI.dtype), weight_ID)
        return out_BSI

    @staticmethod
    def backward(ctx: Any, d_out_BSI: Tensor) -> tuple[Tensor | None, ...]:
        h_BSD, weight_ID = ctx.saved_tensors
        (needs_memory, needs_h, _), n_memory = ctx.needs_input_grad, ctx.n_memory
        narrow_ID = weight_ID.to(d_out_BSI.dtype)
        d_memory_BMD = d_out_BSI[:, :n_memory] @ narrow_ID if needs_memory else None
        d_h_BLD = d_out_BSI[:, n_memory:] @ narrow_ID if needs_h else None
        d_weight_ID = d_out_BSI.flatten(0, 1).mT @ h_BSD.flatten(0, 1)
        return d_memory_BMD, d_h_BLD, d_weight_ID.to(weight_ID.dtype)


def initialize_vector_math() -> None:
    """Let MKL detect the CPU on one thread, for the whole process.

    While it does, in the first sin, log, exp, sqrt, ... of a process, another thread's function
    uses kernels with half the digits (MKL 2024.2, pytorch/pytorch#188792).
    """
    torch.zeros(1, dtype=torch.float32, device="cpu").sin()


def initialize_weights(model: nn.Module, config: TransformerXLConfig) -> None:
    """Initialize every weight of a network at random, in place."""

    def draw(weight: nn.Parameter) -> None:
        if config.init == "uniform":
            nn.init.uniform_(weight, -config.init_range, config.init_range)
        else:
            nn.init.normal_(weight, 0.0, config.init_std)

    for module in model.modules():
        match module:
            case nn.Linear() | nn.Embedding():
                draw(module.weight)
            case nn.LayerNorm():
                nn.init.normal_(module.weight, 1.0, config.init_std)
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            nn.init.zeros_(parameter)
        elif name.endswith(INITIALIZED_LIKE_WEIGHTS):
            draw(parameter)
    # A tied weight is drawn twice: a seed must keep giving the same weights.
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if name.startswith(PROJECTIONS):
            nn.init.normal_(parameter, 0.0, config.proj_init_std)


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return float64 for sums, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are several times as fast on the device."""
    return device.type == "cuda" or torch.cpu.get_capabilities().get("amx_bf16", False)


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


def narrow_weights(net: "TransformerXL", weights: Weights) -> "TransformerXL":
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
