"""LAMB: Adam with updates scaled to the norm of each weight (You et al. 2020)."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from .ranks import gather_shards


class Lamb(Optimizer):
    """LAMB as in NVIDIA's Transformer-XL (jitlamb in their lamb.py).

    The step of a weight w is lr * min(||w||, 10) / (||update|| + eps) * update, or lr * update
    while w is zero. The update is Adam's plus weight decay; as in NVIDIA's code, and unlike
    Algorithm 2 of the paper, its moments have no bias correction.
    """

    def __init__(
        self,
        groups: Iterable[dict] | Iterable[Tensor],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-6,
        weight_decay: float = 0.0,
    ) -> None:
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay}
        super().__init__(groups, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        with torch.enable_grad():
            loss = None if closure is None else closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    update = self.adam(parameter, group)
                    update.add_(parameter, alpha=group["weight_decay"])
                    norm = gather_shards(parameter.norm()).clamp(max=10.0)
                    ratio = norm / (gather_shards(update.norm()) + group["eps"])
                    update.mul_(torch.where(norm > 0, ratio, 1.0))
                    parameter.add_(update, alpha=-group["lr"])
        return loss

    def adam(self, parameter: Tensor, group: dict) -> Tensor:
        """Return the mean gradient divided by the root of the mean square."""
        state, (beta1, beta2) = self.state[parameter], group["betas"]
        if not state:
            state |= {name: torch.zeros_like(parameter) for name in ("mean", "square")}
        state["mean"].lerp_(parameter.grad, 1 - beta1)
        state["square"].mul_(beta2).addcmul_(parameter.grad, parameter.grad, value=1 - beta2)
        return state["mean"] / (state["square"].sqrt() + group["eps"])
