"""A live line of what training does; plain lines where nothing can be live."""

import math
import time
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

READINGS = ("nats", "bits", "tokens_per_second")


class TokenProgress(ProgressBar):
    """Loss, bits and tokens per second, against the steps of the whole run.

    Args:
        seconds_between_lines: How often to print where the output is not a terminal.
    """

    def __init__(self, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.seconds_between_lines = seconds_between_lines
        self.console = Console()
        self.live: Progress | None = None
        self.folder: str | None = None
        self.printed_at = -math.inf
        self._disabled = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the run's folder, on every rank, because the ranks agree on it together."""
        super().setup(trainer, pl_module, stage)
        self.folder = trainer.log_dir

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what starts, and show the bar."""
        if self.is_disabled:
            return
        n_parameter = sum(parameter.numel() for parameter in pl_module.parameters())
        kept = f"; kept in {self.folder}" if self.folder else ""
        self.say(f"{n_parameter:,} parameters on {trainer.strategy.root_device}{kept}")
        if not self.console.is_terminal:
            return
        columns = (
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
        )
        self.live = Progress(*columns, console=self.console)
        self.live.start()
        steps = trainer.max_steps if trainer.max_steps > 0 else None
        self.live.add_task("", total=steps, completed=trainer.global_step)

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move on."""
        if self.is_disabled:
            return
        line = describe(trainer, "train")
        if self.live is not None:
            task = self.live.task_ids[0]
            self.live.update(task, completed=trainer.global_step, description=line)
        elif line and time.monotonic() - self.printed_at > self.seconds_between_lines:
            self.printed_at = time.monotonic()
            self.say(f"step {trainer.global_step}/{trainer.max_steps}  {line}")

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what was measured, and let it stand."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking and not self.is_disabled:
            self.say(f"step {trainer.global_step}  validation: {describe(trainer, 'val')}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Leave the last state on screen."""
        self.stop()

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        self.stop()

    def say(self, line: str) -> None:
        """Print above the bar."""
        (self.live.console if self.live else self.console).print(line, highlight=False)

    def stop(self) -> None:
        """Take the bar down."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def disable(self) -> None:
        """Show nothing (ranks other than 0)."""
        self._disabled = True

    def enable(self) -> None:
        """Show again."""
        self._disabled = False

    @property
    def is_disabled(self) -> bool:
        """Whether nothing is shown."""
        return self._disabled


def describe(trainer: Trainer, stage: str) -> str:
    """The latest readings of a stage in a few words."""
    known = trainer.callback_metrics
    words = []
    for name in sorted(known):
        head, _, reading = name.partition("/")
        if head == stage and reading.startswith(READINGS):
            value = f"{known[name]:,.0f}" if known[name] > 1000 else f"{known[name]:.3f}"
            words.append(f"{value} {reading.replace('_per_', '/')}")
    return "  ".join(words)
