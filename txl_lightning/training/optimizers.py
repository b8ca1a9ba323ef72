"""Optimizers (add to OPTIMIZERS), and schedules as pure functions of the step (AFTER_WARMUP)."""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any, Literal

from torch import nn
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ..errors import convert_fields, require, require_at_least
from .lamb import Lamb
from .muon import Muon
from .ranks import print_once


@dataclass(frozen=True)
class OptimConfig:
    """Settings of the optimizer and its schedule.

    >>> OptimConfig("muon", lr=1e-3, muon_lr=0.02, schedule="wsd").name
    'muon'

    Args:
        name: The optimizer; muon updates the layers' matrices, with adamw for the rest.
        lr: Peak learning rate, whatever the schedule.
        muon_lr: With muon, the peak learning rate of the layers' matrices; default lr.
        betas: Decay rates of the moments of adam, adamw, lamb and muon's adamw.
        eps: Epsilon added to denominators; NVIDIA's lamb uses 1e-6.
        momentum: Momentum of sgd and muon.
        weight_decay: Weight decay of the layers' matrices; other weights do not decay.
        schedule: Learning rate after the warm-up: constant, half a cosine to min_lr_ratio, 1 /
            sqrt(step), linear to min_lr_ratio, or constant and then linear (wsd).
        warmup_steps: Steps of linear warm-up; step 1 has 1 / warmup_steps of the learning rate. A
            schedule with an end takes a tenth of the steps, if these are more than half of them.
        decay_fraction: Fraction of the steps after the warm-up, at the end, in which wsd decays.
        min_lr_ratio: Final learning rate of cosine, linear and wsd, as a fraction of the peak.
        max_skipped_updates: Number of updates with a non-finite loss or gradient to skip before
            stopping.
    """

    name: Literal["adam", "adamw", "adagrad", "lamb", "muon", "sgd"] = "adamw"
    lr: float = 1e-3
    muon_lr: float | None = None
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    momentum: float = 0.95
    weight_decay: float = 0.0
    schedule: Literal["constant", "cosine", "inverse_sqrt", "linear", "wsd"] = "cosine"
    warmup_steps: int = 0
    decay_fraction: float = 0.2
    min_lr_ratio: float = 0.0
    max_skipped_updates: int = 0

    def __post_init__(self) -> None:
        convert_fields(self)
        for field in ("lr", "muon_lr", "eps"):
            value = getattr(self, field)
            require(value is None or value > 0, field, value, "greater than 0")
        for field, values in {"betas": self.betas, "momentum": (self.momentum,)}.items():
            for value in values:
                require(0 <= value < 1, field, value, "at least 0 and less than 1")
        require_at_least(self, weight_decay=0, warmup_steps=0, max_skipped_updates=0)
        for field in ("decay_fraction", "min_lr_ratio"):
            value = getattr(self, field)
            require(0 <= value <= 1, field, value, "from 0 to 1")

    def to_dict(self) -> dict[str, Any]:
        """Return the settings as plain values: lists, no tuples."""
        return asdict(self) | {"betas": list(self.betas)}


def limit_fall(factor: float, config: OptimConfig) -> float:
    """Rescale a factor that falls from 1 to 0 so that it falls from 1 to min_lr_ratio."""
    return config.min_lr_ratio + (1 - config.min_lr_ratio) * factor


def find_wsd_factor(progress: float, config: OptimConfig) -> float:
    """Warmup-stable-decay: linear to min_lr_ratio in the last decay_fraction (Hu et al. 2024)."""
    remaining = 1 - progress
    decay = config.decay_fraction
    return 1.0 if remaining >= decay else limit_fall(remaining / decay, config)


AFTER_WARMUP: dict[str, Callable[[float, OptimConfig], float]] = {
    "constant": lambda progress, config: 1.0,
    # Loshchilov and Hutter 2017, without restarts.
    "cosine": lambda progress, config: limit_fall(0.5 * (1 + math.cos(math.pi * progress)), config),
    "linear": lambda progress, config: limit_fall(1 - progress, config),
    "wsd": find_wsd_factor,
}
"""Factor of the peak learning rate, by the fraction of the steps after the warm-up."""
ENDLESS = ("constant", "inverse_sqrt")
"""Schedules that do not depend on the number of steps."""


def find_lr_factor(
    step: int, config: OptimConfig, max_steps: float, most: float = math.inf
) -> float:
    """Return the factor of the peak learning rate in update `step` + 1.

    The warm-up takes `most` steps at most, and in a short run as many as `shorten_warmup` says.
    inverse_sqrt is sqrt(warmup_steps / (step + 1)), which equals 1 at the end of the warm-up
    (Vaswani et al. 2017, Section 5.3). The others cover the remaining steps, as in the original
    TensorFlow code and NVIDIA's. (The PyTorch code spreads its cosine over all steps.)
    """
    warmup = min(shorten_warmup(config, max_steps), most)
    if step < warmup:
        return min((step + 1) / warmup, 1.0)
    if config.schedule == "inverse_sqrt":
        return math.sqrt(max(warmup, 1) / (step + 1))
    progress = min((step - warmup) / max(max_steps - warmup, 1), 1.0)
    return AFTER_WARMUP[config.schedule](progress, config)


