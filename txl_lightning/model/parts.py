"""Small parts: dropout, layer normalization, linear maps, and the mode of a module.

torch multiplies in float32 with MKL, which uses AVX-512 on Intel's processors only. On others,
oneDNN's products are about twice as fast (docs/engineering-log.md).
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .config import TransformerXLConfig
from .precision import cast


class Dropout(nn.Dropout):
    """Dropout that does nothing where it drops nothing: of many small steps, as in decoding."""

    def forward(self, h: Tensor) -> Tensor:
        return super().forward(h) if self.training and self.p else h


class VariationalDropout(nn.Dropout):
    """Dropout of the same units for all tokens of a segment's row (Gal and Ghahramani 2016).

    The paper's recipe for Penn Treebank (Section 4.1).
    """

    def forward(self, h_BLD: Tensor) -> Tensor:
        mask_B1D = F.dropout(torch.ones_like(h_BLD[..., :1, :]), self.p, self.training)
        return h_BLD * mask_B1D


def make_dropout(config: TransformerXLConfig) -> nn.Dropout:
    """Return dropout of hidden units."""
    kind = VariationalDropout if config.dropout_type == "variational" else Dropout
    return kind(config.dropout)


def layer_norm(config: TransformerXLConfig) -> nn.LayerNorm:
    return LayerNorm(config.d_model, config.norm_eps)


def make_norms(config: TransformerXLConfig) -> tuple[nn.Module, nn.Module]:
    """Return the norms before a sublayer and after its residual sum."""
    norm = layer_norm(config)
    same = nn.Identity()
    return (same, norm) if config.norm == "post" else (norm, same)


@cache
def is_onednn_faster() -> bool:
    """Return True on a CPU with AVX-512 that is not Intel's."""
    capabilities = torch.cpu.get_capabilities()
    has_vectors = capabilities.get("avx512_f", False) and torch.backends.mkldnn.is_available()
    return has_vectors and "AMD" in capabilities.get("cpu_name", "")


def has_bfloat16_units(device: torch.device) -> bool:
    """Return True if bfloat16 matrix products are at least twice as fast on the device."""
    if device.type == "cuda":
        return True
    capabilities = torch.cpu.get_capabilities()
    # Intel's units for AVX-512 take twice as long for bfloat16 as for float32; AMD's, half as long.
    is_amd = "AMD" in str(capabilities.get("cpu_name"))
    return bool(capabilities.get("amx_bf16") or (is_amd and capabilities.get("avx512_bf16")))


def uses_onednn(x: Tensor, weight: Tensor) -> bool:
    """Return True if oneDNN multiplies these: in float32 on such a CPU, outside of autocast."""
    # torch.compile chooses among its own products.
    is_eager = not (torch.compiler.is_compiling() or torch.is_autocast_enabled("cpu"))
    is_plain = x.is_cpu and x.dtype == weight.dtype == torch.float32 and x.numel() > 0
    return is_eager and is_plain and is_onednn_faster()


def multiply(x: Tensor, weight_ID: Tensor, bias_I: Tensor | None = None) -> Tensor:
    """Return x W^T + b; in a backward pass, differentiable if it has create_graph."""
    # There gradients are enabled, which oneDNN's products do not have.
    if torch.is_grad_enabled() or not uses_onednn(x, weight_ID):
        return F.linear(x, weight_ID, bias_I)
    # Of other layouts it makes a thousand times slower copies.
    is_dense = weight_ID.is_contiguous() or weight_ID.t().is_contiguous()
    weight_ID = weight_ID if is_dense else weight_ID.contiguous()
    return multiply_with_onednn(x, weight_ID, bias_I)


def multiply_with_onednn(x: Tensor, weight_ID: Tensor, bias_I: Tensor | None) -> Tensor:
    # Private: no public function does it in float32, or with packed weights.
    return torch.ops.mkldnn._linear_pointwise(x, weight_ID, bias_I, "none", [], "")


