"""Does memory help? What validation costs more where nothing is remembered.

B rows   L segment
"""

from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from torch import Tensor

from ...data.stream import Segment
from ...evaluation.metrics import MeanNats
from ...evaluation.scoring import segment_nats
from .history import in_fit
from .validation_probe import filling, remembered

SAVED = "saved_by_memory"
SEGMENTS = 16
"""Segments of a validation, once the memory is full, that are read without it too."""


class MemoryGain(Callback):
    """Log `val/saved_by_memory`: mean nats of a token without its memory, less those with it.

    Of the same tokens of a few segments, and of the weights that were measured. Above 0 memory
    helps; it tells nothing of a model that was trained without. Training does not notice.
    """

    def __init__(self) -> None:
        self.saved, self.since = MeanNats(), 0

    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Nothing of this validation has been read."""
        # A new one: made under inference_mode by trainer.validate, it could not be counted on here.
        self.saved = MeanNats().to(pl_module.device)

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Tensor,
        batch: Segment,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        """Read a segment once more, alone."""
        # A compiled network would be compiled once more for a memory of another length.
        if not in_fit(trainer) or dataloader_idx or pl_module.hparams["compile"]:
            return
        if batch_idx == 0:
            self.since = filling(pl_module, batch)
        if remembered(pl_module) and 0 <= batch_idx - self.since < SEGMENTS:
            with trainer.precision_plugin.forward_context():
                alone_BL = nats_alone(pl_module, batch)
            self.saved.update(alone_BL - outputs, batch.targets_BL)

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Log it, if the validation was long enough for a full memory."""
        if self.saved.update_called:
            # The ranks compute it together.
            saved = self.saved.compute()
            if saved.isfinite():
                pl_module.log(f"val/{SAVED}", saved)


def nats_alone(pl_module: Any, segment: Segment) -> Tensor:
    """Nats of a segment's targets where nothing is remembered."""
    rows, how_far = len(segment.tokens_BL), pl_module.eval_lengths[1:]
    nats_BL, _ = segment_nats(pl_module.net, segment, pl_module.net.empty_cache(rows, 0, *how_far))
    return nats_BL
