"""The duration of a run in steps or passes over its text, and all that we write into its loops.

Lightning's epochs are no passes here: the loader of segments is endless, so that
trainer.max_epochs becomes a number of steps. Only with limit_train_batches, overfit_batches or
fast_dev_run has an epoch a number of segments. Private members of the Trainer, its loops and its
connectors are used in this file only; run_state.py also changes what loops have saved.
"""

import math
import sys
from argparse import Namespace  # jsonargparse's is one; training in Python needs no jsonargparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.core.optimizer import _init_optimizers_and_lr_schedulers

from ..data.stream import TrainingLoader
from ..errors import require

BY_EPOCH = {
    "min_epochs": "null; trainer.min_steps counts steps",
    "check_val_every_n_epoch": "null; trainer.val_check_interval counts segments",
}
"""Options of the Trainer that count epochs, and what to use instead."""
CALLBACKS_BY_EPOCH = {
    "every_n_epochs": "null; use every_n_train_steps",
    "save_on_train_epoch_end": "null; use every_n_train_steps",
    "check_on_train_epoch_end": "null, to check after validations",
    "prune_on_train_epoch_end": "false, to prune after validations",
    "update_starting_at_epoch": "null; use update_starting_at_step",
    "interval": "step",
    "logging_interval": "step",
}
"""Settings of callbacks that may count epochs, and what is expected instead."""


@dataclass(frozen=True)
class Progress:
    """Progress of a run, by the counts of Lightning."""

    step: int = 0
    """Steps that are taken."""
    epoch: int = 0
    """Epochs before the one that is read."""
    n_batch: int = 0
    """Segments of this epoch that are read."""


NEW_RUN = Progress()


def read_progress(checkpoint: Mapping[str, Any]) -> Progress:
    saved = checkpoint["loops"]["fit_loop"]
    n_batch = saved["epoch_loop.batch_progress"]["current"]["processed"]
    n_epoch = saved["epoch_progress"]["current"]["ready"]
    return Progress(checkpoint["global_step"], max(n_epoch - 1, 0), n_batch)


@dataclass
class PassLimit:
    """The steps of a run of some passes over its text."""

    trainer: Trainer
    loader: TrainingLoader
    n_pass: int
    max_steps: int
    """A limit besides, or -1."""

    def set_steps(self, n_segment: float, done: Progress = NEW_RUN) -> None:
        """End the run when so many more segments are read.

        Lightning takes a step where the accumulation divides the segments of an epoch, and at its
        end; steps that are done may have had another accumulation.
        """
        per_step = self.trainer.accumulate_grad_batches
        n_taken = done.n_batch // per_step
        if has_epochs(self.trainer):
            per_epoch = count_epoch_steps(self.trainer)
            is_over = done.n_batch >= self.trainer.limit_train_batches
            n_taken = per_epoch if is_over else n_taken
            n_more = (self.n_pass - done.epoch) * per_epoch - n_taken
        elif n_segment > 0:
            n_more = math.ceil((done.n_batch + n_segment) / per_step) - n_taken
        else:
            # Passes that are whole may have ended between two steps of this accumulation.
            n_more = 0
        self.n_step = done.step + max(n_more, 0) if self.n_pass else 0
        set_last_step(self.trainer, self.last_step)

    @property
    def last_step(self) -> int:
        return self.n_step if self.max_steps < 0 else min(self.n_step, self.max_steps)

    def load(self, position: dict[str, Any], tokens: int, done: Progress) -> None:
        """Set the steps that remain of a run that is resumed at a position of its text.

        Also with other rows or segments; `tokens` are those that were read.
        """
        # Earlier releases did not save n_read.
        position = {"n_read": tokens, "read_as": {}} | position
        consumed, n_before = self.loader.find_position(position)
        per_pass = self.loader.count_segments(1)
        before = per_pass * n_before / self.loader.count_targets(per_pass)
        n_segment = max(self.loader.count_segments(self.n_pass) - before, 0) - consumed
        self.set_steps(n_segment, done)

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
    n_pass = trainer.max_epochs
    limit = None
    n_epoch = trainer.reload_dataloaders_every_n_epochs
    # A new loader would read the text from its beginning.
    is_kept = not n_epoch or not isinstance(make_loader(), TrainingLoader)
    expected = "0, because the text is one endless loader"
    require(is_kept, "trainer.reload_dataloaders_every_n_epochs", n_epoch, expected)
    if not has_epochs(trainer):
        need_no_epoch(trainer)
        refuse_epochs(trainer)
    is_limited = n_pass >= 0 and trainer.limit_train_batches != 0
    if is_limited and isinstance(loader := make_loader(), TrainingLoader):
        limit = PassLimit(trainer, loader, n_pass, trainer.max_steps)
        limit.set_steps(loader.count_segments(n_pass))
        if not has_epochs(trainer):
            end_without_epochs(trainer)
    check_least_steps(trainer.min_steps, trainer.max_steps)
    check_least_epochs(trainer)
    return limit


def count_steps(trainer: Trainer) -> int:
    """Return the number of training steps; for loaders of another kind, also from epochs."""
    if trainer.max_steps >= 0 or trainer.max_epochs == -1:
        return int(trainer.max_steps)
    return int(trainer.estimated_stepping_batches)


def check_least_steps(least: int | None, steps: int) -> None:
    is_possible = least is None or steps < 0 or least <= steps
    require(is_possible, "trainer.min_steps", least, f"at most trainer.max_steps ({steps})")


