"""Passes over the text as the duration of a run: trainer.max_epochs becomes a number of steps.

Lightning's epochs are no passes here: the loader of segments is endless. Only with
limit_train_batches, overfit_batches or fast_dev_run has an epoch a number of segments.
"""

import math
from argparse import Namespace  # jsonargparse's is one; training in Python needs no jsonargparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from ..data.stream import TrainingLoader
from ..errors import invalid, require
from ..runs.folder import KEY
from .loops import end_without_epochs, need_no_epoch, set_last_step

BY_EPOCH = {
    "min_epochs": "null; trainer.min_steps counts steps",
    "check_val_every_n_epoch": "null; trainer.val_check_interval counts segments",
    "reload_dataloaders_every_n_epochs": "0, because the text is one endless loader",
}
"""Options of the Trainer that count epochs, and what to use instead."""
CALLBACKS_BY_EPOCH = {
    "every_n_epochs": "null; use every_n_train_steps",
    "save_on_train_epoch_end": "null; use every_n_train_steps",
    "check_on_train_epoch_end": "null; use validations, after which it is checked",
    "prune_on_train_epoch_end": "false, to prune after validations",
    "scheduling": "{0: N}, for all steps",
    "interval": "step",
    "logging_interval": "step",
}
"""Arguments of callbacks that count epochs, and what is expected instead."""


@dataclass
class PassLimit:
    """The steps of a run of some passes over its text."""

    trainer: Trainer
    loader: TrainingLoader
    n_pass: int
    max_steps: int
    """A limit besides, or -1."""

    def set_steps(self, step: int, n_segment: float) -> None:
        """End the run when so many more segments are read after a step."""
        self.n_step = step + math.ceil(n_segment / self.accumulation)
        if has_epochs(self.trainer):
            # Lightning takes a step at the end of an epoch.
            n_batch = self.trainer.limit_train_batches
            self.n_step = self.n_pass * math.ceil(n_batch / self.accumulation)
        set_last_step(self.trainer, self.last_step)

    @property
    def accumulation(self) -> int:
        """Segments in a step."""
        for callback in self.trainer.callbacks:
            if isinstance(callback, GradientAccumulationScheduler):
                # It sets the Trainer's only when training starts.
                return callback.get_accumulate_grad_batches(0)
        return self.trainer.accumulate_grad_batches

    @property
    def last_step(self) -> int:
        return self.n_step if self.max_steps < 0 else min(self.n_step, self.max_steps)

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Set the steps that remain of a resumed run, also with other rows or segments."""
        loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader") or [{}]
        position = loaders[0]
        n_segment = self.loader.count_segments(self.n_pass)
        changes = self.loader.find_changes(position.get("read_as", {}))
        if not changes:
            n_segment -= position["consumed"]
        # Of another text nothing was read.
        elif "text" not in changes:
            # It reads the text from its beginning: what remains are tokens.
            per_pass = self.loader.count_segments(1)
            done = checkpoint.get(KEY, {}).get("tokens", 0) / self.loader.count_targets(per_pass)
            n_segment = max(self.n_pass - done, 0.0) * per_pass
        self.set_steps(checkpoint["global_step"], n_segment)

    def describe(self) -> str:
        """Return the passes as steps, for the user."""
        steps = f"{self.trainer.max_steps:,} steps"
        if self.trainer.max_steps < self.n_step:
            return f"max_steps ends the run before its passes over the text: {steps}"
        if has_epochs(self.trainer):
            batches = self.trainer.limit_train_batches
            return f"trainer.max_epochs {self.n_pass:,}, of {batches:,} segments: {steps}"
        passes = "1 pass" if self.n_pass == 1 else f"{self.n_pass:,} passes"
        return f"{passes} over the text: {steps}"


def has_epochs(trainer: Trainer | Namespace) -> bool:
    """Return True if an epoch of Lightning's ends, after a number of segments."""
    limits = trainer.limit_train_batches, trainer.overfit_batches
    return bool(trainer.fast_dev_run) or any(type(n) is int and n > 0 for n in limits)


def limit_passes(trainer: Trainer, make_loader: Callable[[], Any]) -> PassLimit | None:
    """Replace the Trainer's epochs by the steps of as many passes; None if it has no limit."""
    n_pass, limit = trainer.max_epochs, None
    if not has_epochs(trainer):
        need_no_epoch(trainer)
        refuse_epochs(trainer, default_every=1)
    is_limited = n_pass >= 0 and trainer.limit_train_batches != 0
    if is_limited and isinstance(loader := make_loader(), TrainingLoader):
        limit = PassLimit(trainer, loader, n_pass, trainer.max_steps)
        limit.set_steps(0, loader.count_segments(n_pass))
        if not has_epochs(trainer):
            end_without_epochs(trainer)
    check_least_steps(trainer.min_steps, trainer.max_steps)
    return limit


def count_steps(trainer: Trainer) -> int:
    """Return the number of training steps; for loaders of another kind, also from epochs."""
    if trainer.max_steps >= 0 or trainer.max_epochs == -1:
        return int(trainer.max_steps)
    return int(trainer.estimated_stepping_batches)


def check_least_steps(least: int | None, steps: int) -> None:
    is_possible = least is None or steps < 0 or least <= steps
    require(is_possible, "trainer.min_steps", least, f"at most trainer.max_steps ({steps})")


def check_epochs(trainer: Namespace) -> None:
    """Refuse settings in epochs that have no meaning here, of the Trainer and of callbacks."""
    if has_epochs(trainer):
        return
    refuse_epochs(trainer)
    for callback in list_callbacks(trainer.callbacks):
        for name, instead in CALLBACKS_BY_EPOCH.items():
            if goes_by_epochs(name, callback.get(name)):
                key = f"trainer.callbacks.{name}"
                raise invalid(key, callback[name], f"{instead}: training has no epochs")


def refuse_epochs(trainer: Trainer | Namespace, default_every: int | None = None) -> None:
    """Refuse options in epochs; `default_every` is Lightning's default of check_val_every_n_epoch,
    which cannot be told from a setting."""
    for name, expected in BY_EPOCH.items():
        value = getattr(trainer, name)
        is_default = name == "check_val_every_n_epoch" and value == default_every
        require(not value or is_default, f"trainer.{name}", value, expected)


def goes_by_epochs(name: str, value: Any) -> bool:
    """Return True if an argument of a callback asks for an epoch that never ends or begins."""
    if name == "scheduling":
        return isinstance(value, dict) and {*value} != {0}
    if name in ("interval", "logging_interval"):
        return value == "epoch"
    # For Lightning, each validation is one of every epoch.
    return bool(value) and not (name == "every_n_epochs" and value == 1)


def list_callbacks(callbacks: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each callback."""
    for each in callbacks if isinstance(callbacks, list) else [callbacks]:
        arguments = getattr(each, "init_args", None)
        if isinstance(arguments, Namespace):
            yield vars(arguments)
