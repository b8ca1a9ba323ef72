"""LAMB: Adam with updates scaled to the norm of each weight (You et al. 2020).

X weights of a group
"""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

from .ranks import gather_shards, local_part


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
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self.step_group(weights, group)
        return loss

    def step_group(self, weights: list[Tensor], group: dict) -> None:
        """Update all weights of a group together: a GPU is slow to start an operation for each."""
        updates = self.adam(weights, group)
        # Private, here and below: one call for all weights, as in torch's own optimizers.
        if group["weight_decay"]:
            torch._foreach_add_(updates, weights, alpha=group["weight_decay"])
        norm_X, update_norm_X = (
            torch.stack([gather_shards(norm) for norm in torch._foreach_norm(tensors)])
            for tensors in (weights, updates)
        )
        norm_X = norm_X.clamp(max=10.0)
        ratio_X = torch.where(norm_X > 0, norm_X / (update_norm_X + group["eps"]), 1.0)
        torch._foreach_mul_([local_part(update) for update in updates], ratio_X.unbind())
        torch._foreach_add_(weights, updates, alpha=-group["lr"])

    def adam(self, weights: list[Tensor], group: dict) -> tuple[Tensor, ...]:
        """Return the mean gradients divided by the roots of the mean squares."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight] |= {n: torch.zeros_like(weight) for n in ("mean", "square")}
        beta1, beta2 = group["betas"]
        gradients = [weight.grad for weight in weights]
        means, squares = ([self.state[w][name] for w in weights] for name in ("mean", "square"))
        torch._foreach_lerp_(means, gradients, 1 - beta1)
        torch._foreach_mul_(squares, beta2)
        torch._foreach_addcmul_(squares, gradients, gradients, 1 - beta2)
        roots = torch._foreach_sqrt(squares)
        torch._foreach_add_(roots, group["eps"])
        return torch._foreach_div(means, roots)
