"""Muon: momentum whose every update is made orthogonal (Jordan et al. 2024), AdamW for the rest.

torch.optim.Muon orthogonalises in bfloat16, which a CPU may have no instructions for, and takes
matrices only, while Lightning's automatic optimisation wants one optimiser.

X matrices of one shape   P rows   Q columns
"""

from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import AdamW, Optimizer

from .ranks import gather_shards

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x^3 and x^5 that bring small singular values near 1 fastest."""

ADAM_RMS = 0.2
"""Root mean square of AdamW's usual update, which an orthogonal one is scaled to."""


class Muon(Optimizer):
    """Muon with Nesterov momentum for the groups that say `orthogonal: True`, AdamW for others."""

    def __init__(
        self, groups: Iterable[dict], lr: float = 1e-3, *, momentum: float = 0.95, **adamw: Any
    ) -> None:
        self.adamw = AdamW([torch.zeros(())], lr, **adamw)
        own = {"orthogonal": False, "momentum": momentum, "weight_decay": 0.0}
        super().__init__(groups, self.adamw.defaults | own)

    @torch.no_grad()
    def step(self, closure: Callable[[], Tensor] | None = None) -> Tensor | None:
        self.adamw.state = self.state
        self.adamw.param_groups = [group for group in self.param_groups if not group["orthogonal"]]
        # It calls the closure, which computes all gradients.
        loss = self.adamw.step(closure)
        for group in self.param_groups:
            if group["orthogonal"]:
                self.step_orthogonal(group)
        return loss

    def step_orthogonal(self, group: dict) -> None:
        """Update a group's matrices; those of one shape are made orthogonal together."""
        by_shape: dict[torch.Size, list[Tensor]] = defaultdict(list)
        for parameter in group["params"]:
            if parameter.grad is not None:
                by_shape[parameter.shape].append(parameter)
        for shape, parameters in by_shape.items():
            # A part of a matrix cannot be made orthogonal.
            whole = [gather_shards(self.nesterov(p, group["momentum"])) for p in parameters]
            updates = orthogonalize(torch.stack(whole))
            scale = group["lr"] * ADAM_RMS * max(shape) ** 0.5
            for parameter, update in zip(parameters, updates, strict=True):
                if isinstance(parameter, DTensor):
                    place = parameter.device_mesh, parameter.placements
                    # Every device has computed the whole update, and takes its own part of it.
                    update = distribute_tensor(update, *place, src_data_rank=None)
                parameter.mul_(1 - group["lr"] * group["weight_decay"])
                parameter.add_(update, alpha=-scale)

    def nesterov(self, parameter: Tensor, momentum: float) -> Tensor:
        """Return the gradient, looking one step ahead along its running mean."""
        state = self.state[parameter]
        if not state:
            state["mean"] = torch.zeros_like(parameter)
        state["mean"].lerp_(parameter.grad, 1 - momentum)
        return parameter.grad.lerp(state["mean"], momentum)


def orthogonalize(g_XPQ: Tensor, n_iteration: int = 5) -> Tensor:
    """Bring each matrix's singular values near 1 by Newton-Schulz iterations."""
    if g_XPQ.size(1) > g_XPQ.size(2):
        return orthogonalize(g_XPQ.mT, n_iteration).mT
    a, b, c = NEWTON_SCHULZ
    x_XPQ = g_XPQ / (g_XPQ.norm(dim=(1, 2), keepdim=True) + 1e-7)
    for _ in range(n_iteration):
        gram_XPP = x_XPQ @ x_XPQ.mT
        even_XPP = torch.baddbmm(gram_XPP, gram_XPP, gram_XPP, beta=b, alpha=c)
        x_XPQ = torch.baddbmm(x_XPQ, even_XPP, x_XPQ, beta=a)
    return x_XPQ
