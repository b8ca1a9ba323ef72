"""report.html: a run on one page, and its curve and its attention as pictures beside it."""

import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...errors import require
from ...evaluation.environment import describe_environment
from ...files import write_text
from .history import History, folder_of, in_fit
from .page import Run, page
from .plots import attention, learning, save
from .summary import memory_bytes, parts
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

SECONDS = 60.0
"""Between two pages, while training goes on."""


@dataclass(frozen=True)
class ReportConfig:
    """What a run tells of itself."""

    page: bool = True
    """Write report.html, curve.png and attention.png in the run's folder."""
    sample_len: int = 200
    """Tokens that the model writes after each validation; 0: nothing."""

    def __post_init__(self) -> None:
        require(self.sample_len >= 0, "report.sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write report.html in the run's folder, now and then and when training ends, however it does.

    Args:
        history: What was logged.
        looks: What was seen of the model.
    """

    def __init__(self, history: History, looks: ValidationProbe) -> None:
        self.history, self.looks = history, looks
        self.folder = Path()
        self.written_at, self.drawn = -math.inf, -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the run's folder, on every rank, because the ranks agree on it together."""
        self.folder = folder_of(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw what was measured; the page takes longer."""
        if not in_fit(trainer):
            return
        self.write(trainer, self.draw)
        if time.monotonic() - self.written_at > SECONDS:
            self.write(trainer, self.tell, "training")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The whole run."""
        self.write(trainer, self.draw)
        self.write(trainer, self.tell, "finished")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        """What there is of it."""
        if self.folder != Path():
            stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
            self.write(trainer, self.tell, "stopped" if stopped else f"ended by: {exception}")

    def write(self, trainer: Trainer, what: Any, *args: Any) -> None:
        """On rank 0; a page is no reason to stop training."""
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            what(trainer, *args)
        # Whatever it is: what is to be saved and said after it matters more.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")

    def draw(self, trainer: Trainer) -> None:
        """curve.png and attention.png, where there is something new to see."""
        if self.drawn == trainer.global_step:
            return
        self.drawn = trainer.global_step
        unit = trainer.lightning_module.unit
        if self.history.curves:
            save(learning(self.history), self.folder / "curve.png")
        if self.looks.attention:
            save(attention(self.looks, unit), self.folder / "attention.png")

    def tell(self, trainer: Trainer, state: str) -> None:
        """report.html, which is whole or the one before."""
        write_text(page(self.run(trainer, state)), self.folder / "report.html")
        self.written_at = time.monotonic()

    def run(self, trainer: Trainer, state: str) -> Run:
        """What there is to tell."""
        module, config = trainer.lightning_module, self.folder / "config.yaml"
        about = describe_environment(trainer.strategy.root_device)
        about |= {"devices": trainer.world_size, "precision": trainer.precision}
        if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
            about["validated"] = "the average of the weights (WeightAverage), not themselves"
        return Run(
            name=str(self.folder),
            state=state,
            step=trainer.global_step,
            max_steps=trainer.max_steps,
            unit=module.unit,
            history=self.history,
            looks=self.looks,
            parts=parts(module.net),
            memory_bytes=memory_bytes(trainer, module) if module.corpus else 0,
            mem_len=module.net.config.mem_len,
            config=config.read_text() if config.is_file() else "",
            environment=about,
        )
