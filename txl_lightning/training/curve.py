"""The learning curve as a picture in the run's folder."""

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer

from ..data.stream import Segment

BITS = "bits_per_"


class LearningCurve(Callback):
    """Draw curve.png: bits over tokens read, of training and of validation.

    The points are in the checkpoint, so that a run that continues has one curve.
    """

    def __init__(self) -> None:
        self.points: dict[str, list[list[float]]] = {"train": [], "val": []}
        self.tokens = 0
        self.folder: str | None = None

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the run's folder, on every rank, because the ranks agree on it together."""
        self.folder = trainer.log_dir

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """Note what was logged at this step."""
        self.tokens = batch.n_target
        if pl_module.is_logged(trainer.global_step, batch_idx):
            self.note("train", trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Note what was measured, and draw."""
        if trainer.state.fn == "fit" and not trainer.sanity_checking:
            self.note("val", trainer)
            self.draw(trainer)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Draw the whole curve."""
        self.draw(trainer)

    def state_dict(self) -> dict[str, Any]:
        """The points so far."""
        return {"points": self.points}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from there."""
        self.points = state_dict["points"]

    def note(self, stage: str, trainer: Trainer) -> None:
        """Add a point to a stage's curve."""
        for name, value in trainer.callback_metrics.items():
            if name.startswith(f"{stage}/{BITS}"):
                self.points[stage].append([self.tokens, value.item()])

    def draw(self, trainer: Trainer) -> None:
        """Write the picture, on rank 0, when there is a folder and something to see."""
        if not trainer.is_global_zero or self.folder is None or not self.points["train"]:
            return
        # Slow to import, and of no use to who only evaluates.
        from matplotlib.figure import Figure

        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        for stage, style in (("train", "-"), ("val", "o-")):
            tokens, bits = zip(*self.points[stage], strict=True) if self.points[stage] else ((), ())
            axes.plot(tokens, bits, style, label=stage, markersize=4, linewidth=1)
        axes.set(xlabel="tokens read", ylabel=f"bits per {trainer.lightning_module.unit}")
        axes.grid(alpha=0.3)
        axes.legend()
        folder = Path(self.folder)
        folder.mkdir(parents=True, exist_ok=True)
        figure.savefig(folder / "curve.png", dpi=120)
