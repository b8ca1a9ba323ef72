"""What must not happen unseen: numbers that are not finite, and memory that is used up."""

from collections.abc import Iterable
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Parameter
from torch.optim import Optimizer

from ...data.stream import Segment
from ...errors import NonFiniteError
from ..ranks import whole


class NonFiniteGuard(Callback):
    """Let no update through whose loss or gradient is not finite, and save no such weights.

    Args:
        budget: Such updates that are left out, with the memory that led to them, before the one
            that stops training.
    """

    def __init__(self, budget: int = 0) -> None:
        self.budget = budget
        self.left_out = 0
        self.losses: list[Tensor] = []
        self.segment = 0

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Segment, batch_idx: int
    ) -> None:
        """Note where in the text it is."""
        self.segment = batch.index

    def on_before_backward(
        self, trainer: Trainer, pl_module: LightningModule, loss: Tensor
    ) -> None:
        """Note a loss of the step; there are several when gradients accumulate."""
        self.losses.append(loss.detach().float())

    def on_before_optimizer_step(
        self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at loss and gradient together, because to look is to wait for the device."""
        loss, norm = torch.stack(self.losses).sum(), gradient_norm(pl_module.parameters())
        self.losses = []
        scaled = getattr(trainer.precision_plugin, "scaler", None) is not None
        # A scaler finds by infinite gradients how far to scale, and leaves those updates out.
        finite = (loss if scaled else loss + norm).isfinite().item()
        [lost] = pl_module.ranks.max(int(not finite))
        if lost:
            self.leave_out(trainer, pl_module, f"loss {loss.item()}, gradient norm {norm.item()}")
        elif pl_module.is_logged_step(trainer.global_step + 1):
            pl_module.log("train/grad_norm", norm)

    def leave_out(self, trainer: Trainer, pl_module: LightningModule, what: str) -> None:
        """Make no update, and remember nothing of how it came to be.

        Raises:
            NonFiniteError: no more of them may be left out.
        """
        self.left_out += 1
        where = f"step {trainer.global_step + 1}, segment {self.segment} of the training text"
        if self.left_out > self.budget:
            fix = "lower model.optim.lr, or allow some with model.optim.max_skipped_updates"
            raise NonFiniteError(f"{where}: {what}; nothing was updated; {fix}")
        rank_zero_warn(f"{where}: {what}; left out ({self.left_out} of {self.budget})")
        pl_module.zero_grad(set_to_none=True)
        pl_module.memory_bank.discard("train")
        pl_module.train_nats.reset()

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Refuse to save weights that are of no use.

        Raises:
            NonFiniteError: on every rank, wherever they are.
        """
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            return
        [lost] = pl_module.ranks.max(int(not finite_weights(pl_module)))
        if lost:
            raise NonFiniteError(
                f"step {trainer.global_step}: a weight is not finite; nothing is saved, the last "
                "checkpoint is as it was; lower model.optim.lr"
            )

    def state_dict(self) -> dict[str, int]:
        """How much of the budget is used up."""
        return {"left_out": self.left_out}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Go on from there."""
        self.left_out = state_dict["left_out"]


def gradient_norm(parameters: Iterable[Parameter]) -> Tensor:
    """The norm of all gradients together, also where each rank has a part of each."""
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return whole(torch.nn.utils.get_total_norm(gradients))


def finite_weights(module: LightningModule) -> bool:
    """Whether all numbers are finite in the part of the weights that this rank has."""
    parts = [p.to_local() if isinstance(p, DTensor) else p for p in module.parameters()]
    return all(bool(part.isfinite().all()) for part in parts)


def is_out_of_memory(error: RuntimeError | MemoryError) -> bool:
    """Whether a device or the host has no more memory to give."""
    return isinstance(
        error, (torch.OutOfMemoryError, MemoryError)
    ) or "can't allocate memory" in str(error)
