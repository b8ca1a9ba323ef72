"""TokenProgressBar: the progress of training, as a live line or, in a file or a pipe, as lines.

Lightning's own bars count batches of an epoch, of which our endless loader has none, and print
nothing in a pipe.
"""

import math
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer
from rich.console import Console
from rich.progress import BarColumn, Progress

from ...errors import show_controls, unfiltered_stdout
from ...model import Network, find_device, has_bfloat16_units
from ...model.kernels import choose_kernel
from ...runs.folder import run_folder
from ...runs.metrics_table import RunMetrics, format_columns
from ...tables import align_columns
from . import LanguageModel
from .time_budget import TimeBudget
from .validation_probe import ValidationProbe

READINGS = ("bits", "loss", "tokens_per_second", "answer_accuracy")
SHORT_READINGS = ("bits", "tokens_per_second")
"""Beginnings of the names of metrics to print, and of those that fit beside a bar.

Of several names with one beginning the first is printed: bits per byte before bits per token.
"""
N_RECENT = 6  # number of the last validations in the final table, besides the first and the best


class TokenProgressBar(ProgressBar):
    """Print loss, bits, tokens per second and time left against the steps of the whole run."""

    def __init__(self, probe: ValidationProbe, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.probe, self.seconds_between_lines = probe, seconds_between_lines
        # The bar consists of control characters; `print` escapes those of other texts.
        self.console = Console(file=unfiltered_stdout())
        self.live = Progress(disable=True)
        self.folder, self.step = Path(), 0
        self.printed_at, self.printed, self.readings = -math.inf, "", ""
        # The first step of this process, which compiles and warms up, and the time of its end.
        self.first: tuple[int, float] | None = None

    @property
    def is_enabled(self) -> bool:
        return not self.console.quiet

    def disable(self) -> None:
        # Lightning calls it on all ranks but the first.
        self.console.quiet = True

    def enable(self) -> None:
        self.console.quiet = False

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.folder, self.step = run_folder(trainer), trainer.global_step
        self.print(format_parameters(module.net))
        device = trainer.strategy.root_device
        kernel = getattr(module.net.config, "kernel", "its own")
        if kernel == "auto":
            kernel = choose_kernel(find_device(module.net), module.hparams["compile"])
        self.print(f"device: {device}; kernel: {kernel}{self.name_folder(trainer, '; ')}")
        if trainer.precision == "32-true" and has_bfloat16_units(device):
            self.print("faster on this device: --trainer.precision bf16-mixed")
        steps = "step {task.completed}/{task.total}"
        columns = steps, BarColumn(bar_width=24), "{task.description}", "{task.fields[time_left]}"
        is_hidden = self.console.quiet or not self.console.is_terminal
        self.live = Progress(*columns, console=self.console, disable=is_hidden)
        self.live.start()
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self.live.add_task("", total=total, completed=self.step, time_left="")

    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if trainer.global_step == self.step:
            return
        self.step, now = trainer.global_step, time.monotonic()
        self.first = self.first or (self.step, now)
        is_live = self.console.is_terminal
        # Not in every step, because reading a metric waits for the device.
        if module.is_logged_step(self.step):
            names = SHORT_READINGS if is_live else READINGS
            self.readings = format_readings(trainer, "train", names)
        time_left = self.format_time_left(trainer)
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self.update(description=self.readings, time_left=time_left)
        self.update(completed=self.step, total=total)
        is_due = now - self.printed_at > self.seconds_between_lines
        if is_due and self.readings != self.printed and not is_live:
            self.printed_at, self.printed = now, self.readings
            step = f"{self.step}/{total}" if total else self.step
            self.print(f"step {step}  {self.readings}  {time_left}".rstrip())

    def on_validation_start(self, *_: Any) -> None:
        self.update(time_left="validating")

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        # Refresh at once; otherwise the next line is printed above an outdated bar.
        self.update(time_left=self.format_time_left(trainer), refresh=True)
        if module.is_fitting:
            readings = format_readings(trainer, "val", READINGS)
            self.print(f"step {trainer.global_step}  validation: {readings}")

    def on_train_end(self, trainer: Trainer, module: LanguageModel) -> None:
        self.stop()
        metrics = RunMetrics(self.probe.validations, module.tokens_seen, module.seconds)
        self.print(format_result(trainer, metrics) + self.name_folder(trainer, "\n"))

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

    def print(self, text: str) -> None:
        # In a pipe, lines are not wrapped, because programs read them.
        is_pipe = not self.console.is_terminal
        text = show_controls(text, kept="\n")
        self.console.print(text, highlight=False, markup=False, soft_wrap=is_pipe)

    def update(self, **changes: Any) -> None:
        for task in self.live.task_ids:
            self.live.update(task, **changes)

    def stop(self, *_: Any) -> None:
        self.update(time_left="")
        self.live.stop()

    on_exception = stop


def format_readings(trainer: Trainer, stage: str, beginnings: tuple[str, ...]) -> str:
    metrics, readings = trainer.callback_metrics, []
    for beginning in beginnings:
        names = sorted(name for name in metrics if name.startswith(f"{stage}/{beginning}"))
        for name in names[:1]:
            value = metrics[name].item()
            unit = name.partition("/")[2].replace("_per_", "/").replace("/second", "/s")
            # Not 57.673 tokens/s, which many read as thousands.
            digits = 0 if unit == "tokens/s" or value > 100 else 3
            readings.append(f"{value:,.{digits}f} {unit}")
    return "  ".join(readings)


def format_parameters(net: Network) -> str:
    """Return a table of parameters by part; tied ones count as the embedding's."""
    counts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        first, _, third, *_ = [*name.split("."), "", ""]
        part = "norms" if "norm" in name else third if first == "layers" else first
        counts[part] = counts.get(part, 0) + parameter.numel()
    counts["all"] = sum(counts.values())
    return align_columns([("", "parameters", ""), *((n, f"{c:,}", "") for n, c in counts.items())])


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
