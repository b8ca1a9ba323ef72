"""A live line of training's progress in a terminal; whole lines where output is a file or a pipe.

Lightning's own bars count batches of an epoch, which our endless loader has not, and print nothing
in a pipe.
"""

import math
import sys
import time
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer
from rich.console import Console
from rich.progress import BarColumn, Progress

from ...errors import show_controls
from ...evaluation.run_metrics import RunMetrics, format_columns, read_metrics
from ...evaluation.tables import align_columns
from ...model import TransformerXL
from ...model.kernels import choose_kernel
from ..computing import has_bfloat16_units
from .run_folder import is_fitting, run_folder
from .time_budget import TimeBudget

READINGS = ("bits", "loss", "tokens_per_second", "answer_accuracy")
SHORT_READINGS = ("bits", "tokens_per_second")
"""Readings that fit beside a bar. Of bits of several units, per byte comes first."""
N_RECENT = 6
"""Validations at the end of a run that its table has, beside the first and the best."""


class ConsoleBar(ProgressBar):
    """A bar whose console is quiet on every rank but the first."""

    console: Console

    @property
    def is_enabled(self) -> bool:
        return not self.console.quiet

    def disable(self) -> None:
        self.console.quiet = True

    def enable(self) -> None:
        self.console.quiet = False


