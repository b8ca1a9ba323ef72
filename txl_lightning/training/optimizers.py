"""Optimisers by name; schedules as pure functions of the step."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import require
from .lamb import Lamb
from .muon import Muon


@dataclass(frozen=True)
class OptimConfig:
    """How a network is trained.

    Raises:
        ValueError: a number that no training can have; the message starts with the field's name.
    """

    name: Literal["adam", "adamw", "adagrad", "lamb", "muon", "sgd"] = "adamw"
    """The optimiser; muon is for the layers' matrices and leaves the rest to adamw."""
    lr: float = 1e-3
    """Peak learning rate, whatever the schedule."""
    matrix_lr: float | None = None
    """With muon, the peak learning rate of the layers' matrices; left out, lr."""
    betas: tuple[float, float] = (0.9, 0.999)
    """Decay rates of the moments of adam, adamw, lamb and, outside the matrices, muon."""
    eps: float = 1e-8
    """Added to denominators; NVIDIA's lamb has 1e-6."""
    momentum: float = 0.95
    """Of sgd and muon."""
    weight_decay: float = 0.0
    """Decay of the layers' matrices; nothing else decays."""
    schedule: Literal["constant", "cosine", "inverse_sqrt", "linear", "wsd"] = "cosine"
    """What follows the warm-up: no change, half a cosine to min_lr_ratio, 1 / sqrt(step), a line to
    min_lr_ratio, or no change and then such a line."""
    warmup_steps: int = 0
    """Steps in which the learning rate grows linearly; step 1 has 1 / warmup_steps of it."""
    decay_fraction: float = 0.2
    """The last part of the steps, in which wsd decays."""
    min_lr_ratio: float = 0.0
    """Where cosine, linear and wsd end, as a fraction of the peak."""
    skip_budget: int = 0
    """Updates with a loss or gradient that is not finite, before the one that stops training."""

    def __post_init__(self) -> None:
        require(self.lr > 0, "lr", self.lr, "greater than 0")
        matrix_lr = self.matrix_lr
        require(matrix_lr is None or matrix_lr > 0, "matrix_lr", matrix_lr, "greater than 0")
        require(self.eps > 0, "eps", self.eps, "greater than 0")
        for beta in self.betas:
            require(0 <= beta < 1, "betas", beta, "at least 0 and less than 1")
        require(0 <= self.momentum < 1, "momentum", self.momentum, "at least 0 and less than 1")
        for field in ("weight_decay", "warmup_steps", "skip_budget"):
            require(getattr(self, field) >= 0, field, getattr(self, field), "0 or more")
        for field in ("decay_fraction", "min_lr_ratio"):
            value = getattr(self, field)
            require(0 <= value <= 1, field, value, "from 0 to 1")

    def plain(self) -> dict[str, Any]:
        """As a checkpoint and a YAML file hold it: no tuples."""
        return asdict(self) | {"betas": list(self.betas)}

    @staticmethod
    def of(plain: dict[str, Any]) -> "OptimConfig":
        """What `plain` was made of."""
        return OptimConfig(**plain | {"betas": tuple(plain["betas"])})


def constant(progress: float, config: OptimConfig) -> float:
    """No change."""
    return 1.0


def cosine(progress: float, config: OptimConfig) -> float:
    """Half a cosine from 1 to min_lr_ratio (Loshchilov and Hutter 2017, without restarts)."""
    low = config.min_lr_ratio
    return low + (1 - low) * 0.5 * (1 + math.cos(math.pi * progress))


def linear(progress: float, config: OptimConfig) -> float:
    """A line from 1 to min_lr_ratio."""
    low = config.min_lr_ratio
    return low + (1 - low) * (1 - progress)


def wsd(progress: float, config: OptimConfig) -> float:
    """Stable, then linear to min_lr_ratio in the last decay_fraction (Hu et al. 2024)."""
    low, span = config.min_lr_ratio, config.decay_fraction
    left = 1 - progress
    return 1.0 if left >= span else low + (1 - low) * left / span


AFTER_WARMUP = {"constant": constant, "cosine": cosine, "linear": linear, "wsd": wsd}


