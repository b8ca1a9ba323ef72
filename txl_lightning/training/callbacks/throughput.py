"""Throughput and TimeBudget: the speed of a run, and a plan by it that takes equally long anywhere.

Lightning's ThroughputMonitor waits for the GPU after every batch, and some of its peaks count
sparsity.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from ...data.stream import Segment
from ...errors import convert_fields, require
from ..optimizers import reschedule
from . import LanguageModel

PEAK_FLOPS = {
    **{"H200 NVL": 836e12, "H200": 989e12, "H100 NVL": 836e12, "H100 PCIe": 756e12},
    **{"H100": 989e12, "A100": 312e12, "L40S": 362e12},
}
"""Dense bfloat16 FLOPs per second, by a part of the device name (NVIDIA's data sheets)."""
N_WARMUP, N_MEASURED = 3, 3  # first steps, which are slower, and the fewest that are measured
MEASURE_FRACTION = 0.05  # of the time, after which a run is planned
MAX_VALIDATION_FRACTION = 0.2  # of the time
OVERRUN_FACTOR = 1.5  # of the time, after which a run ends before its last step


class Throughput(Callback):
    """Log tokens and model FLOPs per second of all devices, validations excluded.

    Also logged: train/mfu, the fraction of the devices' bfloat16 peak, where that is known; and
    train/seconds, the time of the whole run, resumed parts and validations included.
    """

    def __init__(self) -> None:
        self.tokens, self.seconds = 0, 0.0
        self.started_at: float | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.started_at is None:
            self.started_at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, module: LanguageModel, _: Any, batch: Segment, batch_idx: int
    ) -> None:
        self.tokens += len(batch.targets_BL) * batch.new_len * trainer.world_size
        if not module.is_logged(trainer.global_step, batch_idx):
            return
        self.pause()
        rate = self.tokens / max(self.seconds, 1e-9)
        values = {"tokens_per_second": rate}
        if count_flops := getattr(module.net.config, "flops_per_token", None):
            values["model_flops_per_second"] = flops = rate * count_flops(batch.new_len)
            if peak := peak_flops(trainer.strategy.root_device):
                values["mfu"] = flops / (peak * trainer.world_size)
        values["seconds"] = module.seconds
        module.log_dict({f"train/{name}": values[name] for name in values})
        self.tokens, self.seconds = 0, 0.0

    def pause(self, *_: Any) -> None:
        if self.started_at is not None:
            self.seconds += time.perf_counter() - self.started_at
        self.started_at = None

    on_validation_start = pause


def peak_flops(device: torch.device) -> float | None:
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else ""
    return next((flops for part, flops in PEAK_FLOPS.items() if part in name), None)


@dataclass(frozen=True)
class PlanConfig:
    """Duration of a run."""

    minutes: float | None = None
    """Minutes of training and validations together, on any machine: the run measures its speed, and
    sets its steps (at most trainer.max_steps), schedule and validations by it."""

    def __post_init__(self) -> None:
        convert_fields(self)
        expected = "greater than 0, or null"
        require(self.minutes is None or self.minutes > 0, "minutes", self.minutes, expected)


