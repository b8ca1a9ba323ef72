"""Passes over the text as the duration of a run: trainer.max_epochs becomes a number of steps.

Lightning's epochs are no passes here: the loader of segments is endless.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Trainer

from ..checkpoints.saving import KEY
from ..data.stream import TrainingLoader
from ..errors import invalid, require

BY_EPOCH = {
    "min_epochs": "null; trainer.min_steps counts steps",
    "check_val_every_n_epoch": "null; trainer.val_check_interval counts segments",
    "reload_dataloaders_every_n_epochs": "0, because the text is one endless loader",
}
"""Options of the Trainer that count epochs, and what to use instead."""
CALLBACKS_BY_EPOCH = {
    "every_n_epochs": "every_n_train_steps",
    "save_on_train_epoch_end": "every_n_train_steps",
    "check_on_train_epoch_end": "validations, after which it is checked",
}
"""Arguments of callbacks that count epochs, and what to use instead."""


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
        self.n_step = step + math.ceil(n_segment / self.trainer.accumulate_grad_batches)
        self.trainer.fit_loop.epoch_loop.max_steps = self.last_step

    @property
    def last_step(self) -> int:
        return self.n_step if self.max_steps < 0 else min(self.n_step, self.max_steps)

    def load(self, checkpoint: dict[str, Any]) -> None:
        """Set the steps that remain of a resumed run, also with other rows or segments."""
        loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader") or [{}]
        position = loaders[0]
        n_segment = self.loader.count_segments(self.n_pass) - position.get("consumed", 0)
        if self.loader.find_changes(position.get("read_as", {})):
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
        passes = "1 pass" if self.n_pass == 1 else f"{self.n_pass:,} passes"
        return f"{passes} over the text: {steps}"


def limit_passes(trainer: Trainer, make_loader: Callable[[], Any]) -> PassLimit | None:
    """Replace the Trainer's epochs by the steps of as many passes; None if it has no limit."""
    loop = trainer.fit_loop
    n_pass = loop.max_epochs
    # The only epoch never ends: a least number of them would keep a run from stopping.
    loop.min_epochs = 0
    if n_pass is None or n_pass < 0:
        return None
    loader = make_loader()
    if not isinstance(loader, TrainingLoader):
        return None
    if isinstance(trainer.limit_train_batches, int):
        # Lightning's own epochs, of so many segments.
        return None
    limit = PassLimit(trainer, loader, n_pass, loop.epoch_loop.max_steps)
    loop.max_epochs = -1
    limit.set_steps(0, loader.count_segments(n_pass))
    return limit


def count_steps(trainer: Trainer) -> int:
    """Return the number of training steps; for loaders of another kind, also from epochs."""
    if trainer.max_steps >= 0 or trainer.max_epochs == -1:
        return int(trainer.max_steps)
    return int(trainer.estimated_stepping_batches)


def let_passes_decide(words: list[str], configs: Iterable[Any]) -> list[str]:
    """Return words of a command line in which max_epochs, if given later than max_steps, replaces
    it: in a config after another one, or after all configs."""
    places = [list_trainer_keys(config) for config in configs]
    places.append({word.split("=")[0].removeprefix("--trainer.") for word in words})
    for given in reversed(places):
        if "max_steps" in given:
            return words
        if "max_epochs" in given:
            return [*words, "--trainer.max_steps=-1"]
    return words


def list_trainer_keys(config: Any) -> set[str]:
    trainer = config.get("trainer") if isinstance(config, dict) else None
    return {*trainer} if isinstance(trainer, dict) else set()


def check_least_steps(least: int | None, steps: int) -> None:
    is_possible = least is None or steps < 0 or least <= steps
    require(is_possible, "trainer.min_steps", least, f"at most trainer.max_steps ({steps})")


def check_epochs(trainer: Namespace) -> None:
    """Refuse settings in epochs that have no meaning here, of the Trainer and of callbacks."""
    for name, expected in BY_EPOCH.items():
        require(not trainer[name], f"trainer.{name}", trainer[name], expected)
    for callback in list_callbacks(trainer.callbacks):
        for name, instead in CALLBACKS_BY_EPOCH.items():
            if callback.get(name):
                key = f"trainer.callbacks.{name}"
                raise invalid(key, callback[name], f"null; use {instead}: training has no epochs")


def list_callbacks(callbacks: Any) -> Iterator[dict[str, Any]]:
    """Yield the arguments of each callback."""
    for each in callbacks if isinstance(callbacks, list) else [callbacks]:
        arguments = each.get("init_args") if isinstance(each, Namespace) else None
        if isinstance(arguments, Namespace):
            yield vars(arguments)
