"""The callbacks of every LanguageModel: TrainingStateCheckpoint, and NonFiniteGuard before it.

They save and restore memory, position in the text and random numbers, and refuse an update or a
checkpoint with numbers that are not finite. Their module is a LanguageModel, which makes them.
"""

import math
import platform
import random
import time
from functools import partial
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer, callbacks
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ..data.stream import Segment, TrainingLoader
from ..errors import CheckpointError, NonFiniteError, require
from ..imports import find_version, is_class_path, name_class, warn_if_local
from ..model.contract import join_rows
from ..model.parts import is_onednn_faster
from ..runs.folder import FORMAT, KEY
from ..runs.logger import RunLogger
from . import loops
from .ranks import gather_shards, local_part

State = dict[str, Any]
AVERAGE = "WeightAverage of txl_lightning, which resumes exactly"
REFUSED = {
    callbacks.BackboneFinetuning: "none that needs a part named backbone",
    callbacks.BatchSizeFinder: "data.batch_size, and data.micro_batches if memory is short",
    callbacks.LearningRateFinder: "model.optim.lr, or runs of txl-lightning sweep",
    callbacks.ModelPruning: "none that replaces weights, which a resume would lose",
    callbacks.SpikeDetection: "none that skips batches; model.optim.max_skipped_updates does",
    callbacks.StochasticWeightAveraging: AVERAGE,
    callbacks.WeightAveraging: AVERAGE,
}
"""Lightning's callbacks that need what is not here, and what to use instead."""
UNFINISHED = callbacks.BaseFinetuning, callbacks.BasePredictionWriter


def refuse_callbacks(given: list[Callback]) -> None:
    for each in given:
        name = type(each).__name__
        is_whole = type(each) not in UNFINISHED
        require(is_whole, "trainer.callbacks", name, "a class that is derived from it")
        for kind, expected in REFUSED.items():
            require(not isinstance(each, kind), "trainer.callbacks", name, expected)


class NonFiniteGuard(Callback):
    """Skip updates with a non-finite loss or gradient, and refuse to save non-finite weights."""

    def __init__(self, max_skipped: int = 0) -> None:
        self.max_skipped = max_skipped
        self.n_skipped = 0
        self.losses: list[Tensor] = []
        self.norm = math.nan
        self.batch_name = ""

    def on_train_batch_start(self, _: Trainer, __: Any, batch: Any, batch_idx: int) -> None:
        self.batch_name = f"batch {batch_idx}"
        if isinstance(batch, Segment):
            self.batch_name = f"segment {batch.index} of the training text"

    def on_before_backward(self, trainer: Trainer, module: LightningModule, loss: Tensor) -> None:
        # There are several in a step when gradients accumulate.
        self.losses.append(loss.detach().float())

    def on_before_optimizer_step(self, trainer: Trainer, module: LightningModule, *_: Any) -> None:
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

    def skip(self, trainer: Trainer, module: LightningModule, values: str) -> None:
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

    def on_save_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict
    ) -> None:
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


class TrainingStateCheckpoint(Callback):
    """Commit memory and position together, after the step and before a checkpoint is written.

    A checkpoint has the memory of all rows in their order, whichever rank read them, and each
    rank's random numbers and running mean. The position is where Lightning keeps the state of
    loaders. A step is logged before a checkpoint of it is written, so that no kill loses its row.
    """

    def __init__(self) -> None:
        self.loaded: State | None = None
        self.position: State | None = None
        self.is_logged = True

    def setup(self, trainer: Trainer, module: LightningModule, stage: str) -> None:
        if stage == "fit" and trainer.is_global_zero:
            for key, name in list_classes(module).items():
                warn_if_local(key, name)
        if not trainer.global_step:
            # Otherwise fit goes on with this Trainer.
            module.tokens_seen = 0
            module.started_at = time.monotonic()
        loops.replace_step_logging(trainer, partial(self.log_once, trainer))

    def on_load_checkpoint(
        self, trainer: Trainer, module: LightningModule, checkpoint: dict
    ) -> None:
        if trainer.state.fn == "fit":
            self.loaded = checkpoint.get(KEY, {})
            module.tokens_seen = self.loaded.get("tokens", 0)
            module.started_at -= checkpoint.get("seconds", 0.0)
            saved = checkpoint["loops"]["fit_loop"]["state_dict"]
            if "read_as" in (saved.get("combined_loader") or [{}])[0]:
                # Removed, after `PassLimit.load` has read it in the module's hook: Lightning
                # sometimes forgets it, and otherwise would warn a second time.
                [self.position] = saved.pop("combined_loader")

    def on_train_start(self, trainer: Trainer, module: LightningModule) -> None:
        refuse_different_starts(trainer, module, self.position or {})
        if self.loaded is not None:
            # The last hook before training that may draw random numbers.
            restore(self.loaded, trainer, module)
        elif trainer.global_rank:
            # With equal random numbers, ranks would drop the same units of different rows.
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        if self.position is not None:
            trainer.train_dataloader.load_state_dict(self.position)
        self.loaded = self.position = None

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
        is_crash = trainer.state.status == TrainerStatus.INTERRUPTED
        bank = module.memory_bank
        if not is_crash:
            self.log_once(trainer)
            for logger in trainer.loggers:
                if isinstance(logger, RunLogger):
                    logger.flush_to_disk()
        # All ranks get here and rank 0 writes; but after an exception on one rank, gathering would
        # wait for the others forever.
        memory = bank.committed.get(("train", 0))
        # There is none before the first step.
        memory = memory and memory.to("cpu")
        mean = [value.item() for value in module.train_nats.metric_state.values()]
        own = {"memory": memory and memory.tensors(), "mean": mean}
        # Not module.device: after training, Lightning has moved the weights to the CPU.
        own["rng"] = get_random_states(trainer.strategy.root_device)
        ranks = [own] if is_crash else module.ranks.gather(own)
        checkpoint[KEY] = {
            "format": FORMAT,
            "exact": module.between_steps and not bank.staged and not is_crash,
            "world_size": trainer.world_size,
            "environment": describe_rounding(trainer, module),
            "tokens": module.tokens_seen,
        }
        # Not part of the state, which is the same however often a run was interrupted.
        checkpoint["seconds"] = module.seconds
        if ranks is not None and (not is_crash or trainer.world_size == 1):
            parts = [rank.pop("memory") for rank in ranks]
            checkpoint[KEY] |= {"memory": memory and join_rows(memory, parts), "ranks": ranks}


