"""The progress of training: Throughput measures its speed, TokenProgressBar prints it.

Lightning's own bars count batches of an epoch, of which our endless loader has none, and print
nothing in a pipe. Its ThroughputMonitor waits for the GPU in every batch.
"""

import math
import shutil
import time
from datetime import timedelta
from pathlib import Path
from typing import Any, TextIO

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import Callback, ProgressBar, Timer
from lightning.pytorch.utilities import rank_zero_warn

from ...errors import show_controls, unfiltered_stdout
from ...model import has_bfloat16_units
from ...model.kernels import choose_kernel
from ...runs.folder import run_folder
from ...runs.metrics_table import RunMetrics, format_columns, read_metrics
from ...tables import align_columns
from ..module import LanguageModel
from .time_budget import TimeBudget

READINGS = ("bits", "loss", "tokens_per_second", "answer_accuracy")
"""Beginnings of the names of metrics to print. Of several names with one beginning the first is
printed: bits per byte before bits per token."""
N_RECENT = 6  # number of the last validations in the final table, besides the first and the best


class Throughput(Callback):
    """Log tokens per second of all devices, validations excluded, and train/seconds: the time of
    the whole run, resumed parts and validations included."""

    def __init__(self) -> None:
        self.tokens = 0
        self.seconds = 0.0
        self.started_at: float | None = None

    def on_train_batch_start(self, *_: Any) -> None:
        if self.started_at is None:
            self.started_at = time.perf_counter()

    def on_train_batch_end(
        self, trainer: Trainer, module: LanguageModel, _: Any, __: Any, batch_idx: int
    ) -> None:
        self.tokens += module.segment_tokens
        if not module.is_logged(trainer.global_step, batch_idx):
            return
        self.pause()
        module.log("train/tokens_per_second", self.tokens / max(self.seconds, 1e-9))
        module.log("train/seconds", module.seconds)
        self.tokens = 0
        self.seconds = 0.0

    def pause(self, *_: Any) -> None:
        if self.started_at is not None:
            self.seconds += time.perf_counter() - self.started_at
        self.started_at = None

    on_validation_start = pause


class TokenProgressBar(ProgressBar):
    """Print steps, time left, bits, loss and tokens per second of the whole run.

    On a terminal it is a line that changes, in a pipe a new line after `seconds` or more.
    """

    def __init__(self, stream: TextIO | None = None, seconds: float = 10.0) -> None:
        super().__init__()
        self.stream = stream or unfiltered_stdout()
        self.is_live = self.stream.isatty()
        self.interval = 0.1 if self.is_live else seconds
        self.is_enabled = True
        self.folder = Path()
        self.step = 0
        self.printed_at = -math.inf
        self.printed = self.readings = ""
        # The first step of this process, which compiles and warms up, and the time of its end.
        self.first: tuple[int, float] | None = None

    def disable(self) -> None:
        # Lightning calls it on all ranks but the first.
        self.is_enabled = False

    def enable(self) -> None:
        self.is_enabled = True

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.folder = run_folder(trainer)
        self.step = trainer.global_step
        device = trainer.strategy.root_device
        # A network of a user's package has none.
        kernel = getattr(module.net.config, "kernel", None)
        if kernel == "auto":
            kernel = choose_kernel(device, module.hparams["compile"])
        n_parameter = sum(parameter.numel() for parameter in module.net.parameters())
        about = f"parameters: {n_parameter:,}; device: {device}"
        about += f"; kernel: {kernel}" if kernel else ""
        self.print(f"{about}{self.name_folder(trainer, '; ')}")
        if trainer.precision == "32-true" and has_bfloat16_units(device):
            self.print("faster on this device: --trainer.precision bf16-mixed")

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        now = time.monotonic()
        self.first = self.first or (self.step, now)
        # Not in every step, because reading a metric waits for the device.
        if module.is_logged_step(self.step):
            self.readings = format_readings(trainer, "train")
        is_new = self.is_live or self.readings != self.printed
        if is_new and now - self.printed_at > self.interval:
            self.printed_at = now
            self.printed = self.readings
            total = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
            parts = f"step {self.step}{total}", self.format_time_left(trainer), self.readings
            self.print("  ".join(filter(None, parts)), is_lasting=not self.is_live)

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting:
            readings = format_readings(trainer, "val")
            self.print(f"step {trainer.global_step}  validation: {readings}")

    def on_train_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if not self.is_enabled:
            return
        about = module.tokens_seen, module.seconds
        try:
            metrics = read_metrics(self.folder, trainer.loggers, *about)
        # It must not stop the checkpoint that is written next.
        except ValueError as error:
            rank_zero_warn(str(error))
            metrics = RunMetrics([], *about)
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
    metrics = trainer.callback_metrics
    readings = []
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
    steps = f"{trainer.global_step:,}{total} steps"
    duration = timedelta(seconds=int(metrics.seconds))
    lines = [f"trained {steps}, {metrics.tokens:,} tokens, in {duration}"]
    best = metrics.best
    if rows := metrics.validations:
        recent = len(rows) - N_RECENT
        rows = [row for n, row in enumerate(rows) if n == 0 or n >= recent or row == best]
        marks = ["", *("best" if row == best else "" for row in rows)]
        table = zip(marks, format_columns(rows), strict=True)
        lines.append(align_columns([(mark, *row, "") for mark, row in table]))
    elif trainer.enable_validation and "val/nats" not in trainer.callback_metrics:
        lines.append(f"no validation: trainer.val_check_interval is {trainer.val_check_interval}")
    return "\n".join(lines)
