"""The callbacks of every LanguageModel: TrainingStateCheckpoint, and NonFiniteGuard before it.

They save and restore the state of a run, and refuse an update or a checkpoint with numbers that are
not finite. Their module is a LanguageModel, which makes them.
"""

import math
import time
from collections import Counter
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from torch.nn import Parameter
from torch.nn.utils import clip_grads_with_norm_
from torch.optim import Adam, AdamW, Optimizer
from torch.optim.lr_scheduler import LambdaLR

from ...data.stream import Segment, TrainingLoader
from ...errors import CheckpointError, NonFiniteError, require
from ...imports import list_foreign_classes, warn_if_local
from ...runs.logger import RunLogger
from .. import loops
from ..ranks import gather_shards, local_part
from ..run_state import capture_state, find_callbacks, restore_state

AVERAGE = "WeightAverage of txl_lightning, which resumes exactly"
REFUSED = {
    callbacks.BackboneFinetuning: "none that needs a part named backbone",
    callbacks.BatchSizeFinder: "data.batch_size, and data.micro_batches if memory is short",
    # Lightning sets its number at the start of an epoch, in which a resumed run is already.
    callbacks.GradientAccumulationScheduler: "trainer.accumulate_grad_batches, for all steps",
    callbacks.LearningRateFinder: "model.optim.lr, or runs of txl-lightning sweep",
    callbacks.ModelPruning: "none that replaces weights, which a resume would lose",
    callbacks.SpikeDetection: "none that skips batches; model.optim.max_skipped_updates does",
    callbacks.StochasticWeightAveraging: AVERAGE,
    callbacks.WeightAveraging: AVERAGE,
}
"""Lightning's callbacks that need what is not here, and what to use instead."""
UNFINISHED = callbacks.BaseFinetuning, callbacks.BasePredictionWriter
MOST_UNSEEN = 100
"""Steps after which the host looks for numbers that are not finite, if nothing is logged before."""


def refuse_callbacks(trainer: Trainer) -> None:
    classes = [kind for each in trainer.callbacks for kind in type(each).__mro__]
    for kind, count in Counter(classes).items():
        is_ours = kind.__module__.startswith("txl_lightning.")
        expected = "one, with that of the run itself: a checkpoint has the state of one"
        value = f"{count} of {kind.__name__}"
        require(count == 1 or not is_ours, "trainer.callbacks", value, expected)
    for each in trainer.callbacks:
        name = type(each).__name__
        is_whole = type(each) not in UNFINISHED
        require(is_whole, "trainer.callbacks", name, "a class that is derived from it")
        for kind, expected in REFUSED.items():
            require(not isinstance(each, kind), "trainer.callbacks", name, expected)