def linear(x: Tensor, weight_ID: Tensor, bias_I: Tensor | None = None) -> Tensor:
    """Return x W^T + b; without the gradient of a memory that `join` has put before."""
    n_memory = 0
    if torch.is_grad_enabled() and not torch.compiler.is_compiling():
        # Set by `join`.
        n_memory = getattr(x.grad_fn, "n_memory", 0)
    if n_memory or uses_onednn(x, weight_ID):
        return LinearMap.apply(x, weight_ID, bias_I, n_memory)
    return F.linear(x, weight_ID, bias_I)


class LinearMap(torch.autograd.Function):
    """A linear map by the faster library; the gradient of the first n_memory states is left out."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight_ID: Tensor, bias_I: Tensor | None, n_memory: int
    ) -> Tensor:
        # Inputs, as a second derivative needs them.
        ctx.save_for_backward(x, weight_ID)
        # Not n_memory, which `linear` reads of the input's grad_fn: it may be this one.
        ctx.n_left_out = n_memory
        return multiply(x, weight_ID, bias_I)

    @staticmethod
    def backward(ctx: Any, d_out: Tensor) -> tuple[Tensor | None, ...]:
        x, weight_ID = ctx.saved_tensors
        n_memory = ctx.n_left_out
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        weight_DI = weight_ID.to(d_out.dtype).t()
        d_x = None
        if needs_x:
            d_h = multiply(d_out[:, n_memory:] if n_memory else d_out, weight_DI)
            d_x = F.pad(d_h, (0, 0, n_memory, 0)) if n_memory else d_h
        d_weight_ID = weight_gradient(d_out, x.to(d_out.dtype)) if needs_weight else None
        return d_x, d_weight_ID, d_out.flatten(0, -2).sum(0) if needs_bias else None, None


def join(*parts: Tensor) -> Tensor:
    """Return [m o h], or h alone. `linear` leaves out the gradient of m if nothing needs it."""
    if len(parts) == 1:
        return parts[0]
    is_noted = torch.is_grad_enabled() and not torch.compiler.is_compiling()
    if is_noted and not parts[0].requires_grad:
        return Join.apply(*parts)
    return torch.cat(parts, dim=1)


class Join(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, memory_BMD: Tensor, h_BLD: Tensor) -> Tensor:
        # `linear` finds it in the grad_fn of the result.
        ctx.n_memory = memory_BMD.size(1)
        return torch.cat([memory_BMD, h_BLD], dim=1)

    @staticmethod
    def backward(ctx: Any, d_BSD: Tensor) -> tuple[None, Tensor]:
        return None, d_BSD[:, ctx.n_memory :]


def weight_gradient(d_out: Tensor, x: Tensor) -> Tensor:
    """Return the gradient of W in x W^T: d_weight_ID."""
    d_out_YI = d_out.flatten(0, -2)
    x_YD = x.flatten(0, -2)
    if torch.is_grad_enabled() or not uses_onednn(d_out_YI, x_YD):
        return d_out_YI.t() @ x_YD
    # The first operand is copied, so that it should be the smaller one.
    if d_out_YI.size(1) > x_YD.size(1):
        return multiply(x_YD.t(), d_out_YI.t()).t()
    return multiply(d_out_YI.t(), x_YD.t())


def multiply_heads(x_HYA: Tensor, weight_HCA: Tensor) -> Tensor:
    """Return x W^T of each head, out_HYC; without a gradient."""
    if x_HYA.size(0) and uses_onednn(x_HYA, weight_HCA):
        return torch.stack([multiply(*pair) for pair in zip(x_HYA, weight_HCA, strict=True)])
    return torch.bmm(x_HYA, weight_HCA.mT)


class LayerNorm(nn.LayerNorm):
    """Layer normalization in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        weights = cast(self.weight, x.dtype), cast(self.bias, x.dtype)
        if not torch.is_autocast_enabled(x.device.type):
            return F.layer_norm(x, self.normalized_shape, *weights, self.eps)
        # That of a GPU would return float32.
        with torch.autocast(x.device.type, enabled=False):
            return F.layer_norm(x, self.normalized_shape, *weights, self.eps)


