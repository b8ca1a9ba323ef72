"""TimeBudget: a run that takes its minutes at any speed, because its plan follows the clock."""

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from statistics import median_low
from typing import Any

from lightning.pytorch import Callback, Trainer

from ...errors import require
from .. import loops
from ..module import LanguageModel
from ..optimizers import reschedule

RECENT_FRACTION = 0.02  # of the time, whose steps tell the speed by their median
FEWEST = 5  # of these steps
MOST = 50
MEASURE_FRACTION = 0.05  # of the time, after which a validation is measured and the plan printed
MAX_VALIDATION_FRACTION = 0.2  # of the time
LONG_FRACTION = 0.05  # of the time, which a validation may take before it is measured twice


@dataclass(frozen=True)
class Times:
    """The time that a run has used; the same on all ranks, and stored in checkpoints."""

    elapsed: float = 0.0
    """Seconds of the run and its parts before a resume."""
    trained: float = 0.0
    """Seconds of its steps, each as long as recent ones: without compilation and pauses."""
    step_seconds: tuple[float, ...] = ()
    """Of recent steps."""
    validation_steps: tuple[float, ...] = ()
    """Time of each validation, in steps of its time: it tells the next one's at another speed."""
    share: float = 0.0
    """Of the plan that is done, as of the last step; it never falls."""
    validated: float = 0.0
    """Share at the last validation."""

    @property
    def step(self) -> float:
        return median_low(self.step_seconds) if self.step_seconds else 0.0

    @property
    def validation(self) -> float:
        return self.step * median_low(self.validation_steps) if self.validation_steps else 0.0

    def add_step(self, seconds: float, nth: int, n_recent: int) -> "Times":
        """Return the times after the nth step of a process; the first one is not typical."""
        recent = self.step_seconds
        if nth > 1:
            # Those of an earlier process may be of another machine.
            recent = (*recent, seconds)[-min(nth - 1, n_recent) :]
        times = replace(self, elapsed=self.elapsed + seconds, step_seconds=recent)
        # The second step tells how long the first one is.
        n = 1 if self.step_seconds else 2
        return replace(times, trained=self.trained + n * times.step)

    def add_validation(self, seconds: float) -> "Times":
        lengths = self.validation_steps
        if self.step:
            lengths = (*lengths, seconds / self.step)[-MOST:]
        return replace(self, elapsed=self.elapsed + seconds, validation_steps=lengths)

    def extend_validation(self, seconds: float) -> "Times":
        """Return the times after what follows a validation, as its checkpoint and its report."""
        *before, last = self.validation_steps or (0.0,)
        lengths = (*before, last + seconds / self.step) if self.validation_steps else ()
        return replace(self, elapsed=self.elapsed + seconds, validation_steps=lengths)