class NonFiniteGuard(Callback):
    """Skip updates with a non-finite loss or gradient, and refuse to save non-finite weights.

    Where the host would wait for a GPU, the optimizer skips updates there. The host looks at the
    numbers where a line is logged, before a validation or a checkpoint, and at the end. After one
    bad update too many, nothing is updated until then.
    """

    def __init__(self, max_skipped: int = 0) -> None:
        self.max_skipped = max_skipped
        self.n_skipped = 0
        self.losses: list[Tensor] = []
        self.norm: float | None = None  # None: only the device knows it
        self.batch_name = ""
        # Names, losses and norms of steps at which the host has not looked, and how many are bad.
        self.unseen: list[tuple[str, Tensor]] = []
        self.n_bad: Tensor | int = 0

    def on_train_batch_start(self, _: Trainer, __: Any, batch: Any, batch_idx: int) -> None:
        self.batch_name = f"batch {batch_idx}"
        if isinstance(batch, Segment):
            self.batch_name = f"segment {batch.index} of the training text"

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        # There are several in a step when gradients accumulate.
        self.losses.append(loss.detach().float())

    def on_before_optimizer_step(
        self, trainer: Trainer, module: LightningModule, optimizer: Optimizer
    ) -> None:
        gradients = [weight.grad for weight in module.parameters() if weight.grad is not None]
        # For clipping, which would otherwise copy the number back to the device, and wait.
        self.norm_on_device = gather_shards(torch.nn.utils.get_total_norm(gradients))
        # Loss and norm together, because each transfer waits for the device.
        both = torch.stack([torch.stack(self.losses).sum(), self.norm_on_device])
        self.losses = []
        self.unseen.append((f"step {trainer.global_step + 1}, {self.batch_name}", both))
        self.norm = None
        # torch's fused optimizers change nothing where it is 1.
        optimizer.found_inf = None
        if self.may_look_later(trainer, module, optimizer):
            optimizer.found_inf = self.skip_on_device(module, ~both.isfinite().all())
        elif self.look(trainer, module):
            module.zero_grad(set_to_none=True)
            module.memory_bank.discard("train")
            module.get_nats("train").reset()
        elif module.is_logged_step(trainer.global_step + 1):
            module.log("train/grad_norm", self.norm)

    def may_look_later(
        self, trainer: Trainer, module: LightningModule, optimizer: Optimizer
    ) -> bool:
        """Return True if the host would wait for numbers, and the device can skip the update."""
        waits = not self.norm_on_device.is_cpu and len(self.unseen) < MOST_UNSEEN
        # A scaler waits itself, and ranks exchange what they have found.
        is_alone = trainer.world_size == 1 and find_scaler(trainer) is None
        skips = type(optimizer) in (Adam, AdamW) and optimizer.defaults["fused"]
        is_logged = module.is_logged_step(trainer.global_step + 1)
        return waits and is_alone and skips and module.memory_bank.can_empty and not is_logged

    def skip_on_device(self, module: LightningModule, is_bad: Tensor) -> Tensor:
        """Discard the memory that led to a bad update; return 1 if nothing must be updated."""
        self.n_bad = self.n_bad + is_bad
        module.memory_bank.empty_staged(is_bad)
        module.get_nats("train").reset_if(is_bad)
        return (is_bad | (self.n_skipped + self.n_bad > self.max_skipped)).float()

    def look(self, trainer: Trainer, module: LightningModule) -> bool:
        """Read the numbers of all steps since the last look; return True if the last one is bad."""
        names, numbers = zip(*self.unseen, strict=True)
        self.unseen = []
        self.n_bad = 0
        is_scaled = find_scaler(trainer) is not None
        for name, (loss, norm) in zip(names, torch.stack(numbers).tolist(), strict=True):
            # A scaler adjusts its scale to infinite gradients, and skips those updates itself.
            is_finite = math.isfinite(loss if is_scaled else loss + norm)
            [is_bad] = module.ranks.max(int(not is_finite))
            if is_bad:
                self.count_skipped(name, f"loss {loss}, gradient norm {norm}")
        self.norm = norm
        return bool(is_bad)

    def count_skipped(self, name: str, values: str) -> None:
        """Warn of a skipped update; raise NonFiniteError after max_skipped."""
        self.n_skipped += 1
        if self.n_skipped > self.max_skipped:
            fix = "lower model.optim.lr, or allow some with model.optim.max_skipped_updates"
            raise NonFiniteError(f"{name}: {values}; nothing was updated; {fix}")
        rank_zero_warn(f"{name}: {values}; skipped ({self.n_skipped} of {self.max_skipped})")

    def clip(self, parameters: Iterable[Parameter], limit: float) -> None:
        """Scale the gradient of a step to a norm of at most `limit`."""
        # Where only the device knows the norm, it multiplies by 1 if there is nothing to clip.
        if self.norm is None or self.norm > limit:
            clip_grads_with_norm_(parameters, limit, self.norm_on_device)

    def look_back(self, trainer: Trainer, module: LightningModule) -> None:
        if self.unseen:
            self.look(trainer, module)

    on_validation_start = on_train_end = look_back

    def on_save_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict
    ) -> None:
        if trainer.state.status == TrainerStatus.INTERRUPTED:
            return
        self.look_back(trainer, module)
        weights = map(local_part, module.parameters())
        # Each rank checks its own shards.
        [is_bad] = module.ranks.max(int(not all(weight.isfinite().all() for weight in weights)))
        if is_bad:
            raise NonFiniteError(
                f"step {trainer.global_step}: a weight is not finite; nothing is saved, the last "
                "checkpoint is unchanged; lower model.optim.lr"
            )


