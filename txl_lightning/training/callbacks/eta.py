"""The time that a run still takes, although its loader is endless."""

import time
from collections import deque
from statistics import fmean, median

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Timer

N_RECENT = 50


class TimeEstimate:
    """Durations of recent steps and of recent validations, apart: there are few of the latter."""

    def __init__(self) -> None:
        self.steps: deque[float] = deque(maxlen=N_RECENT)
        self.validations: deque[float] = deque(maxlen=N_RECENT)
        self.step_began, self.validation_time = time.monotonic(), 0.0
        self.validation_began: float | None = None

    def start_step(self) -> None:
        self.step_began, self.validation_time = time.monotonic(), 0.0

    def end_step(self) -> None:
        self.steps.append(time.monotonic() - self.step_began - self.validation_time)
        self.start_step()

    def start_validation(self) -> None:
        self.validation_began = time.monotonic()

    def resume(self) -> None:
        """End a validation, and all that followed it, when training goes on."""
        if self.validation_began is not None:
            self.validations.append(time.monotonic() - self.validation_began)
            self.validation_time += self.validations[-1]
        self.validation_began = None

    def seconds(self, steps: int, validations: int) -> float | None:
        """Estimated seconds for this many steps and validations; None before the first step."""
        if not self.steps:
            return None
        # The median, because the first steps compile and warm up.
        each = fmean(self.validations) if self.validations else 0.0
        return steps * median(self.steps) + validations * each

    def seconds_left(self, trainer: Trainer, validations_done: int = 0) -> float | None:
        """Estimated seconds until the run ends, by steps or by the clock; None if unknown.

        Args:
            validations_done: 1 just after a validation, which the trainer still counts as due.
        """
        ends = [each.time_remaining() for each in trainer.callbacks if isinstance(each, Timer)]
        if trainer.max_steps >= 0:
            steps, validations = count_remaining(trainer)
            ends.append(self.seconds(steps, max(validations - validations_done, 0)))
        return min((seconds for seconds in ends if seconds is not None), default=None)


def count_remaining(trainer: Trainer) -> tuple[int, int]:
    """Steps and validations until max_steps; validations by the clock are not counted."""
    steps = max(trainer.max_steps - trainer.global_step, 0)
    every = trainer.val_check_batch if trainer.enable_validation else None
    if every is None:
        return steps, 0
    done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    last = done + steps * trainer.accumulate_grad_batches
    # The one that is due after this batch is still to come.
    return steps, int(last // every - (done - 1) // every)
