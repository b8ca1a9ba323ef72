"""NonFiniteGuard: stop before an update, or a checkpoint, with numbers that are not finite."""

import math
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor

from ...data.stream import Segment
from ...errors import NonFiniteError
from ..ranks import gather_shards


class NonFiniteGuard(Callback):
    """Skip updates whose loss or gradient is not finite, and refuse to save such weights.

    Args:
        max_skipped: Updates that are skipped, with the memory that led to them, before the one that
            stops training.
    """

    def __init__(self, max_skipped: int = 0) -> None:
        self.max_skipped = max_skipped
        self.n_skipped = 0
        self.losses: list[Tensor] = []
        self.norm = math.nan
        self.segment = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: Any, batch: Segment, batch_idx: int
    ) -> None:
        self.segment = batch.index

    def on_before_backward(self, trainer: Trainer, pl_module: Any, loss: Tensor) -> None:
        # There are several in a step when gradients accumulate.
        self.losses.append(loss.detach().float())

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: Any, *_: Any) -> None:
        # Loss and gradient together, because to look is to wait for the device.
        gradients = [weight.grad for weight in pl_module.parameters() if weight.grad is not None]
        norm = gather_shards(torch.nn.utils.get_total_norm(gradients))
        loss, self.norm = torch.stack([torch.stack(self.losses).sum(), norm]).tolist()
        self.losses = []
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        # A scaler finds by infinite gradients how far to scale, and skips those updates itself.
        [spoilt] = pl_module.ranks.max(int(not math.isfinite(loss if scaled else loss + self.norm)))
        if spoilt:
            self.skip(trainer, pl_module, f"loss {loss}, gradient norm {self.norm}")
        elif pl_module.is_logged_step(trainer.global_step + 1):
            pl_module.log("train/grad_norm", self.norm)

    def skip(self, trainer: Trainer, pl_module: Any, values: str) -> None:
        """Make no update and forget the memory that led to it; raise when too many were skipped."""
        self.n_skipped += 1
        where = f"step {trainer.global_step + 1}, segment {self.segment} of the training text"
        if self.n_skipped > self.max_skipped:
            fix = "lower model.optim.lr, or allow some with model.optim.max_skipped_updates"
            raise NonFiniteError(f"{where}: {values}; nothing was updated; {fix}")
        rank_zero_warn(f"{where}: {values}; skipped ({self.n_skipped} of {self.max_skipped})")
        pl_module.zero_grad(set_to_none=True)
        pl_module.memory_bank.discard("train")
        pl_module.train_nats.reset()

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: dict) -> None:
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            return
        # Each rank looks at its own part of the weights.
        own = [p.to_local() if isinstance(p, DTensor) else p for p in pl_module.parameters()]
        [spoilt] = pl_module.ranks.max(int(not all(part.isfinite().all() for part in own)))
        if spoilt:
            raise NonFiniteError(
                f"step {trainer.global_step}: a weight is not finite; nothing is saved, the last "
                "checkpoint is unchanged; lower model.optim.lr"
            )

    def state_dict(self) -> dict[str, int]:
        return {"n_skipped": self.n_skipped}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.n_skipped = state_dict["n_skipped"]