def find_scaler(trainer: Trainer) -> Any:
    """Return the gradient scaler of 16-mixed; None of other precisions."""
    return getattr(trainer.precision_plugin, "scaler", None)


class TrainingStateCheckpoint(Callback):
    """Commit memory and position together, after each segment and before a checkpoint.

    A step is logged before a checkpoint of it is written, so that no kill loses its row.
    """

    def __init__(self) -> None:
        self.is_logged = True

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        if stage != "fit":
            return
        if trainer.is_global_zero:
            vocab = getattr(module.corpus, "vocab", None)
            for key, name in list_foreign_classes(module.net.config, vocab).items():
                warn_if_local(key, name)
        if not trainer.global_step:
            # Otherwise fit goes on with this Trainer.
            module.tokens_seen = 0
            module.started_at = time.monotonic()
            module.metrics = {}
        loops.replace_step_logging(trainer, partial(self.log_once, trainer))

    def on_fit_start(self, trainer: Trainer, module: LightningModule) -> None:
        refuse_schedulers(trainer)

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        refuse_different_starts(trainer, module)
        if module.loaded_state is not None:
            restore_state(module.loaded_state, trainer, module)
            module.loaded_state = None
        elif trainer.global_rank:
            # With equal random numbers, ranks would drop the same units of different rows.
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)

    def on_train_batch_start(self, trainer: Trainer, *_: Any) -> None:
        loops.log_as_step(trainer, trainer.global_step)

    def on_train_batch_end(
        self, trainer: Trainer, module: LightningModule, _: Any, batch: Segment, batch_idx: int
    ) -> None:
        module.memory_bank.commit()
        module.tokens_seen += module.segment_tokens
        if isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.commit(batch)
        self.is_logged = False
        for last in find_callbacks(trainer, "LastCheckpoint"):
            # Before a ModelCheckpoint of the user's writes this step.
            last.validation_due = module.between_steps and loops.is_validation_next(trainer)

    def on_validation_start(self, trainer: Trainer, module: LightningModule) -> None:
        if module.is_fitting:
            # Validations are logged at the last step taken, also while gradients accumulate.
            loops.log_as_step(trainer, trainer.global_step - 1)

    def log_once(self, trainer: Trainer) -> None:
        """Log the segment that has ended, unless a checkpoint of it is already written."""
        if not self.is_logged:
            self.is_logged = True
            loops.log_step(trainer)

    def on_save_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict
    ) -> None:
        if trainer.state.status != TrainerStatus.INTERRUPTED:
            self.log_once(trainer)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.flush_to_disk()
        capture_state(trainer, module, checkpoint)


def refuse_schedulers(trainer: Trainer) -> None:
    """Refuse the schedules of a model of one's own that a resume would not continue exactly.

    ReduceLROnPlateau follows a validation, but only after the checkpoint that is written there.
    """
    schedulers = [each.scheduler for each in trainer.lr_scheduler_configs]
    names = ", ".join(type(each).__name__ for each in schedulers) or "no scheduler"
    is_possible = len(schedulers) == 1 and isinstance(schedulers[0], LambdaLR)
    expected = "one LambdaLR, whose rate depends on the step alone, as of model.optim.schedule"
    require(is_possible, "configure_optimizers", names, expected)


def refuse_different_starts(trainer: Trainer, module: LightningModule) -> None:
    """Raise CheckpointError on every rank unless all have loaded the same checkpoint."""
    position = (module.loaded_state and module.loaded_state.position) or {}
    start = trainer.global_step, position.get("consumed", 0)
    largest = module.ranks.max(*start, *(-number for number in start))
    if largest[:2] != [-number for number in largest[2:]]:
        raise CheckpointError(
            f"resume: rank {trainer.global_rank} starts at step {start[0]}, another does not; "
            "trainer.default_root_dir must be one folder for all machines"
        )
