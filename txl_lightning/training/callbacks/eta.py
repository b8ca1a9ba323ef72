"""How long a run will still take, although its loader is endless."""

import time
from collections import deque
from statistics import fmean, median

from lightning.pytorch import Trainer

RECENT = 50


class TimeLeft:
    """Counts recent steps and validations separately, because there are fewer of the latter."""

    def __init__(self) -> None:
        self.steps: deque[float] = deque(maxlen=RECENT)
        self.validations: deque[float] = deque(maxlen=RECENT)
        self.began, self.paused = time.monotonic(), None
        self.aside = 0.0

    def begin(self) -> None:
        """The next step starts now."""
        self.began, self.aside = time.monotonic(), 0.0

    def step(self) -> None:
        """A step is done."""
        now = time.monotonic()
        self.steps.append(now - self.began - self.aside)
        self.began, self.aside = now, 0.0

    def pause(self) -> None:
        """A validation begins."""
        self.paused = time.monotonic()

    def go_on(self) -> None:
        """If there was one, it is done."""
        if self.paused is not None:
            took = time.monotonic() - self.paused
            self.validations.append(took)
            self.aside += took
        self.paused = None

    def seconds(self, steps: int, validations: int) -> float | None:
        """What so many of them would take; None before the first step."""
        if not self.steps:
            return None
        # The first steps compile and warm up.
        each = fmean(self.validations) if self.validations else 0.0
        return steps * median(self.steps) + validations * each


def still_to_do(trainer: Trainer) -> tuple[int, int] | None:
    """Steps and validations until the end; None without one."""
    if trainer.max_steps < 0:
        return None
    steps = max(trainer.max_steps - trainer.global_step, 0)
    every = trainer.val_check_batch if trainer.enable_validation else None
    if every is None:
        # Also where it goes by the clock.
        return steps, 0
    done = trainer.fit_loop.epoch_loop.total_batch_idx + 1
    last = done + steps * trainer.accumulate_grad_batches
    # The one that is due after this batch is still to come.
    return steps, int(last // every - (done - 1) // every)
