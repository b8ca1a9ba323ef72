"""WeightAverage: validate, save and use an average of the weights over steps."""

from copy import deepcopy
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy

from ...errors import print_notice, require
from ...model import Network
from ..module import LanguageModel


class WeightAverage(Callback):
    """Average the weights; validation measures the average, and other commands load it.

    Buffers are not averaged: they are those of the network at present.
    Training is not changed: its weights are kept aside during a validation, and saved beside the
    average. Before the average begins, validation measures the weights.

    Args:
        decay: Weight of the exponential moving average before each step; null: all steps weigh the
            same (Polyak and Juditsky 1992; Merity et al. 2017 for language models, with a constant
            learning rate).
        start_step: Number of steps to leave out of the average.
    """

    def __init__(self, decay: float | None = 0.999, start_step: int = 0) -> None:
        is_possible = decay is None or 0 <= decay < 1
        require(is_possible, "decay", decay, "at least 0 and less than 1, or null")
        require(start_step >= 0, "start_step", start_step, "0 or more")
        self.decay = decay
        self.start_step = start_step
        self.average: Network | None = None
        self.trained: Network | None = None
        self.net: Network | None = None
        self.n_averaged = 0

    def forget(self) -> None:
        """Begin a new average."""
        self.average = self.trained = None
        self.n_averaged = 0

    def setup(self, trainer: Trainer, module: LanguageModel, stage: str) -> None:
        if stage == "fit":
            is_sharded = isinstance(trainer.strategy, ModelParallelStrategy)
            expected = "ddp with WeightAverage, which copies whole weights"
            require(not is_sharded, "trainer.strategy", "fsdp2", expected)
            if not trainer.global_step or self.net is not module.net:
                # Otherwise fit goes on with this Trainer.
                self.forget()
            elif self.trained is not None and not are_equal(module.net, self.average):
                # The user has loaded others since the last fit has left its average.
                self.trained = None

    def on_train_start(self, trainer: Trainer, module: LanguageModel) -> None:
        self.net = module.net
        # When it was loaded, the weights were not yet on their device.
        if self.average is not None:
            self.average.to(module.device)
        if self.trained is not None:
            module.net.load_state_dict(self.trained.state_dict())
            self.trained = None
        if 0 <= trainer.max_steps <= self.start_step and trainer.is_global_zero:
            end = f"the run ends at step {trainer.max_steps:,}; nothing is averaged"
            print_notice(f"WeightAverage.start_step {self.start_step:,}: {end}")

    @torch.no_grad()
    def on_train_batch_end(self, trainer: Trainer, module: LanguageModel, *_: Any) -> None:
        if module.between_steps and trainer.global_step > self.start_step:
            self.n_averaged += 1
            if self.average is None:
                self.average = copy_at_least_float32(module.net)
            weight = 1 / self.n_averaged if self.decay is None else 1 - self.decay
            for mean, now in zip(self.average.parameters(), module.net.parameters(), strict=True):
                mean.lerp_(now.to(mean), weight)
        if self.average is not None:
            # As torch's AveragedModel does: running statistics are averages already, and others
            # (counts, masks) have no mean. After each segment, because a forward pass changes them.
            for kept, now in zip(self.average.buffers(), module.net.buffers(), strict=True):
                kept.copy_(now)

    def load_average(self, trainer: Trainer, module: LanguageModel) -> None:
        """Load the average into the network, and keep a copy of its trained weights."""
        if self.average is not None and self.trained is None:
            self.trained = deepcopy(module.net)
            module.net.load_state_dict(self.average.state_dict())

    on_validation_epoch_start = on_train_end = load_average

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        # After fit, `validate` has no weights to train.
        if self.trained is not None and trainer.state.fn == "fit":
            module.net.load_state_dict(self.trained.state_dict())
            self.trained = None

    def adopt(self, net: Network, average: dict[str, torch.Tensor]) -> None:
        """Continue an average from the weights of a checkpoint; `net` has its precision."""
        self.trained = None
        self.average = copy_at_least_float32(net)
        weights = {name.removeprefix("net."): average[name] for name in average}
        self.average.load_state_dict(weights)


def are_equal(net: Network, average: Network) -> bool:
    """Return True if a network has the weights of an average, in its own precision."""
    pairs = zip(net.parameters(), average.parameters(), strict=True)
    return all(torch.equal(weight, mean.to(weight)) for weight, mean in pairs)


def copy_at_least_float32(net: Network) -> Network:
    """Copy a network; in a narrower type, the mean would round small changes away."""
    dtype = next(net.parameters()).dtype
    return deepcopy(net).to(torch.promote_types(dtype, torch.float32)).requires_grad_(False)
