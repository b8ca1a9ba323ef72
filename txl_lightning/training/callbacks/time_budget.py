"""A run planned by its own speed, so that it takes about as long here as anywhere."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

from lightning.pytorch import Callback, Trainer

from ...data.stream import Segment
from ...errors import require
from ..optimizers import reschedule
from .run_folder import is_fitting

N_WARMUP, N_MEASURED = 3, 3
"""Steps that are left out, being slower than others, and the least number that is measured."""
MEASURING, VALIDATING, LATEST = 0.05, 0.2, 1.5
"""Parts of the time: to measure steps, for validations at most, and until a slow run is ended."""


@dataclass(frozen=True)
class PlanConfig:
    """Time that a run takes."""

    minutes: float | None = None
    """Minutes of training and validations together, on any machine: the run measures its speed, and
    sets its steps (at most trainer.max_steps), schedule and validations by it."""

    def __post_init__(self) -> None:
        expected = "greater than 0, or null"
        require(self.minutes is None or self.minutes > 0, "minutes", self.minutes, expected)


class TimeBudget(Callback):
    """Measure steps and one validation, then set how many of them the run has.

    What was decided is in checkpoints: a resumed run keeps to it, unless it is given other minutes.
    """

    def __init__(
        self, minutes: float | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.seconds, self.clock = None if minutes is None else 60 * minutes, clock
        self.before = 0.0  # seconds that the run had taken when it was resumed
        self.steps: list[float] = []
        self.measured = False
        # Steps of the run, and segments from one validation to the next.
        self.plan: list[int] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.started_at = self.lap_at = self.clock() - self.before
        if self.plan:
            self.follow(trainer, pl_module)
            self.stop_if_late(trainer, pl_module)

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Segment, batch_idx: int
    ) -> None:
        if self.seconds is None or not pl_module.between_steps:
            return
        if self.plan:
            self.stop_if_late(trainer, pl_module)
            return
        self.steps.append(self.lap())
        has_steps = len(self.steps) >= N_WARMUP + N_MEASURED
        is_enough = has_steps and self.elapsed > MEASURING * self.seconds
        [self.measured] = pl_module.ranks.max(int(is_enough))
        if self.measured:
            self.tokens = len(batch.targets_BL) * batch.new_len * trainer.world_size
            if n_validation(trainer):
                # Now, because how long one takes is measured too.
                trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1
            else:
                self.decide(trainer, pl_module, 0.0)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer) and self.seconds is not None and not self.plan:
            validation = self.lap()
            if self.measured:
                self.decide(trainer, pl_module, validation)

    def decide(self, trainer: Trainer, pl_module: Any, validation: float) -> None:
        """Fill the time that is left; of several processes the slowest decides."""
        times = self.elapsed, median(self.steps[N_WARMUP:]), validation
        slowest = pl_module.ranks.max(*(round(seconds * 1e6) for seconds in times))
        elapsed, step, validation = (max(micros, 1) / 1e6 for micros in slowest)
        n = min(n_validation(trainer), max(int(VALIDATING * self.seconds / validation), 1))
        now, segments = trainer.global_step, trainer.accumulate_grad_batches
        left = self.seconds - elapsed - n * validation
        steps = min(now + max(int(left / step), 1), trainer.max_steps)
        every = max(steps // n, 1) if n else 0
        # The last validation is at the end.
        steps = max(every * n, now + 1) if n else steps
        self.plan = [steps, every * segments]
        self.follow(trainer, pl_module)
        minutes = (elapsed + (steps - now) * step + n * validation) / 60
        pl_module.print(
            f"{segments * self.tokens / step:,.0f} tokens/s here: {steps:,} steps, about "
            f"{minutes:.1f} minutes" + (f"; validations every {every:,} steps" if n else "")
        )

    def follow(self, trainer: Trainer, pl_module: Any) -> None:
        """Set the run's steps, schedule and validations as planned."""
        steps, every = self.plan
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.val_check_batch = every or trainer.val_check_batch
        reschedule(trainer.lr_scheduler_configs[0].scheduler, pl_module.optim, steps)

    def stop_if_late(self, trainer: Trainer, pl_module: Any) -> None:
        """End a run that takes much longer than planned; Lightning validates first."""
        [is_late] = pl_module.ranks.max(int(self.elapsed > LATEST * self.seconds))
        if is_late and trainer.global_step < trainer.max_steps:
            minutes = f"{self.elapsed / 60:.1f} minutes"
            pl_module.print(f"slower than planned: ended after {minutes}, before its last step")
            trainer.should_stop = True

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started_at

    def time_remaining(self) -> float | None:
        """Return the seconds until the end of a run that is not planned yet."""
        return None if self.plan or self.seconds is None else self.seconds - self.elapsed

    def lap(self) -> float:
        before, self.lap_at = self.lap_at, self.clock()
        return self.lap_at - before

    def state_dict(self) -> dict[str, Any]:
        if self.seconds is None:
            return {}
        return {"seconds": self.seconds, "elapsed": self.elapsed, "plan": self.plan}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.before = state_dict["elapsed"]
        if state_dict["seconds"] == self.seconds:
            self.plan = state_dict["plan"]


def n_validation(trainer: Trainer) -> int:
    """The validations that a run of trainer.max_steps would have; 0 where they go by epochs."""
    every, by_epoch = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if not trainer.enable_validation or by_epoch is not None or not isinstance(every, int):
        return 0
    return max(trainer.max_steps * trainer.accumulate_grad_batches // every, 1)