class Linear(nn.Linear):
    """A linear map by the faster library, in the precision of its input."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, cast(self.weight, x.dtype), cast(self.bias, x.dtype))


def has_hooks(module: nn.Module) -> bool:
    """Return True if something other than `forward` acts when a module is called."""
    # Private: no public function tells.
    of_values = module._forward_hooks or module._forward_pre_hooks
    return bool(of_values or module._backward_hooks or module._backward_pre_hooks)


def is_changed(net: nn.Module) -> bool:
    """Return True if a call of a network is another than its class has."""
    if not has_hooks(net):
        return "forward" in vars(net)
    # FSDP2 has hooks of its own. By its name, as an import takes as long as the rest of torch;
    # not by its weights, which are whole in a call.
    is_sharded = any(kind.__name__ == "FSDPModule" for kind in type(net).__mro__)
    return "forward" in vars(net) or not is_sharded


def move(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """Return a tensor on another device, or in another precision unless it has whole numbers."""
    moved = tensor.to(*args, **kwargs)
    is_right = tensor.is_floating_point() or moved.dtype == tensor.dtype
    return moved if is_right else tensor.to(moved.device)


class Modes:
    """Modes of the modules that are in eval mode for a while, perhaps in several threads."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.found: dict[nn.Module, tuple[bool, int]] = {}
        """The mode of each at first, and how many need it in eval mode."""

    def enter(self, modules: Sequence[nn.Module]) -> None:
        with self.lock:
            for module in modules:
                mode, count = self.found.get(module, (module.training, 0))
                self.found[module] = mode, count + 1
            # `train` of a class of one's own may do more than set a flag.
            modules[0].eval()

    def leave(self, modules: Sequence[nn.Module]) -> None:
        with self.lock:
            modes = {module: self._release(module) for module in modules}
            for module, mode in modes.items():
                if module.training != mode and type(module).train is not nn.Module.train:
                    module.train(mode)
            for module, mode in modes.items():
                module.training = mode

    def _release(self, module: nn.Module) -> bool:
        """Return the mode of a module after one less needs it in eval mode."""
        mode, count = self.found.pop(module)
        if count == 1:
            return mode
        self.found[module] = mode, count - 1
        return False


MODES = Modes()


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[nn.Module]:
    """Put all modules of a model in eval mode; restore the mode of each, also after an error.

    What is in eval mode in several threads is restored when the last of them ends.
    """
    # Most models are in eval mode for ever.
    if not MODES.found and not is_training(model):
        yield model
        return
    modules = list(model.modules())
    MODES.enter(modules)
    try:
        yield model
    finally:
        MODES.leave(modules)


def is_training(module: nn.Module) -> bool:
    """Return True if a module, or one within it, is in training mode."""
    # Private: `modules` takes four times as long, which counts for each generated token.
    return module.training or any(
        is_training(each) for each in module._modules.values() if each is not None
    )


def refuse_second_derivative(kernel: str) -> None:
    """Raise RuntimeError in the backward pass of a kernel that has no second derivative."""
    # Gradients are enabled in a backward pass only with create_graph. torch's own
    # once_differentiable is not reached by torch.autograd.grad.
    if torch.is_grad_enabled():
        which = f"kernel {kernel} has no second derivatives (create_graph=True)"
        raise RuntimeError(f"{which}; expected kernel reference")


def initialize_vector_math() -> None:
    """Let MKL detect the CPU on one thread, for the whole process.

    While it does, in the first sin, log, exp, sqrt, ... of a process, another thread's function
    uses kernels with half the digits (MKL 2024.2, pytorch/pytorch#188792).
    """
    torch.zeros(1, dtype=torch.float32, device="cpu").sin()


def accumulator_dtype(device: torch.device) -> torch.dtype:
    """Return float64 for sums, or float32 on Apple's devices, which lack float64."""
    return torch.float32 if device.type == "mps" else torch.float64