def shorten_warmup(config: OptimConfig, max_steps: float) -> float:
    """Return the steps of the warm-up: a tenth of the run, if it would take more than a half.

    Schedules without an end do not depend on it, also in the warm-up: a run in two parts is equal.
    """
    is_long = config.schedule not in ENDLESS and 0 <= max_steps < 2 * config.warmup_steps
    return max_steps / 10 if is_long else config.warmup_steps


def describe_short_run(config: OptimConfig, max_steps: int) -> str:
    """Return what becomes of a warm-up for which the run is too short; "" for any other."""
    given = f"model.optim.warmup_steps {config.warmup_steps:,}"
    if shorten_warmup(config, max_steps) < config.warmup_steps:
        return f"{given}: more than half of {max_steps:,} steps; the warm-up takes a tenth of them"
    if 0 <= max_steps < config.warmup_steps:
        return f"{given}: the run ends within the warm-up, after {max_steps:,} steps"
    return ""


def check_end(config: OptimConfig, max_steps: int) -> None:
    """Refuse endless training with a schedule that has an end."""
    expected = f"a number of steps, where schedule {config.schedule} ends"
    require(max_steps >= 0 or config.schedule in ENDLESS, "trainer.max_steps", max_steps, expected)


def make_scheduler(config: OptimConfig, optimizer: Optimizer, max_steps: int) -> LambdaLR:
    check_end(config, max_steps)
    if notice := describe_short_run(config, max_steps):
        print_once(notice)
    return LambdaLR(optimizer, lambda step: find_lr_factor(step, config, max_steps))


def reschedule(scheduler: LambdaLR, config: OptimConfig, max_steps: float) -> None:
    """End a schedule after max_steps, with a warm-up of at most a tenth of them."""

    def factor(step: int) -> float:
        return find_lr_factor(step, config, max_steps, max_steps / 10)

    scheduler.lr_lambdas = [factor] * len(scheduler.base_lrs)
    for group, lr in zip(scheduler.optimizer.param_groups, scheduler.base_lrs, strict=True):
        group["lr"] = lr * factor(scheduler.last_epoch)


def apply_settings(scheduler: LambdaLR, fresh: Optimizer) -> None:
    """Replace settings restored from a checkpoint by those of a new optimizer; moments stay."""
    scheduler.base_lrs = [new["lr"] for new in fresh.param_groups]
    for group, new in zip(scheduler.optimizer.param_groups, fresh.param_groups, strict=True):
        settings = {name: new[name] for name in new if name != "params"}
        lr = new["lr"] * scheduler.lr_lambdas[0](scheduler.last_epoch)
        group.update(settings, initial_lr=new["lr"], lr=lr)
        for parameter in group["params"]:
            state = scheduler.optimizer.state.get(parameter, {})
            if group.get("fused") and "step" in state:
                # An optimizer that was not fused counts on the CPU.
                state["step"] = state["step"].to(parameter.device)


OPTIMIZERS: dict[str, tuple[type[Optimizer], tuple[str, ...]]] = {
    # Weight decay is added to the gradient (adam, adagrad, sgd), kept apart from it (adamw, muon),
    # or added to the update (lamb).
    "adam": (Adam, ("lr", "betas", "eps")),
    "adamw": (AdamW, ("lr", "betas", "eps")),
    "adagrad": (Adagrad, ("lr", "eps")),
    "lamb": (Lamb, ("lr", "betas", "eps")),
    "muon": (Muon, ("lr", "betas", "eps", "momentum")),
    "sgd": (SGD, ("lr", "momentum")),
}
"""Class of each optimizer, and the settings of OptimConfig that it takes."""


OF_TOKENS = {"embedding", "head", "lm_head"}
"""Names of modules with weights of tokens; the last is that of a softmax in transformers."""


def make_optimizer(config: OptimConfig, net: nn.Module) -> Optimizer:
    """Make the optimizer of a network.

    Weight decay and muon apply to the weights of linear maps in the layers, and of those that
    compute keys of distances. They do not apply to embeddings and their projections, the softmax,
    tables of positions, u, v, biases and norms, whatever their shape.
    """
    matrices = {
        module.weight
        for name, module in net.named_modules()
        if isinstance(module, nn.Linear) and not OF_TOKENS & {*name.split(".")}
    }
    # A softmax of another name may share an embedding's weights.
    matrices -= {module.weight for module in net.modules() if isinstance(module, nn.Embedding)}
    trained = [p for p in net.parameters() if p.requires_grad]
    inner = {"params": [p for p in trained if p in matrices], "weight_decay": config.weight_decay}
    rest = {"params": [p for p in trained if p not in matrices], "weight_decay": 0.0}
    if config.name == "muon":
        expected = "another optimizer: this network has no nn.Linear to train besides its head"
        require(bool(inner["params"]), "model.optim.name", config.name, expected)
        inner |= {"orthogonal": True, "lr": config.muon_lr or config.lr}
    optimizer_type, settings = OPTIMIZERS[config.name]
    options = {name: getattr(config, name) for name in settings}
    if issubclass(optimizer_type, (Adam, Muon)):
        options["fused"] = all(p.device.type in ("cpu", "cuda") for p in trained)
    optimizer = optimizer_type([inner, rest], **options)
    # Private: a fused one offers a GradScaler to unscale gradients itself, after guard and clip.
    optimizer._step_supports_amp_scaling = False
    return optimizer
