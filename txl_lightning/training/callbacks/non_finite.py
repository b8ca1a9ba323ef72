"""NonFiniteGuard: stop before an update, or a checkpoint, with numbers that are not finite."""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ...data.stream import Segment
from ...errors import NonFiniteError
from ..ranks import gather_shards, local_part
from . import LanguageModel


class NonFiniteGuard(Callback):
    """Skip updates with a non-finite loss or gradient, and refuse to save non-finite weights.

    Args:
        max_skipped: Number of updates to skip, each with the memory that led to it, before the next
            one stops training.
    """

    def __init__(self, max_skipped: int = 0) -> None:
        self.max_skipped = max_skipped
        self.n_skipped = 0
        self.losses: list[Tensor] = []
        self.norm = math.nan
        self.batch_name = ""

    def on_train_batch_start(
        self, trainer: Trainer, module: LanguageModel, batch: Any, batch_idx: int
    ) -> None:
        self.batch_name = f"batch {batch_idx}"
        if isinstance(batch, Segment):
            self.batch_name = f"segment {batch.index} of the training text"

    def on_before_backward(self, trainer: Trainer, module: LanguageModel, loss: Tensor) -> None:
        # There are several in a step when gradients accumulate.
        self.losses.append(loss.detach().float())

    def on_before_optimizer_step(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        # For clipping, which would otherwise copy the number back to the device, and wait.
        self.norm_on_device = gather_shards(torch.nn.utils.get_total_norm(gradients))
        # Loss and norm together, because each transfer waits for the device.
        both = torch.stack([torch.stack(self.losses).sum(), self.norm_on_device])
        loss, self.norm = both.tolist()
        self.losses = []
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        # A scaler adjusts its scale to infinite gradients, and skips those updates itself.
        [is_bad] = module.ranks.max(int(not math.isfinite(loss if scaled else loss + self.norm)))
        if is_bad:
            self.skip(trainer, module, f"loss {loss}, gradient norm {self.norm}")
        elif module.is_logged_step(trainer.global_step + 1):
            module.log("train/grad_norm", self.norm)

    def skip(self, trainer: Trainer, module: LanguageModel, values: str) -> None:
        """Discard the gradients and the memory that led to them; raise after max_skipped."""
        self.n_skipped += 1
        step = f"step {trainer.global_step + 1}, {self.batch_name}"
        if self.n_skipped > self.max_skipped:
            fix = "lower model.optim.lr, or allow some with model.optim.max_skipped_updates"
            raise NonFiniteError(f"{step}: {values}; nothing was updated; {fix}")
        rank_zero_warn(f"{step}: {values}; skipped ({self.n_skipped} of {self.max_skipped})")
        module.zero_grad(set_to_none=True)
        module.memory_bank.discard("train")
        module.train_nats.reset()

    def on_save_checkpoint(self, trainer: Trainer, module: LanguageModel, checkpoint: dict) -> None:
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            return
        weights = map(local_part, module.parameters())
        # Each rank checks its own shards.
        [is_bad] = module.ranks.max(int(not all(weight.isfinite().all() for weight in weights)))
        if is_bad:
            raise NonFiniteError(
                f"step {trainer.global_step}: a weight is not finite; nothing is saved, the last "
                "checkpoint is unchanged; lower model.optim.lr"
            )

    def state_dict(self) -> dict[str, int]:
        return {"n_skipped": self.n_skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.n_skipped = state_dict["n_skipped"]