class TimeBudget(Callback):
    """Measure the first steps and one validation, then set how many of each the run has.

    Checkpoints store the plan: a resumed run follows it, unless its minutes have changed.
    """

    def __init__(self, minutes: float | None = None, clock: Callable = time.monotonic) -> None:
        self.seconds, self.clock = None if minutes is None else 60 * float(minutes), clock
        self.elapsed_before = 0.0  # of the parts of the run before a resume
        self.step_seconds: list[float] = []
        self.is_measured = False
        # Steps of the run, and segments from one validation to the next.
        self.plan: list[int] | None = None

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.started_at = self.lap_at = self.clock() - self.elapsed_before
        if self.plan:
            # Before LanguageModel.on_train_start, which sets the learning rate by the schedule.
            self.follow(trainer, module)
            self.stop_if_late(trainer, module)

    def on_train_batch_end(
        self, trainer: Trainer, module: LanguageModel, _: Any, batch: Segment, batch_idx: int
    ) -> None:
        if self.seconds is None or not module.between_steps:
            return
        if self.plan:
            self.stop_if_late(trainer, module)
            return
        self.step_seconds.append(self.lap())
        has_steps = len(self.step_seconds) >= N_WARMUP + N_MEASURED
        is_enough = has_steps and self.elapsed > MEASURE_FRACTION * self.seconds
        [self.is_measured] = module.ranks.max(int(is_enough))
        if self.is_measured:
            self.step_tokens = len(batch.targets_BL) * batch.new_len * trainer.world_size
            self.step_tokens *= trainer.accumulate_grad_batches
            if count_validations(trainer):
                # Validate now, to measure its time too.
                trainer.val_check_batch = trainer.fit_loop.total_batch_idx + 1
            else:
                self.make_plan(trainer, module, 0.0)

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting and self.seconds is not None and not self.plan:
            validation_seconds = self.lap()
            if self.is_measured:
                self.make_plan(trainer, module, validation_seconds)

    def make_plan(self, trainer: Trainer, module: LanguageModel, validation: float) -> None:
        """Plan steps and validations for the remaining time, from the times of the slowest rank."""
        times = self.elapsed, median(self.step_seconds[N_WARMUP:]), validation
        slowest = module.ranks.max(*(round(seconds * 1e6) for seconds in times))
        elapsed, step, validation = (max(micros, 1) / 1e6 for micros in slowest)
        max_validations = int(MAX_VALIDATION_FRACTION * self.seconds / validation)
        n = min(count_validations(trainer), max(max_validations, 1))
        now, remaining = trainer.global_step, self.seconds - elapsed - n * validation
        steps = min(now + max(int(remaining / step), 1), trainer.max_steps)
        every = max(steps // n, 1) if n else 0
        # The last validation is at the end.
        steps = max(every * n, now + 1) if n else steps
        # The Trainer takes numbers of numpy, which a checkpoint must not contain.
        self.plan = [int(steps), int(every * trainer.accumulate_grad_batches)]
        self.follow(trainer, module)
        minutes = (elapsed + (steps - now) * step + n * validation) / 60
        module.print(
            f"{self.step_tokens / step:,.0f} tokens/s here: {steps:,} steps, about "
            f"{minutes:.1f} minutes" + (f"; validations every {every:,} steps" if n else "")
        )

    def follow(self, trainer: Trainer, module: LanguageModel) -> None:
        steps, every = self.plan
        trainer.fit_loop.epoch_loop.max_steps = steps
        trainer.val_check_batch = every or trainer.val_check_batch
        reschedule(trainer.lr_scheduler_configs[0].scheduler, module.optim, steps)

    def stop_if_late(self, trainer: Trainer, module: LanguageModel) -> None:
        """End a run that takes much longer than planned; Lightning validates first."""
        [is_late] = module.ranks.max(int(self.elapsed > OVERRUN_FACTOR * self.seconds))
        if is_late and trainer.global_step < trainer.max_steps:
            minutes = f"{self.elapsed / 60:.1f} minutes"
            module.print(f"slower than planned: ended after {minutes}, before its last step")
            trainer.should_stop = True

    @property
    def elapsed(self) -> float:
        return self.clock() - self.started_at

    @property
    def is_planned(self) -> bool:
        return self.seconds is not None

    def time_remaining(self) -> float | None:
        """Return the seconds until the end of a run that has no plan yet."""
        return None if self.plan or self.seconds is None else self.seconds - self.elapsed

    def lap(self) -> float:
        last_call, self.lap_at = self.lap_at, self.clock()
        return self.lap_at - last_call

    def state_dict(self) -> dict[str, Any]:
        if self.seconds is None:
            return {}
        return {"seconds": self.seconds, "elapsed": self.elapsed, "plan": self.plan}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.elapsed_before = state_dict["elapsed"]
        if state_dict["seconds"] == self.seconds:
            self.plan = state_dict["plan"]


def count_validations(trainer: Trainer) -> int:
    """Return the validations in trainer.max_steps; 0 if there are none, or they go by epochs."""
    every, by_epoch = trainer.val_check_interval, trainer.check_val_every_n_epoch
    if not trainer.enable_validation or by_epoch is not None or not isinstance(every, int):
        return 0
    return max(trainer.max_steps * trainer.accumulate_grad_batches // every, 1)