class TokenProgressBar(ConsoleBar):
    """Loss, bits, tokens a second and time left against the steps of the whole run."""

    def __init__(self, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        # Its escapes are for the terminal to obey; what it prints is filtered in `print`.
        self.console = Console(file=getattr(sys.stdout, "unfiltered", None))
        self.live = Progress(disable=True)
        self.folder, self.step = Path(), 0
        self.printed_at, self.printed, self.readings = -math.inf, "", ""
        # The first step of this process and when it ended: it compiles and warms up.
        self.first: tuple[int, float] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.folder = run_folder(trainer)
        self.step = trainer.global_step
        self.print(format_parameters(pl_module.net))
        device, kernel = trainer.strategy.root_device, name_kernel(trainer, pl_module)
        self.print(f"device: {device}; kernel: {kernel}; run folder: {self.folder}")
        if device.type == "cpu" and trainer.precision == "32-true" and has_bfloat16_units(device):
            self.print("faster on this processor: --trainer.precision bf16-mixed")
        steps = "step {task.completed}/{task.total}"
        columns = steps, BarColumn(bar_width=24), "{task.description}", "{task.fields[left]}"
        is_shown = self.console.is_terminal and not self.console.quiet
        self.live = Progress(*columns, console=self.console, disable=not is_shown)
        self.live.start()
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self.live.add_task("", total=total, completed=self.step, left="")

    def on_train_batch_end(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        if trainer.global_step == self.step:
            return
        self.step, now = trainer.global_step, time.monotonic()
        self.first = self.first or (self.step, now)
        is_live = self.console.is_terminal
        # Not in every step, because to read a metric is to wait for the device.
        if pl_module.is_logged_step(self.step):
            kinds = SHORT_READINGS if is_live else READINGS
            self.readings = format_readings(trainer, "train", kinds)
        left = self.format_time_left(trainer)
        total = trainer.max_steps if trainer.max_steps > 0 else None
        self.update(completed=self.step, total=total, description=self.readings, left=left)
        is_due = now - self.printed_at > self.seconds_between_lines
        if is_due and self.readings != self.printed and not is_live:
            self.printed_at, self.printed = now, self.readings
            total = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
            self.print(f"step {self.step}{total}  {self.readings}  {left}".rstrip())

    def on_validation_start(self, *_: Any) -> None:
        self.update(left="validating")

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        # At once, or the next line would be printed above a bar of some time ago.
        self.update(left=self.format_time_left(trainer), refresh=True)
        if is_fitting(trainer):
            readings = format_readings(trainer, "val", READINGS)
            self.print(f"step {trainer.global_step}  validation: {readings}")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.stop()
        # Only where it is printed: another rank would see half a line of rank 0's file.
        if not self.console.quiet:
            self.print(format_result(trainer, read_metrics(self.folder, trainer.loggers)))
            self.print(f"run folder: {self.folder}")

    def format_time_left(self, trainer: Trainer) -> str:
        """Return the time until the run ends, by steps or by the clock, as far as it is known."""
        timers = Timer, TimeBudget
        ends = [each.time_remaining() for each in trainer.callbacks if isinstance(each, timers)]
        if trainer.max_steps >= 0 and self.first and self.step > self.first[0]:
            step, ended_at = self.first
            # Of the time so far validations have their share.
            each = (time.monotonic() - ended_at) / (self.step - step)
            ends.append(each * max(trainer.max_steps - self.step, 0))
        known = [seconds for seconds in ends if seconds is not None]
        return f"{timedelta(seconds=int(min(known)))} left" if known else ""

    def print(self, text: str) -> None:
        # In a pipe, lines are not wrapped, because programs read them.
        is_pipe = not self.console.is_terminal
        text = show_controls(text, kept="\n")
        self.console.print(text, highlight=False, markup=False, soft_wrap=is_pipe)

    def update(self, **changes: Any) -> None:
        for task in self.live.task_ids:
            self.live.update(task, **changes)

    def stop(self, *_: Any) -> None:
        self.update(left="")
        self.live.stop()

    on_exception = stop


class SegmentProgressBar(ConsoleBar):
    """A bar of the segments that validate, test or predict has read, on stderr of a terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.console = Console(stderr=True)
        self.live = Progress(console=self.console, disable=not sys.stderr.isatty())

    def on_test_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.live.start()
        counts = getattr(trainer, f"num_{pl_module.stage}_batches")
        self.live.add_task(pl_module.stage, total=sum(counts))

    def on_test_batch_end(self, *_: Any, **__: Any) -> None:
        self.live.advance(self.live.task_ids[0])

    def on_test_end(self, *_: Any) -> None:
        self.live.stop()

    on_validation_start = on_predict_start = on_test_start
    on_validation_batch_end = on_predict_batch_end = on_test_batch_end
    on_validation_end = on_predict_end = on_exception = on_test_end


def format_measured(metrics: Mapping[str, Any]) -> str:
    """Return a table of what was measured; the loss is the nats, by another name."""
    names = [name for name in metrics if not name.endswith("/loss")]
    return align_columns([(name, f"{metrics[name]:.4f}", "") for name in names])


def name_kernel(trainer: Trainer, pl_module: Any) -> str:
    net = pl_module.net
    if net.config.kernel != "auto":
        return net.config.kernel
    with trainer.precision_plugin.forward_context():
        return choose_kernel(net.device, net.compute_dtype, pl_module.hparams["compile"])


def format_readings(trainer: Trainer, stage: str, kinds: tuple[str, ...]) -> str:
    metrics, words = trainer.callback_metrics, []
    for kind in kinds:
        for name in sorted(name for name in metrics if name.startswith(f"{stage}/{kind}"))[:1]:
            value = metrics[name].item()
            unit = name.partition("/")[2].replace("_per_", "/").replace("/second", "/s")
            # Not 57.673 tokens/s, which many read as thousands.
            digits = 0 if kind == "tokens_per_second" or value > 100 else 3
            words.append(f"{value:,.{digits}f} {unit}")
    return "  ".join(words)


def format_parameters(net: TransformerXL) -> str:
    """Return a table of parameters by part; tied ones are the embedding's."""
    counts: dict[str, int] = {}
    for name, parameter in net.named_parameters():
        first, _, third, *_ = [*name.split("."), "", ""]
        part = "norms" if "norm" in name else third if first == "layers" else first
        counts[part] = counts.get(part, 0) + parameter.numel()
    counts["all"] = sum(counts.values())
    return align_columns([("", "parameters", ""), *((n, f"{c:,}", "") for n, c in counts.items())])


def format_result(trainer: Trainer, metrics: RunMetrics) -> str:
    total = f" of {trainer.max_steps:,}" if trainer.max_steps > 0 else ""
    tokens, seconds = metrics.last("train/tokens_seen"), metrics.last("train/seconds")
    lines = [
        f"trained {trainer.global_step:,}{total} steps, {tokens:,.0f} tokens, "
        f"in {timedelta(seconds=int(seconds))}"
    ]
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
