"""Muon: momentum with orthogonalized updates (Jordan et al. 2024), AdamW for other weights.

torch.optim.Muon orthogonalizes in bfloat16, which is slow on CPUs without such instructions, and
takes only matrices, while Lightning's automatic optimization needs one optimizer.

X matrices of one shape   P rows   Q columns
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW, Optimizer

from ..model import has_bfloat16_units
from .ranks import gather_shards, shard_like

POLAR_EXPRESS = (
    (8.3007, -24.0376, 17.4661),
    (4.0034, -2.9228, 0.5419),
    (3.4709, -2.5494, 0.5002),
    (2.4901, -1.8343, 0.4368),
)
"""Coefficients of x, x^3 and x^5 in each iteration: optimal for singular values from 0.003 to 1,
with a margin of 0.01 for rounding (Amsel et al. 2025)."""
ADAM_RMS = 0.2  # typical root mean square of AdamW's update, to which orthogonal updates are scaled


class Muon(Optimizer):
    """Muon with Nesterov momentum for groups with `orthogonal: True`, AdamW for others."""

    def __init__(
        self, groups: Iterable[dict], lr: float = 1e-3, *, momentum: float = 0.95, **adamw: Any
    ) -> None:
        self.adamw = AdamW([torch.zeros(())], lr, **adamw)
        defaults = {"orthogonal": False, "momentum": momentum, "weight_decay": 0.0}
        super().__init__(groups, self.adamw.defaults | defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        self.adamw.state = self.state
        self.adamw.param_groups = [group for group in self.param_groups if not group["orthogonal"]]
        # AdamW's step calls the closure, which computes all gradients.
        loss = self.adamw.step(closure)
        for group in self.param_groups:
            if group["orthogonal"]:
                self.step_orthogonal(group)
        return loss

    def step_orthogonal(self, group: dict) -> None:
        """Update a group's matrices; those of one shape are orthogonalized together."""
        weights = [weight for weight in group["params"] if weight.grad is not None]
        if not weights:
            return
        by_shape: dict[torch.Size, list[tuple[Tensor, Tensor]]] = defaultdict(list)
        updates = self.nesterov(weights, group["momentum"])
        for weight, update in zip(weights, updates, strict=True):
            # A shard of a matrix cannot be orthogonalized.
            by_shape[weight.shape].append((weight, gather_shards(update)))
        # Private, here and below: one call for all weights, as in torch's own optimizers.
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        for shape, pairs in by_shape.items():
            same_shape, whole = zip(*pairs, strict=True)
            updates = map(shard_like, orthogonalize(torch.stack(whole)), same_shape)
            step_size = group["lr"] * ADAM_RMS * max(shape) ** 0.5
            torch._foreach_add_(same_shape, list(updates), alpha=-step_size)

    def nesterov(self, weights: list[Tensor], momentum: float) -> tuple[Tensor, ...]:
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["mean"] = torch.zeros_like(weight)
        gradients = [weight.grad for weight in weights]
        means = [self.state[weight]["mean"] for weight in weights]
        torch._foreach_lerp_(means, gradients, 1 - momentum)
        return torch._foreach_lerp(gradients, means, momentum)


def orthogonalize(g_XPQ: Tensor) -> Tensor:
    """Bring each matrix's singular values near 1 by Newton-Schulz iterations."""
    if g_XPQ.size(1) > g_XPQ.size(2):
        return orthogonalize(g_XPQ.mT).mT
    is_rounded = g_XPQ.dtype == torch.float32 and has_bfloat16_units(g_XPQ.device)
    x_XPQ = g_XPQ.to(torch.bfloat16 if is_rounded else g_XPQ.dtype)
    x_XPQ = x_XPQ / (x_XPQ.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for a, b, c in POLAR_EXPRESS:
        gram_XPP = x_XPQ @ x_XPQ.mT
        even_XPP = torch.baddbmm(gram_XPP, gram_XPP, gram_XPP, beta=b, alpha=c)
        x_XPQ = torch.baddbmm(x_XPQ, even_XPP, x_XPQ, beta=a)
    return x_XPQ.to(g_XPQ.dtype)