def restore(state: State, trainer: Trainer, module: LightningModule) -> None:
    warn_of_changes(state, describe_rounding(trainer, module))
    ranks = state.get("ranks", [])
    rank = trainer.global_rank
    if tensors := state.get("memory"):
        memory = module.net.empty_memory(1)
        memory = memory.restore(tensors)
        n_row = memory.batch_size // trainer.world_size
        memory = memory.rows(slice(rank * n_row, (rank + 1) * n_row))
        # Copies, because the tensors may be those of a file that training replaces.
        copies = {name: tensor.clone() for name, tensor in memory.tensors().items()}
        module.memory_bank.committed["train", 0] = memory.restore(copies)
    if not ranks:
        return
    if len(ranks) == trainer.world_size:
        set_random_states(ranks[rank]["rng"], trainer.strategy.root_device)
        mean = ranks[rank]["mean"]
    else:
        set_random_states(ranks[0]["rng"], trainer.strategy.root_device)
        torch.manual_seed(int(torch.randint(1 << 62, ())) + rank)
        mean = np.sum([each["mean"] for each in ranks], axis=0) * (rank == 0)
    # The sum and the count since training was last logged.
    for name, value in zip(module.train_nats.metric_state, mean, strict=True):
        getattr(module.train_nats, name).fill_(value)


def get_random_states(device: torch.device) -> State:
    name, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states | {"numpy": (name, keys.tolist(), *rest)}


def set_random_states(states: State, device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def find_packages(module: LightningModule) -> State:
    """Return package and version of a network, vocabulary and position scheme that are not ours."""
    packages = {key: name.partition(".")[0] for key, name in list_classes(module).items()}
    return {key: f"{package} {find_version(package)}" for key, package in packages.items()}


def list_classes(module: LightningModule) -> dict[str, str]:
    """Return the classes that a checkpoint names and this package does not have."""
    config = module.net.config
    vocab = getattr(module.corpus, "vocab", None)
    names = {"network": name_class(type(config)), "vocabulary": name_class(type(vocab))}
    if is_class_path(scheme := getattr(config, "positions", "")):
        names["positions"] = scheme
    own = ("txl_lightning", "builtins")
    return {key: name for key, name in names.items() if name.partition(".")[0] not in own}


def describe_rounding(trainer: Trainer, module: LightningModule) -> State:
    """Return what affects the rounding of sums, besides the settings of the model."""
    device = trainer.strategy.root_device
    vectors = torch.backends.cpu.get_cpu_capability()
    vectors += " AMX" * torch.cpu.get_capabilities().get("amx_bf16", False)
    vectors += " oneDNN" * is_onednn_faster()
    return find_packages(module) | {
        "micro_batches": module.corpus.config.micro_batches if module.corpus else 1,
        "compile": module.hparams["compile"],
        "devices": trainer.world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": f"{platform.machine()} {vectors}",
        "strategy": type(trainer.strategy).__name__,
        "precision": str(trainer.precision),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        # The compiler's Triton, with its assembler, is the one that this torch requires.
        "cuda": str(torch.version.cuda),
    }


def refuse_different_starts(trainer: Trainer, module: LightningModule, position: State) -> None:
    """Raise CheckpointError on every rank unless all have loaded the same checkpoint."""
    start = trainer.global_step, position.get("consumed", 0)
    largest = module.ranks.max(*start, *(-number for number in start))
    if largest[:2] != [-number for number in largest[2:]]:
        raise CheckpointError(
            f"resume: rank {trainer.global_rank} starts at step {start[0]}, another does not; "
            "trainer.default_root_dir must be one folder for all machines"
        )


def warn_of_changes(state: State, now: State) -> None:
    if not state.get("exact"):
        rank_zero_warn("the checkpoint was saved in mid-step: what follows is near, not exact")
    if not state.get("memory"):
        rank_zero_warn("the checkpoint holds no memory: it starts empty")
    was = now | state.get("environment", {})
    changed = [f"{name}: was {was[name]}, is {now[name]}" for name in now if was[name] != now[name]]
    if changed:
        rank_zero_warn(
            "the order of the text is exact, but losses are so to rounding only, and dropout may "
            f"differ ({'; '.join(changed)})"
        )
