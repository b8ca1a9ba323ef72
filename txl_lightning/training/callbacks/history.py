"""What was logged over the whole run, however often it stopped."""

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ...data.stream import Segment

MOST = 2000
"""Points of a curve; of more, every second one is left out, and so on."""
BITS = "bits_per_"
Point = tuple[int, float]


class History(Callback):
    """Every number that is logged in fit, over the tokens read before it.

    It is in the checkpoint, so that a run that continues has one history.

    Attributes:
        curves: Points (tokens, value) of each number of training, by its name.
        validations: A row for each: step, tokens, and all that it measured of the first text.
        tokens: How many were read so far.
        seconds: The time that fit took, of all its parts.
    """

    def __init__(self) -> None:
        self.curves: dict[str, list[Point]] = {}
        self.validations: list[dict[str, float]] = []
        self.logged, self.stride = 0, 1
        self.tokens, self.before = 0, 0.0
        self.since: float | None = None

    @property
    def seconds(self) -> float:
        """The time so far."""
        return self.before + (time.monotonic() - self.since if self.since is not None else 0.0)

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Start the clock."""
        self.since = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """Note what was logged at this step."""
        self.tokens = pl_module.tokens_seen(batch)
        if not pl_module.is_logged(trainer.global_step, batch_idx):
            return
        if self.logged % self.stride == 0:
            for name, value in readings(trainer, "train").items():
                self.curves.setdefault(name, []).append((self.tokens, value))
        self.logged += 1
        if self.logged // self.stride >= MOST:
            self.stride *= 2
            self.curves = {name: points[::2] for name, points in self.curves.items()}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what was measured."""
        if in_fit(trainer):
            row = {"step": trainer.global_step, "tokens": self.tokens}
            self.validations.append(row | readings(trainer, "val"))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Stop the clock, before it is read in several places."""
        self.before, self.since = self.seconds, None

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Stop the clock."""
        self.before, self.since = self.seconds, None

    @property
    def best(self) -> dict[str, float] | None:
        """The validation with the fewest nats."""
        known = [row for row in self.validations if row.get("nats", math.nan) < math.inf]
        return min(known, key=lambda row: row["nats"], default=None)

    @property
    def bits(self) -> str:
        """What its bits are called: per byte, which compares models, or else per token."""
        known = [*self.curves, *(name for row in self.validations for name in row)]
        bits = [name for name in known if name.startswith(BITS)]
        return "bits_per_byte" if "bits_per_byte" in bits else (bits or ["nats"])[0]

    def training(self, name: str) -> list[Point]:
        """A number of training over tokens, if it was logged."""
        return self.curves.get(name, [])

    def validation(self, name: str) -> list[Point]:
        """A number of validation over tokens, if it was measured."""
        return [(row["tokens"], row[name]) for row in self.validations if name in row]

    def state_dict(self) -> dict[str, Any]:
        """All so far."""
        names = ("curves", "validations", "logged", "stride", "tokens")
        return {name: getattr(self, name) for name in names} | {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        state = dict(state_dict)
        self.before = state.pop("seconds")
        for name, value in state.items():
            setattr(self, name, value)


def readings(trainer: Trainer, stage: str) -> dict[str, float]:
    """What was logged last of a stage's first text, by the names after the stage's."""
    found = {name.partition("/"): value for name, value in trainer.callback_metrics.items()}
    return {
        rest: value.item()
        for (head, _, rest), value in found.items()
        if head == stage and "/" not in rest and rest != "loss"
    }


def in_fit(trainer: Trainer) -> bool:
    """Whether training is on, and this is no check before it."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def folder_of(trainer: Trainer) -> Path:
    """A run's folder, which the ranks agree on together; without a logger, its checkpoints'."""
    logged = Path(trainer.log_dir or trainer.default_root_dir)
    kept = [Path(each.dirpath).parent for each in trainer.checkpoint_callbacks if each.dirpath]
    return kept[0] if kept and not trainer.loggers else logged
