"""Optimisers by name; schedules as pure functions of the step."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR


@dataclass(frozen=True)
class OptimConfig:
    """How a network is trained.

    Raises:
        ValueError: a number that no training can have; the message starts with the field's name.
    """

    name: Literal["adam", "adamw", "sgd"] = "adamw"
    """The optimiser."""
    lr: float = 1e-3
    """Peak learning rate, whatever the schedule."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Adam's decay rates of the moments."""
    eps: float = 1e-8
    """Added to Adam's denominator."""
    momentum: float = 0.0
    """Of SGD."""
    weight_decay: float = 0.0
    """Decay of the matrices; biases, normalisations, u and v have none."""
    schedule: Literal["constant", "cosine", "inverse_sqrt", "wsd"] = "cosine"
    """What follows the warm-up: no change, half a cosine to min_lr_ratio, 1 / sqrt(step), or no
    change and then a linear decay."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows linearly; step 1 has 1 / warmup_steps of it."""
    decay_fraction: float = 0.2
    """The last part of the steps, in which wsd decays."""
    min_lr_ratio: float = 0.0
    """Where cosine and wsd end, as a fraction of the peak."""

    def __post_init__(self) -> None:
        _require(self.lr > 0, "lr", self.lr, "greater than 0")
        _require(self.eps > 0, "eps", self.eps, "greater than 0")
        for beta in self.betas:
            _require(0 <= beta < 1, "betas", beta, "at least 0 and less than 1")
        for field in ("momentum", "weight_decay", "warmup_steps"):
            _require(getattr(self, field) >= 0, field, getattr(self, field), "0 or more")
        for field in ("decay_fraction", "min_lr_ratio"):
            value = getattr(self, field)
            _require(0 <= value <= 1, field, value, "from 0 to 1")


def constant(progress: float, config: OptimConfig) -> float:
    """No change."""
    return 1.0


def cosine(progress: float, config: OptimConfig) -> float:
    """Half a cosine from 1 to min_lr_ratio (Loshchilov and Hutter 2017, without restarts)."""
    low = config.min_lr_ratio
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))


def wsd(progress: float, config: OptimConfig) -> float:
    """Stable, then linear to min_lr_ratio in the last decay_fraction (Hu et al. 2024)."""
    low, span = config.min_lr_ratio, config.decay_fraction
    left = 1 - progress
    return 1.0 if left >= span else low + (1 - low) * left / span


AFTER_WARMUP = {"constant": constant, "cosine": cosine, "wsd": wsd}


def lr_factor(step: int, config: OptimConfig, max_steps: int) -> float:
    """What the peak learning rate is multiplied by in update `step` + 1.

    inverse_sqrt is sqrt(warmup_steps / (step + 1)), so that it leaves the warm-up at the peak
    (Vaswani et al. 2017, Section 5.3); the others spread over the steps that remain.
    """
    warmup = config.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / (step + 1))
    progress = min((step - warmup) / max(max_steps - warmup, 1), 1.0)
    return AFTER_WARMUP[config.schedule](progress, config)


def make_scheduler(config: OptimConfig, optimizer: Optimizer, max_steps: int) -> LambdaLR:
    """The schedule over `max_steps` updates.

    Raises:
        ValueError: the schedule must know its end and training has none.
    """
    if max_steps < 0 and config.schedule in ("cosine", "wsd"):
        message = f"trainer.max_steps: {config.schedule} must know where it ends; give a number"
        raise ValueError(message)
    return LambdaLR(optimizer, lambda step: lr_factor(step, config, max_steps))


def make_optimizer(config: OptimConfig, net: nn.Module) -> Optimizer:
    """The optimiser of `net`; only matrices decay."""
    parameters = list(net.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim == 2], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.ndim != 2], "weight_decay": 0.0},
    ]
    return OPTIMIZERS[config.name](groups, config)


OPTIMIZERS: dict[str, Callable[[list[dict], OptimConfig], Optimizer]] = {
    "adam": lambda groups, c: Adam(groups, lr=c.lr, betas=c.betas, eps=c.eps, fused=True),
    "adamw": lambda groups, c: AdamW(groups, lr=c.lr, betas=c.betas, eps=c.eps, fused=True),
    "sgd": lambda groups, c: SGD(groups, lr=c.lr, momentum=c.momentum),
}


def _require(holds: bool, field: str, value: object, allowed: str) -> None:
    if not holds:
        raise ValueError(f"{field}: {value} is not possible; it must be {allowed}")