def lr_factor(step: int, config: OptimConfig, max_steps: int) -> float:
    """What the peak learning rate is multiplied by in update `step` + 1.

    inverse_sqrt is sqrt(warmup_steps / (step + 1)), so that it leaves the warm-up at the peak
    (Vaswani et al. 2017, Section 5.3); the others spread over the steps that remain, as the
    original's in TensorFlow and NVIDIA's do. The original's in PyTorch spreads its cosine over all
    steps: it leaves the warm-up a little under the peak. Both in PyTorch make update 1 at the peak
    and then lag a step behind in the warm-up; the one in TensorFlow makes update 1 at 0.
    """
    warmup = config.warmup_steps
    if step < warmup:
        return (step + 1) / warmup
    if config.schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / (step + 1))
    progress = min((step - warmup) / max(max_steps - warmup, 1), 1.0)
    return AFTER_WARMUP[config.schedule](progress, config)


def check_end(config: OptimConfig, max_steps: int) -> None:
    """Refuse endless training with a schedule that must know its end."""
    if max_steps < 0 and config.schedule in ("cosine", "linear", "wsd"):
        message = f"trainer.max_steps: {config.schedule} must know where it ends; give a number"
        raise ValueError(message)


def make_scheduler(config: OptimConfig, optimizer: Optimizer, max_steps: int) -> LambdaLR:
    """The schedule over `max_steps` updates.

    Raises:
        ValueError: the schedule must know its end and training has none.
    """
    check_end(config, max_steps)
    return LambdaLR(optimizer, lambda step: lr_factor(step, config, max_steps))


def set_as_given(scheduler: LambdaLR, fresh: Optimizer) -> None:
    """Let the settings win over those that a checkpoint restored; momentum and moments stay.

    Args:
        scheduler: restored, with its optimiser.
        fresh: an optimiser of the same network by the settings that are given now.
    """
    groups = scheduler.optimizer.param_groups
    scheduler.base_lrs = [group["lr"] for group in fresh.param_groups]
    for group, given, base, factor in zip(
        groups, fresh.param_groups, scheduler.base_lrs, scheduler.lr_lambdas, strict=True
    ):
        group.update({name: given[name] for name in given if name != "params"})
        group["initial_lr"] = base
        group["lr"] = base * factor(scheduler.last_epoch)


def make_optimizer(config: OptimConfig, net: nn.Module) -> Optimizer:
    """The optimiser of `net`.

    Only the layers' matrices decay, and are what muon makes orthogonal: the weights of linear maps
    in the layers, and of those that make keys of distances. Embeddings and their projections, the
    softmax, tables of positions, u, v, biases and normalisations do neither, whatever their shape.
    """
    matrices = {
        module.weight
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and not name.startswith(("embedding.", "head."))
    }
    trained = [p for p in net.parameters() if p.requires_grad]
    inner = [p for p in trained if p in matrices]
    rest = [p for p in trained if p not in matrices]
    groups = [
        {"params": inner, "weight_decay": config.weight_decay},
        {"params": rest, "weight_decay": 0.0},
    ]
    return OPTIMIZERS[config.name](groups, config)


def adam(groups: list[dict], config: OptimConfig) -> Optimizer:
    """Kingma and Ba 2015; weight decay is added to the gradient."""
    return Adam(groups, lr=config.lr, betas=config.betas, eps=config.eps)


def adamw(groups: list[dict], config: OptimConfig) -> Optimizer:
    """Loshchilov and Hutter 2019; weight decay is apart."""
    return AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps)


def adagrad(groups: list[dict], config: OptimConfig) -> Optimizer:
    """Duchi et al. 2011; weight decay is added to the gradient."""
    return Adagrad(groups, lr=config.lr, eps=config.eps)


def lamb(groups: list[dict], config: OptimConfig) -> Optimizer:
    """You et al. 2020, as NVIDIA has it; weight decay is added to the update."""
    return Lamb(groups, config.lr, betas=config.betas, eps=config.eps)


def sgd(groups: list[dict], config: OptimConfig) -> Optimizer:
    """Gradient descent with momentum; weight decay is added to the gradient."""
    return SGD(groups, lr=config.lr, momentum=config.momentum)


def muon(groups: list[dict], config: OptimConfig) -> Optimizer:
    """Jordan et al. 2024, for the layers' matrices."""
    inner, rest = groups
    return Muon(
        [inner | {"orthogonal": True, "lr": config.matrix_lr or config.lr}, rest],
        config.lr,
        momentum=config.momentum,
        betas=config.betas,
        eps=config.eps,
    )


OPTIMIZERS: dict[str, Callable[[list[dict], OptimConfig], Optimizer]] = {
    "adam": adam,
    "adamw": adamw,
    "adagrad": adagrad,
    "lamb": lamb,
    "muon": muon,
    "sgd": sgd,
}
