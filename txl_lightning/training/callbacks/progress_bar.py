"""A live line of what training does; plain lines where nothing can be live."""

import math
import time
from pathlib import Path
from typing import Any

from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ProgressBar, Timer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from .eta import TimeLeft, still_to_do
from .history import History, folder_of, in_fit, readings
from .summary import beginning, duration, ending

READINGS = ("bits", "nats", "tokens_per_second", "answer_accuracy")
BRIEF = ("bits", "tokens_per_second")
"""What there is room for beside a bar; of several bits those of a byte, which come first."""


class TokenProgressBar(ProgressBar):
    """Loss, bits and tokens per second, against the steps of the whole run, and the time left.

    Args:
        history: What is logged, for the table at the end.
        seconds_between_lines: How often to print where the output is not a terminal.
    """

    def __init__(self, history: History, seconds_between_lines: float = 10.0) -> None:
        super().__init__()
        self.history = history
        self.seconds_between_lines = seconds_between_lines
        self.console = Console()
        self.live: Progress | None = None
        self.folder = Path()
        self.printed_at, self.printed = -math.inf, ""
        self.left, self.step = TimeLeft(), 0
        self._disabled = False

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the run's folder, on every rank, because the ranks agree on it together."""
        super().setup(trainer, pl_module, stage)
        self.folder = folder_of(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Say what starts, and show the bar."""
        if self.is_disabled:
            return
        self.say(beginning(trainer, pl_module))
        self.say(f"kept in {self.folder}")
        self.step = trainer.global_step
        self.left.begin()
        if not self.console.is_terminal:
            return
        columns = (
            TextColumn("step {task.completed}/{task.total}"),
            BarColumn(bar_width=24),
            TextColumn("{task.description}"),
            TextColumn("{task.fields[left]}"),
        )
        self.live = Progress(*columns, console=self.console)
        self.live.start()
        steps = trainer.max_steps if trainer.max_steps > 0 else None
        self.live.add_task("", total=steps, completed=trainer.global_step, left="")

    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, *_: Any) -> None:
        """Move on."""
        if self.is_disabled or trainer.global_step == self.step:
            return
        self.step = trainer.global_step
        self.left.step()
        left = time_left(self.left, trainer)
        if self.live is not None:
            task, brief = self.live.task_ids[0], describe(trainer, "train", BRIEF)
            self.live.update(task, completed=trainer.global_step, description=brief, left=left)
            return
        line = describe(trainer, "train", READINGS)
        # Nothing is said twice.
        if line != self.printed and self.is_time():
            self.printed_at, self.printed = time.monotonic(), line
            of = f"/{trainer.max_steps}" if trainer.max_steps > 0 else ""
            self.say(f"step {trainer.global_step}{of}  {line}  {left}".rstrip())

    def is_time(self) -> bool:
        """Whether the last line was printed long ago."""
        return time.monotonic() - self.printed_at > self.seconds_between_lines

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Its time is counted apart, with all that follows it."""
        self.left.pause()
        if self.live is not None:
            self.live.update(self.live.task_ids[0], left="validating")

    def on_train_batch_start(self, *_: Any) -> None:
        """After a validation, and what it is followed by, training goes on."""
        self.left.go_on()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Print what was measured, and let it stand."""
        if self.live is not None:
            left = time_left(self.left, trainer, measured=1)
            # Or what is printed next would stand above a bar of some time ago.
            self.live.update(self.live.task_ids[0], left=left, refresh=True)
        if in_fit(trainer) and not self.is_disabled:
            measured = describe(trainer, "val", READINGS)
            self.say(f"step {trainer.global_step}  validation: {measured}")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Take the bar down, and say what has come of it."""
        self.stop()
        if not self.is_disabled:
            self.say(ending(trainer, self.history))
            self.say(f"all of it is in {self.folder}")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """Give the terminal back."""
        self.stop()

    def say(self, line: str) -> None:
        """Print above the bar."""
        console = self.live.console if self.live else self.console
        # Where nobody looks at it, it is read line by line.
        whole = not console.is_terminal
        console.print(line, highlight=False, markup=False, soft_wrap=whole)

    def stop(self) -> None:
        """Take the bar down."""
        if self.live is not None:
            self.live.update(self.live.task_ids[0], left="")
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


def time_left(left: TimeLeft, trainer: Trainer, measured: int = 0) -> str:
    """In words, where there is an end and a step to go by; `measured` is 1 after a validation."""
    to_do = still_to_do(trainer)
    ends = [left.seconds(to_do[0], max(to_do[1] - measured, 0)) if to_do else None]
    ends += [timer.time_remaining() for timer in trainer.callbacks if isinstance(timer, Timer)]
    known = [seconds for seconds in ends if seconds is not None]
    return f"{duration(min(known))} left" if known else ""


def describe(trainer: Trainer, stage: str, wanted: tuple[str, ...]) -> str:
    """The latest readings of a stage in a few words, of each kind the first."""
    known = readings(trainer, stage)
    words = []
    for kind in wanted:
        for name in sorted(name for name in known if name.startswith(kind))[:1]:
            value = f"{known[name]:,.0f}" if known[name] > 100 else f"{known[name]:.3f}"
            words.append(f"{value} {name.replace('_per_', '/').replace('/second', '/s')}")
    return "  ".join(words)