def check_least_epochs(trainer: Trainer) -> None:
    """Refuse more epochs than the steps allow: Lightning would not validate after the last one."""
    least = trainer.min_epochs
    if not has_epochs(trainer) or not least or trainer.max_steps < 0:
        return
    n_epoch = trainer.max_steps // count_epoch_steps(trainer)
    is_added = trainer.min_steps is not None and least == 1
    if trainer.fast_dev_run or (least > n_epoch and is_added):
        # Lightning sets the last step of fast_dev_run, and adds an epoch to trainer.min_steps.
        trainer.fit_loop.min_epochs = 0
        return
    expected = f"at most {n_epoch}, the whole epochs in the run's {trainer.max_steps} steps"
    require(least <= n_epoch, "trainer.min_epochs", least, expected)


def count_epoch_steps(trainer: Trainer) -> int:
    """Return the steps of an epoch of Lightning's, which takes one at its end."""
    return math.ceil(trainer.limit_train_batches / trainer.accumulate_grad_batches)


def refuse_epochs(trainer: Trainer) -> None:
    """Refuse options in epochs, which never end here."""
    for name, expected in BY_EPOCH.items():
        value = getattr(trainer, name)
        # Lightning's default, which cannot be told from a setting.
        is_default = name == "check_val_every_n_epoch" and value == 1
        require(not value or is_default, f"trainer.{name}", value, expected)


def refuse_callbacks_by_epoch(trainer: Namespace) -> None:
    """Refuse settings of callbacks that wait for epochs, which never end here."""
    if has_epochs(trainer):
        return
    given = trainer.callbacks if isinstance(trainer.callbacks, list) else [trainer.callbacks]
    for callback in given:
        settings = getattr(callback, "init_args", None) or Namespace()
        for name, instead in CALLBACKS_BY_EPOCH.items():
            value = getattr(settings, name, None)
            expected = f"{instead}: no epoch ends in training"
            require(not counts_epochs(name, value), f"trainer.callbacks.{name}", value, expected)


def counts_epochs(name: str, value: Any) -> bool:
    if name in ("interval", "logging_interval"):
        return bool(value == "epoch")
    # For Lightning, each validation is one of every epoch.
    return bool(value) and not (name == "every_n_epochs" and value == 1)


def repeat_fit_start(trainer: Trainer, module: LightningModule, callbacks: list[Callback]) -> None:
    """Repeat what Lightning does before a resumed state is known with fsdp2, and otherwise after.

    These callbacks plan by the steps that are left, and so does the schedule.
    """
    for each in callbacks:
        each.on_fit_start(trainer, module)
    if module.pass_limit:
        # Private, because configure_optimizers may return a schedule in six forms.
        _, [fresh] = _init_optimizers_and_lr_schedulers(module)
        [config] = trainer.lr_scheduler_configs
        config.scheduler.lr_lambdas = fresh.scheduler.lr_lambdas


def set_last_step(trainer: Trainer, step: int) -> None:
    """Replace trainer.max_steps, which can only be read."""
    trainer.fit_loop.epoch_loop.max_steps = step


def end_without_epochs(trainer: Trainer) -> None:
    """Let steps alone end a run, whose only epoch never ends."""
    trainer.fit_loop.max_epochs = -1


def need_no_epoch(trainer: Trainer) -> None:
    """Undo Lightning's addition to trainer.min_steps, one whole epoch: no run would stop."""
    if trainer.min_steps is not None and trainer.fit_loop.min_epochs == 1:
        trainer.fit_loop.min_epochs = 0


def set_next_validation(trainer: Trainer, is_due: bool) -> None:
    """Let a validation follow the segment that is read, or let none follow soon."""
    trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1 if is_due else sys.maxsize


def is_validation_next(trainer: Trainer) -> bool:
    """Return True if Lightning will validate after this segment."""
    # Private, because nothing else knows it before the hooks of the validation. None: only a step
    # that reads the loader itself needs its fetcher.
    return trainer.fit_loop.epoch_loop._should_check_val_fx(None)


def validate_now(trainer: Trainer) -> None:
    """Validate between two steps, as Lightning does, from the first segment."""
    epochs = trainer.fit_loop.epoch_progress.current
    n_completed = epochs.completed
    # Lightning loads the end of an epoch as completed, but its validation is of that epoch.
    epochs.completed = min(n_completed, epochs.ready - 1)
    loop = trainer.fit_loop.epoch_loop.val_loop
    loop.restarting = False
    trainer.validating = True
    loop.run()
    trainer.training = True
    epochs.completed = n_completed


def log_as_step(trainer: Trainer, step: int) -> None:
    """Let what is logged next count as logged before this step, counted from 0."""
    # Private: loggers count from it, and Lightning continues a finished run one step too low.
    trainer.fit_loop.epoch_loop._batches_that_stepped = step


def replace_step_logging(trainer: Trainer, log: Callable[[], None]) -> None:
    """Call `log` where Lightning logs a step: after the hooks that write its checkpoints."""
    # Private, because no hook comes earlier and knows the values.
    trainer._logger_connector.update_train_step_metrics = log


def log_step(trainer: Trainer) -> None:
    """Log the segment that has ended, as Lightning does."""
    connector = trainer._logger_connector
    type(connector).update_train_step_metrics(connector)


def replace_signal_handlers(trainer: Trainer) -> None:
    """Disable Lightning's signal handlers: with them, ranks wait for each other within a step."""
    # Private, because no setting turns them off (the tests with two processes would hang).
    trainer._signal_connector.register_signal_handlers = lambda: None


def save_alone(trainer: Trainer, path: Path) -> None:
    """Write a checkpoint of this rank alone: others may never come to the barrier that follows."""
    trainer.strategy.barrier = lambda *_: None
    try:
        trainer.save_checkpoint(path)
    finally:
        del trainer.strategy.barrier
