"""TokenProgressBar: the progress of training, as a line that changes or, in a pipe, as lines.

Lightning's own bars count batches of an epoch, of which our endless loader has none, and print
nothing in a pipe.
"""

import math
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer

from ...errors import show_controls, unfiltered_stdout
from ...model import find_device, has_bfloat16_units
from ...model.kernels import choose_kernel
from ...runs.folder import run_folder
from ...runs.metrics_table import RunMetrics, format_columns
from ...tables import align_columns
from . import LanguageModel
from .time_budget import TimeBudget
from .validation_probe import ValidationProbe

READINGS = ("bits", "loss", "tokens_per_second", "answer_accuracy")
"""Beginnings of the names of metrics to print. Of several names with one beginning the first is
printed: bits per byte before bits per token."""
N_RECENT = 6  # number of the last validations in the final table, besides the first and the best


class TokenProgressBar(ProgressBar):
    """Print steps, time left, bits, loss and tokens per second of the whole run."""

    def __init__(
        self, probe: ValidationProbe, stream: TextIO | None = None, seconds: float = 10.0
    ) -> None:
        """`seconds` are the least between two lines in a pipe."""
        super().__init__()
        self.probe, self.stream = probe, stream or unfiltered_stdout()
        self.is_live = self.stream.isatty()
        self.interval = 0.1 if self.is_live else seconds
        self.is_enabled = True
        self.folder, self.step = Path(), 0
        self.printed_at, self.printed, self.readings = -math.inf, "", ""
        # The first step of this process, which compiles and warms up, and the time of its end.
        self.first: tuple[int, float] | None = None

    def disable(self) -> None:
        # Lightning calls it on all ranks but the first.
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.folder, self.step = run_folder(trainer), trainer.global_step
        device = trainer.strategy.root_device
        kernel = getattr(module.net.config, "kernel", "its own")
        if kernel == "auto":
            kernel = choose_kernel(find_device(module.net), module.hparams["compile"])
        n_parameter = sum(parameter.numel() for parameter in module.net.parameters())
        about = f"parameters: {n_parameter:,}; device: {device}; kernel: {kernel}"
        self.print(f"{about}{self.name_folder(trainer, '; ')}")
        if trainer.precision == "32-true" and has_bfloat16_units(device):
            self.print("faster on this device: --trainer.precision bf16-mixed")

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if trainer.global_step == self.step:
            return
        self.step, now = trainer.global_step, time.monotonic()
        self.first = self.first or (self.step, now)
        # Not in every step, because reading a metric waits for the device.
        if module.is_logged_step(self.step):
            self.readings = format_readings(trainer, "train")
        is_new = self.is_live or self.readings != self.printed
        if is_new and now - self.printed_at > self.interval:
            self.printed_at, self.printed = now, self.readings
            total = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
            parts = f"step {self.step}{total}", self.format_time_left(trainer), self.readings
            self.print("  ".join(filter(None, parts)), is_lasting=not self.is_live)

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting:
            readings = format_readings(trainer, "val")
            self.print(f"step {trainer.global_step}  validation: {readings}")

    def on_train_end(self, trainer: Trainer, module: LanguageModel) -> None:
        metrics = RunMetrics(self.probe.validations, module.tokens_seen, module.seconds)
        self.print(format_result(trainer, metrics) + self.name_folder(trainer, "\n"))

    def on_exception(self, *_: Any) -> None:
        if self.is_live:
            self.print("")

    def name_folder(self, trainer: Trainer, separator: str) -> str:
        """Return the run's folder, of which a test run by fast_dev_run has none."""
        return "" if trainer.fast_dev_run else f"{separator}run folder: {self.folder}"

    def format_time_left(self, trainer: Trainer) -> str:
        """Return the time until the run ends, by its steps or its time limit; "" if unknown."""
        timers = Timer, TimeBudget
        ends = [each.time_remaining() for each in trainer.callbacks if isinstance(each, timers)]
        if trainer.max_steps >= 0 and self.first and self.step > self.first[0]:
            step, ended_at = self.first
            # The mean includes validations.
            step_seconds = (time.monotonic() - ended_at) / (self.step - step)
            ends.append(step_seconds * max(trainer.max_steps - self.step, 0))
        seconds = min((end for end in ends if end is not None), default=None)
        return "" if seconds is None else f"{timedelta(seconds=int(seconds))} left"

    def print(self, text: str, is_lasting: bool = True) -> None:
        """Print a text; on a terminal it replaces the last one that does not last."""
        if not self.is_enabled:
            return
        text = show_controls(text, kept="\n")
        if not is_lasting:
            text = text[: shutil.get_terminal_size().columns - 1]
        # Go to the start of the line, and clear it.
        text = f"\r\x1b[K{text}" if self.is_live else text
        print(text, end="\n" if is_lasting else "", file=self.stream, flush=True)


def format_readings(trainer: Trainer, stage: str) -> str:
    metrics, readings = trainer.callback_metrics, []
    for beginning in READINGS:
        names = sorted(name for name in metrics if name.startswith(f"{stage}/{beginning}"))
        for name in names[:1]:
            value = metrics[name].item()
            unit = name.partition("/")[2].replace("_per_", "/").replace("/second", "/s")
            # Not 57.673 tokens/s, which many read as thousands.
            digits = 0 if unit == "tokens/s" or value > 100 else 3
            readings.append(f"{value:,.{digits}f} {unit}")
    return "  ".join(readings)


def format_result(trainer: Trainer, metrics: RunMetrics) -> str:
    total = f" of {trainer.max_steps:,}" if trainer.max_steps > 0 else ""
    steps, duration = f"{trainer.global_step:,}{total} steps", timedelta(0, int(metrics.seconds))
    lines = [f"trained {steps}, {metrics.tokens:,} tokens, in {duration}"]
    rows, best = metrics.validations, metrics.best
    if rows:
        recent = len(rows) - N_RECENT
        rows = [row for n, row in enumerate(rows) if n == 0 or n >= recent or row == best]
        marks = ["", *("best" if row == best else "" for row in rows)]
        table = zip(marks, format_columns(rows), strict=True)
        lines.append(align_columns([(mark, *row, "") for mark, row in table]))
    elif trainer.enable_validation:
        lines.append(f"no validation: trainer.val_check_interval is {trainer.val_check_interval}")
    return "\n".join(lines)
