"""What was logged over the whole run, however often it stopped."""

import time
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
        curves: Points (tokens, value) of each number, by its name.
        steps: The step of each validation.
        seconds: The time that fit took, of all its parts.
    """

    def __init__(self) -> None:
        self.curves: dict[str, list[Point]] = {}
        self.steps: list[int] = []
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
        self.tokens = batch.n_target
        if not pl_module.is_logged(trainer.global_step, batch_idx):
            return
        if self.logged % self.stride == 0:
            self.note("train", trainer)
        self.logged += 1
        if self.logged // self.stride >= MOST:
            self.stride *= 2
            train = [name for name in self.curves if name.startswith("train/")]
            self.curves |= {name: self.curves[name][::2] for name in train}

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what was measured."""
        if in_fit(trainer):
            self.steps.append(trainer.global_step)
            self.note("val", trainer)

    def note(self, stage: str, trainer: Trainer) -> None:
        """Add a point to each curve of a stage."""
        for name, value in trainer.callback_metrics.items():
            if name.startswith(f"{stage}/"):
                self.curves.setdefault(name, []).append((self.tokens, value.item()))

    def validations(self) -> list[dict[str, float]]:
        """A row for each validation: step, tokens, and all that it measured of the first text."""
        names = [name for name in self.curves if name.startswith("val/") and name.count("/") == 1]
        rows = [{"step": step} for step in self.steps]
        for name in names:
            for row, (tokens, value) in zip(rows, self.curves[name], strict=False):
                row |= {"tokens": tokens, name.removeprefix("val/"): value}
        return rows

    @property
    def bits(self) -> str:
        """What its bits are called: per byte, which compares models, or else per token."""
        known = [name.partition("/")[2] for name in self.curves]
        return next(
            (name for name in ("bits_per_byte", *known) if BITS in name and name in known), "nats"
        )

    def of(self, name: str) -> list[Point]:
        """The points of a curve, if there are any."""
        return self.curves.get(name, [])

    def state_dict(self) -> dict[str, Any]:
        """All so far."""
        kept = {name: getattr(self, name) for name in ("curves", "steps", "logged", "stride")}
        return kept | {"seconds": self.seconds}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        state = dict(state_dict)
        self.before = state.pop("seconds")
        for name, value in state.items():
            setattr(self, name, value)


def in_fit(trainer: Trainer) -> bool:
    """Whether training is on, and this is no check before it."""
    return trainer.state.fn == "fit" and not trainer.sanity_checking