@dataclass(frozen=True)
class Plan:
    """The rest of a run, as functions of its times and its step."""

    seconds: float
    max_steps: int
    wanted_validations: int
    """If there were time; 0: validations are not planned."""

    def count_recent_steps(self, times: Times) -> int:
        n = RECENT_FRACTION * self.seconds / times.step if times.step else 0
        return int(min(max(n, FEWEST), MOST))

    def count_validations(self, times: Times) -> int:
        """Return how many validations the run has, besides an early one: a fifth of its time."""
        n = self.wanted_validations
        if times.validation:
            n = int(min(n, MAX_VALIDATION_FRACTION * self.seconds / times.validation))
        is_long = times.validation > LONG_FRACTION * self.seconds
        if n and is_long and len(times.validation_steps) == 1:
            # This measurement may be an outlier: another one half-way.
            return max(n, 2)
        return max(n, 1)

    def count_remaining_validations(self, times: Times) -> int:
        n = self.count_validations(times)
        return max(n - int(n * times.share), 1)

    def find_training_seconds(self, times: Times) -> float:
        """Return the seconds that remain for steps, without those of validations."""
        left = self.seconds - times.elapsed - times.validation
        others = (self.count_remaining_validations(times) - 1) * times.validation
        # After a long pause, only the last one is certain.
        return left - min(others, MAX_VALIDATION_FRACTION * max(left, 0.0))

    def find_share(self, times: Times, step: int, is_validated: bool = False) -> float:
        """Return the share of the seconds for steps that is used, or of the steps; 1: the end."""
        left = self.find_training_seconds(times)
        # The nearest end. A run that goes on after a validation will have another one.
        extra = times.validation if is_validated else 0.0
        if left + extra / 2 <= times.step / 2 or step >= self.max_steps:
            return 1.0
        left = max(left, times.step)
        return max(times.share, times.trained / (times.trained + left), step / self.max_steps)

    def advance(self, times: Times, step: int, is_validated: bool = False) -> Times:
        """Return the times with the share that is done after a step, or after its validation."""
        share = self.find_share(times, step, is_validated)
        validated = share if is_validated else times.validated
        return replace(times, share=share, validated=validated)

    def is_validation_due(self, times: Times) -> bool:
        """Return True at each of as many equal shares, and early to measure a validation."""
        if not self.wanted_validations:
            return False
        if times.step and not times.validation_steps and self.is_measured(times):
            return True
        n = self.count_validations(times)
        # Their number may change with the speed, but two are never near each other.
        is_apart = times.share - times.validated >= 0.6 / n
        return is_apart and int(n * times.share) > int(n * times.validated)

    def is_measured(self, times: Times) -> bool:
        return times.elapsed >= MEASURE_FRACTION * self.seconds

    def estimate_steps(self, times: Times, step: int) -> int:
        """Return the steps of the whole run at its present speed."""
        if times.share >= 1:
            return step
        if not times.step:
            return self.max_steps
        remaining = max(round(self.find_training_seconds(times) / times.step), 1)
        return min(step + remaining, self.max_steps)


