"""A live line of training's progress in a terminal; whole lines where output is a file or a pipe.

Lightning's own bars count batches of an epoch, which our endless loader has not, and print nothing
in a pipe.
"""

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, Progress, TextColumn

from ...evaluation.tables import align_columns
from .eta import TimeEstimate
from .run_metrics import is_fitting, read_metrics, run_folder
from .summary import count_parameters, format_duration, format_final_table, full_memory_bytes

READINGS = ("bits", "loss", "tokens_per_second", "answer_accuracy")
SHORT_READINGS = ("bits", "tokens_per_second")
"""Readings that fit beside a bar. Of bits of several units, per byte comes first."""


class TokenProgressBar(ProgressBar):
    """Loss, bits, tokens a second and time left against the steps of the whole run.

    Args:
        seconds_between_lines: how often to print where the output is no terminal.
    """

    def __init__(self, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self.console = Console()
        self.live: Progress | None = None
        self.folder = Path()
        self.printed_at, self.printed = -math.inf, ""
        self.estimate, self.step = TimeEstimate(), 0
        self.is_disabled = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        super().setup(trainer, pl_module, stage)
        # On every rank: the ranks agree on the folder together.
        self.folder = run_folder(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.is_disabled:
            return
        self.print(format_model(trainer, pl_module))
        self.print(f"run folder: {self.folder}")
        self.step = trainer.global_step
        self.estimate.start_step()
        if self.console.is_terminal:
            columns = (
                TextColumn("step {task.completed}/{task.total}"),
                BarColumn(bar_width=24),
                TextColumn("{task.description}"),
                TextColumn("{task.fields[left]}"),
            )
            self.live = Progress(*columns, console=self.console)
            self.live.start()
            total = trainer.max_steps if trainer.max_steps > 0 else None
            self.live.add_task("", total=total, completed=trainer.global_step, left="")

    def on_train_batch_start(self, *_: Any) -> None:
        self.estimate.resume()

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        if self.is_disabled or trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        self.estimate.end_step()
        left = self.format_time_left(trainer)
        if self.live:
            readings = format_readings(trainer, "train", SHORT_READINGS)
            self.update(completed=self.step, description=readings, left=left)
            return
        line = format_readings(trainer, "train", READINGS)
        is_due = time.monotonic() - self.printed_at > self.seconds_between_lines
        # Readings are logged more seldom than steps are taken.
        if is_due and line != self.printed:
            self.printed_at, self.printed = time.monotonic(), line
            total = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
            self.print(f"step {self.step}{total}  {line}  {left}".rstrip())

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.estimate.start_validation()
        self.update(left="validating")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # At once, or the next line would be printed above a bar of some time ago.
        self.update(left=self.format_time_left(trainer, validations_done=1), refresh=True)
        if is_fitting(trainer) and not self.is_disabled:
            readings = format_readings(trainer, "val", READINGS)
            self.print(f"step {trainer.global_step}  validation: {readings}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.stop()
        if not self.is_disabled:
            for logger in trainer.loggers:
                logger.save()
            self.print(format_result(trainer, self.folder))
            self.print(f"run folder: {self.folder}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        self.stop()

    def format_time_left(self, trainer: Trainer, validations_done: int = 0) -> str:
        seconds = self.estimate.seconds_left(trainer, validations_done)
        return "" if seconds is None else f"{format_duration(seconds)} left"

    def print(self, line: str) -> None:
        """Print above the bar."""
        # In a pipe, lines are not wrapped: programs read them.
        self.console.print(
            line, highlight=False, markup=False, soft_wrap=not self.console.is_terminal
        )

    def update(self, **changes: Any) -> None:
        """Change the bar, if there is one."""
        if self.live:
            self.live.update(self.live.task_ids[0], **changes)

    def stop(self) -> None:
        """Take the bar down, and give the terminal back."""
        self.update(left="")
        if self.live:
            self.live.stop()
        self.live = None

    def disable(self) -> None:
        self.is_disabled = True

    def enable(self) -> None:
        self.is_disabled = False


def format_readings(trainer: Trainer, stage: str, kinds: tuple[str, ...]) -> str:
    """The latest readings of a stage in a few words, the first of each kind."""
    metrics = trainer.callback_metrics
    words = []
    for kind in kinds:
        names = sorted(name for name in metrics if name.startswith(f"{stage}/{kind}"))
        for name in names[:1]:
            value = metrics[name].item()
            number = f"{value:,.0f}" if value > 100 else f"{value:.3f}"
            unit = name.partition("/")[2].replace("_per_", "/").replace("/second", "/s")
            words.append(f"{number} {unit}")
    return "  ".join(words)


def format_model(trainer: Trainer, module: LightningModule) -> str:
    """Parameters of each part as a table, and the memory."""
    counts, n_layer = count_parameters(module.net), module.net.config.n_layer
    total = sum(counts.values())
    rows = [("", "parameters", "", "")]
    for part, count in counts.items():
        note = f"in {n_layer} layers" if part in ("attention", "feed-forward") else ""
        rows.append((part, f"{count:,}", f"{100 * count / total:.1f} %", note))
    rows.append(("all", f"{total:,}", "", f"on {trainer.strategy.root_device}"))
    table = align_columns(rows)
    if module.corpus is None:
        return table
    size = decimal(full_memory_bytes(trainer, module))
    return f"{table}\nmemory: {module.net.config.mem_len:,} states a row, {size} on each device"


def format_result(trainer: Trainer, folder: Path) -> str:
    """How far training came, in what time, and its validations."""
    metrics = read_metrics(folder)
    total = f" of {trainer.max_steps:,}" if trainer.max_steps > 0 else ""
    tokens, seconds = metrics.last("train/tokens_seen"), metrics.last("train/seconds")
    line = f"trained {trainer.global_step:,}{total} steps, {tokens:,.0f} tokens"
    line += f", in {format_duration(seconds)}"
    if metrics.validations:
        return f"{line}\n{format_final_table(metrics)}"
    if trainer.enable_validation:
        line += f"\nno validation: trainer.val_check_interval is {trainer.val_check_interval}"
    return line
