"""What W&B shows beside numbers: the curve, what a model writes, where it errs and looks."""

from pathlib import Path

from lightning.pytorch import Callback, LightningModule, Trainer

from .history import folder_of, in_fit
from .validation_probe import ValidationProbe
from .wandb import boards


class Pictures(Callback):
    """After each validation, where a W&B run wants them.

    Logged are curve and attention (pictures), val/samples (a table with a text for each validation
    so far) and val/nats_by_position (a curve over the places of a segment: context fragmentation).

    Args:
        looks: What was seen of the model.
    """

    def __init__(self, looks: ValidationProbe) -> None:
        self.looks = looks
        self.folder = Path()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Ask for the run's folder, on every rank, because the ranks agree on it together."""
        self.folder = folder_of(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Show them."""
        if not in_fit(trainer) or not trainer.is_global_zero or not boards(trainer):
            return
        import wandb

        seen = self.looks
        table = wandb.Table(["position", "nats"], [list(point) for point in seen.nats])
        title = "nats by position in the segment"
        shown = {"val/nats_by_position": wandb.plot.line(table, "position", "nats", title=title)}
        if seen.samples:
            shown["val/samples"] = wandb.Table(["step", "text"], list(seen.samples))
        for name in ("curve", "attention"):
            path = self.folder / f"{name}.png"
            if path.is_file():
                shown[name] = wandb.Image(str(path))
        for board in boards(trainer):
            board.log_metrics(shown, trainer.global_step - 1)
