"""The average of the weights over steps: measured, saved and used instead of the last ones."""

from collections.abc import Iterable
from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.callbacks import StochasticWeightAveraging, WeightAveraging
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ...data.stream import Segment
from ...errors import require
from ...model import TransformerXL

TRAINED, AVERAGE = "trained", "average"
"""Of a checkpoint with an average: what fit goes on from, and where fit finds the average."""


class WeightAverage(Callback):
    """Average the weights; the average is what validation measures and other verbs load.

    Training is as it would be without: its weights are put aside while something is measured, and
    saved beside the average. Until `start_step` there is none, and they are measured themselves.

    Args:
        decay: What an exponential mean keeps in a step; null, all steps count the same (Polyak and
            Juditsky 1992; Merity et al. 2017 for language models, with a constant learning rate).
        start_step: Steps that do not count.
    """

    def __init__(self, decay: float | None = 0.999, start_step: int = 0) -> None:
        possible = decay is None or 0 <= decay < 1
        require(possible, "decay", decay, "at least 0 and less than 1, or null")
        require(start_step >= 0, "start_step", start_step, "0 or more")
        self.decay, self.start_step = decay, start_step
        self.begin()

    def begin(self) -> None:
        """Nothing has been averaged."""
        self.average: TransformerXL | None = None
        self.aside: TransformerXL | None = None
        self.carried: dict[str, Tensor] | None = None
        self.count = self.step = 0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Each fit has its own.

        Raises:
            ValueError: no device has whole weights.
        """
        if stage != "fit":
            return
        if isinstance(trainer.strategy, ModelParallelStrategy):
            raise ValueError(
                "trainer.strategy: invalid fsdp2 with WeightAverage, which copies whole "
                "weights; use ddp"
            )
        self.begin()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from a checkpoint's, now that the weights are on their device."""
        if self.carried is not None:
            self.average = wide_copy(pl_module.net)
            self.average.load_state_dict(unprefixed(self.carried))
            self.carried = None

    def on_train_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Segment, batch_idx: int
    ) -> None:
        """Note which step it is part of."""
        self.step = trainer.global_step

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """Count the weights, if this was the end of a step."""
        if trainer.global_step > max(self.step, self.start_step):
            self.update(pl_module.net)

    @torch.no_grad()
    def update(self, net: TransformerXL) -> None:
        """Let the weights count."""
        self.count += 1
        if self.average is None:
            self.average = wide_copy(net)
        weight = 1 / self.count if self.decay is None else 1 - self.decay
        for mean, now in zip(self.average.parameters(), net.parameters(), strict=True):
            mean.lerp_(now.to(mean), weight)

    def on_validation_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Measure the average."""
        self.put_in(pl_module.net)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Train on with what was put aside; a `validate` that follows `fit` trains no more."""
        if self.aside is not None and trainer.state.fn == "fit":
            pl_module.net.load_state_dict(self.aside.state_dict())
            self.aside = None

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """The average is what training leaves behind."""
        self.put_in(pl_module.net)

    def put_in(self, net: TransformerXL) -> None:
        """Put the average in the place of the weights, and them aside."""
        if self.average is not None and self.aside is None:
            self.aside = deepcopy(net)
            net.load_state_dict(self.average.state_dict())

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Both, whichever of them is in its place."""
        if self.average is not None:
            checkpoint[TRAINED] = prefixed((self.aside or pl_module.net).state_dict())
            checkpoint["state_dict"] = prefixed(self.average.state_dict())

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep the average until training starts."""
        self.carried = checkpoint.get(AVERAGE)

    def state_dict(self) -> dict[str, int]:
        """How many steps have counted."""
        return {"count": self.count}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Count on."""
        self.count = state_dict["count"]


def wide_copy(net: TransformerXL) -> TransformerXL:
    """A copy in at least float32: a narrower mean would not move by a small part."""
    dtype = next(net.parameters()).dtype
    return deepcopy(net).to(torch.promote_types(dtype, torch.float32)).requires_grad_(False)


def prefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """A network's weights by the names that LanguageModel has for them."""
    return {f"net.{name}": weights[name] for name in weights}


def unprefixed(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """LanguageModel's weights by the names that the network has for them."""
    return {name.removeprefix("net."): weights[name] for name in weights}


def restore_trained_weights(checkpoint: dict[str, Any], trainer: Trainer) -> None:
    """Let fit load the weights that were trained, and find their average beside them."""
    if trainer.state.fn == "fit" and TRAINED in checkpoint:
        checkpoint[AVERAGE] = checkpoint["state_dict"]
        checkpoint["state_dict"] = checkpoint.pop(TRAINED)
        if not any(isinstance(each, WeightAverage) for each in trainer.callbacks):
            rank_zero_warn(
                "the checkpoint holds an average of weights; without the callback WeightAverage "
                "training goes on from the weights themselves"
            )


def refuse_other_averages(callbacks: Iterable[Callback]) -> None:
    """Refuse Lightning's own averages, from whose checkpoints training does not go on exactly.

    Raises:
        ValueError: there is one.
    """
    for callback in callbacks:
        if isinstance(callback, WeightAveraging | StochasticWeightAveraging):
            raise ValueError(
                f"trainer.callbacks: invalid {type(callback).__name__}; expected "
                "WeightAverage of txl_lightning, which resumes exactly"
            )