class TimeBudget(Callback):
    """Let the learning rate, the validations and the end of a run follow the clock.

    The minutes are those of training and validation of a `LanguageModel`. The run ends with them,
    or with the Trainer's max_steps, and has as many validations as in these, within a fifth of the
    minutes. Checkpoints store the times: a resumed run goes on in its plan, or with other minutes
    or steps in the plan of these. All ranks go by the clock that is ahead.

    >>> from lightning import Trainer
    >>> callbacks = [TimeBudget(minutes=5)]
    >>> trainer = Trainer(max_steps=2000, callbacks=callbacks, accelerator="cpu", logger=False)
    """

    def __init__(self, minutes: float, clock: Callable = time.monotonic) -> None:
        require(0 < minutes < math.inf, "minutes", minutes, "a number greater than 0")
        self.seconds = 60 * float(minutes)
        self.clock = clock
        self.times = Times()
        self.saved_plan: list[float] | None = None
        self.n_step = 0  # of this process
        self.is_after_validation = self.is_printed = False

    def setup(self, trainer: Trainer, *_: Any, stage: str) -> None:
        # Before LastCheckpoint.allow_validation, which may raise it.
        self.max_steps = int(trainer.max_steps)

    def on_fit_start(self, trainer: Trainer, module: LanguageModel) -> None:
        # Its Trainer has a number of steps by now, also of passes.
        expected = "a number of steps, within which TimeBudget plans the run"
        require(trainer.max_steps >= 0, "trainer.max_steps", trainer.max_steps, expected)

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.pass_limit:
            self.max_steps = module.pass_limit.last_step
        n = count_validations(trainer, self.max_steps)
        self.plan = Plan(self.seconds, self.max_steps, n)
        self.started_at = self.clock() - self.times.elapsed
        self.is_printed = bool(self.times.step)
        if self.saved_plan not in (None, [self.seconds, self.max_steps]):
            self.change_plan(trainer.global_step)
        # Before LanguageModel.on_train_start, which sets the learning rate by the schedule.
        self.follow(trainer, module)
        if self.times.share >= 1:
            minutes = f"{self.seconds / 60:g} minutes"
            module.print(f"all {minutes} are used; more with --plan.minutes")

    def change_plan(self, step: int) -> None:
        """Find the share of a new plan, of which at least one step and a validation are left."""
        times = replace(self.times, share=0.0, validated=0.0)
        share = min(self.plan.find_share(times, step), step / (step + 1))
        self.times = replace(times, share=share, validated=share)
        self.is_printed = False

    def on_train_batch_start(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if self.is_after_validation:
            self.times = self.times.extend_validation(self.lap(module))
            self.is_after_validation = False

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if not module.between_steps:
            return
        self.n_step += 1
        n_recent = self.plan.count_recent_steps(self.times)
        self.times = self.times.add_step(self.lap(module), self.n_step, n_recent)
        self.times = self.plan.advance(self.times, trainer.global_step)
        is_due = self.plan.is_validation_due(self.times)
        self.follow(trainer, module, is_due)
        self.step_tokens = module.segment_tokens * trainer.accumulate_grad_batches
        if not self.plan.wanted_validations and self.plan.is_measured(self.times):
            self.print_plan(trainer, module)

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if not module.is_fitting:
            return
        self.times = self.times.add_validation(self.lap(module))
        self.is_after_validation = True
        # The run ends here if the validation has used what was left.
        self.times = self.plan.advance(self.times, trainer.global_step, is_validated=True)
        self.follow(trainer, module)
        self.print_plan(trainer, module)

    def follow(self, trainer: Trainer, module: LanguageModel, is_due: bool = False) -> None:
        """Set steps, learning rate and the next validation of the Trainer by the plan."""
        step = trainer.global_step
        share = self.times.share
        loops.set_last_step(trainer, self.plan.estimate_steps(self.times, step))
        if self.plan.wanted_validations:
            loops.set_next_validation(trainer, is_due)
        # So that this step has its share of the schedule.
        end = step / share if step and share else self.plan.max_steps
        reschedule(trainer.lr_scheduler_configs[0].scheduler, module.optim, end)

    def print_plan(self, trainer: Trainer, module: LanguageModel) -> None:
        """Print the first estimate of the steps, once; the progress bar shows later ones."""
        times = self.times
        plan = self.plan
        step = trainer.global_step
        if self.is_printed or not times.step or times.share >= 1:
            return
        self.is_printed = True
        steps = plan.estimate_steps(times, step)
        n = plan.count_validations(times)
        seconds = times.elapsed + (steps - step) * times.step
        seconds += plan.count_remaining_validations(times) * times.validation
        every = f"; validations every {steps // n:,} steps" if plan.wanted_validations else ""
        rate = f"{self.step_tokens / times.step:,.0f} tokens/s here"
        module.print(f"{rate}: about {steps:,} steps in {seconds / 60:.1f} minutes{every}")

    def lap(self, module: LanguageModel) -> float:
        """Return the seconds since the last call, or the start, by the clock that is ahead."""
        micros = round(1e6 * (self.clock() - self.started_at))
        return module.ranks.max(micros)[0] / 1e6 - self.times.elapsed

    def time_remaining(self) -> float:
        """Return the seconds until the time is over."""
        return self.seconds - self.clock() + self.started_at

    @property
    def plan_state(self) -> dict[str, Any]:
        """The limits of the plan and its times, as plain values."""
        return {"plan": [self.seconds, self.max_steps], "times": asdict(self.times)}

    @plan_state.setter
    def plan_state(self, saved: dict[str, Any]) -> None:
        self.saved_plan = saved["plan"]
        self.times = Times(**saved["times"])


def count_validations(trainer: Trainer, max_steps: int) -> int:
    """Return the validations in max_steps; 0 if there are none, or they go by epochs."""
    every = trainer.val_check_interval
    by_epoch = trainer.check_val_every_n_epoch is not None
    if not trainer.enable_validation or by_epoch or not isinstance(every, int):
        return 0
    return max(max_steps * trainer.accumulate_grad_batches // every, 1)
