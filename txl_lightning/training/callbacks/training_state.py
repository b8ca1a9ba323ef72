"""What is carried from step to step and over an interruption: memory, position, random numbers.

N layers   B rows of all ranks   M remembered   D width
"""

import platform
import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ...checkpoints.files import FORMAT, KEY
from ...data.stream import Segment, TrainingLoader
from ...errors import CheckpointError
from ...model import Memory


class TrainingStateCheckpoint(Callback):
    """Memory and position advance together, after the step and before a checkpoint is written.

    The checkpoint gets the memory of all rows, in their order, whichever rank read them,
    and each rank's random numbers and running mean. The position is in it where Lightning keeps
    the state of loaders.
    """

    def __init__(self) -> None:
        self.carried: dict[str, Any] | None = None
        self.position: dict[str, Any] | None = None

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Go on from the checkpoint, now that nothing else draws random numbers."""
        check_together(trainer, pl_module, self.position)
        if self.carried is not None:
            self.restore(trainer, pl_module, self.carried)
        elif trainer.global_rank:
            # Ranks that draw the same would drop the same units of different rows.
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        # With max_epochs given, Lightning forgets the position when anything has asked for
        # trainer.estimated_stepping_batches.
        if self.position is not None and isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.load_state_dict(self.position)
        self.carried = self.position = None

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Segment,
        batch_idx: int,
    ) -> None:
        """The step is done: what it left is what the next one starts from."""
        pl_module.memory_bank.commit()
        if isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.commit(batch)

    def on_save_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Runs on every rank; rank 0 writes."""
        crashed = trainer.state.status == TrainerStatus.INTERRUPTED
        own = {
            "memory": training_memory(pl_module),
            "rng": random_numbers(pl_module.device),
            "mean": [value.item() for value in pl_module.train_nats.metric_state.values()],
        }
        # After an exception on one rank, gathering would wait for the others forever.
        ranks = [own] if crashed else pl_module.ranks.gather(own)
        checkpoint[KEY] = {
            "format": FORMAT,
            "exact": pl_module.between_steps and not pl_module.memory_bank.staged and not crashed,
            "world_size": trainer.world_size,
            "environment": environment(trainer, pl_module),
        }
        if ranks is not None and (not crashed or trainer.world_size == 1):
            memory = joined([rank.pop("memory") for rank in ranks])
            checkpoint[KEY] |= {"memory": memory, "ranks": ranks}

    def on_load_checkpoint(
        self, trainer: Trainer, pl_module: LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Keep what it holds until training starts."""
        if trainer.state.fn != "fit":
            return
        self.carried = checkpoint.get(KEY, {})
        loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
        self.position = loaders[0] if loaders else None

    def restore(
        self, trainer: Trainer, pl_module: LightningModule, carried: dict[str, Any]
    ) -> None:
        """Take this rank's part, and say what cannot be as it was."""
        warn(carried, trainer, pl_module)
        if memory := carried.get("memory"):
            pl_module.memory_bank.committed["train", 0] = dealt(memory, trainer)
        ranks, rank = carried.get("ranks", []), trainer.global_rank
        if len(ranks) == trainer.world_size:
            set_random_numbers(ranks[rank]["rng"], pl_module.device)
            set_mean(pl_module, ranks[rank]["mean"])
        elif ranks:
            set_random_numbers(ranks[0]["rng"], pl_module.device)
            torch.manual_seed(int(torch.randint(1 << 62, ())) + rank)
            means = np.sum([each["mean"] for each in ranks], axis=0).tolist()
            set_mean(pl_module, means if rank == 0 else [0.0] * len(means))


def training_memory(pl_module: LightningModule) -> tuple[Tensor, Tensor] | None:
    """The states and filled counts of this rank's rows, on the host; None before the first step."""
    memory = pl_module.memory_bank.committed.get(("train", 0))
    return memory and (memory.h_NBMD.cpu(), memory.filled_B.cpu())


def joined(parts: list[tuple[Tensor, Tensor] | None]) -> dict[str, Tensor] | None:
    """The memory of all rows in their order; None before the first step."""
    if None in parts:
        return None
    h, filled = zip(*parts, strict=True)
    return {"h": torch.cat(h, dim=1), "filled": torch.cat(filled)}


def dealt(memory: dict[str, Tensor], trainer: Trainer) -> Memory:
    """This rank's rows of it."""
    h_NBMD, filled_B = memory["h"], memory["filled"]
    count = len(filled_B) // trainer.world_size
    rows = slice(trainer.global_rank * count, (trainer.global_rank + 1) * count)
    return Memory(h_NBMD[:, rows].clone(), filled_B[rows].clone())


def random_numbers(device: torch.device) -> dict[str, Any]:
    """The state of every generator that training may draw from."""
    kind, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states | {"numpy": (kind, keys.tolist(), *rest)}


def set_random_numbers(states: dict[str, Any], device: torch.device) -> None:
    """Draw on from there."""
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def set_mean(pl_module: LightningModule, values: list[float]) -> None:
    """The nats and the count since the last time that something was logged."""
    mean = pl_module.train_nats
    for name, value in zip(mean.metric_state, values, strict=True):
        getattr(mean, name).fill_(value)


def environment(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    """What decides, beside the settings, how a sum is rounded."""
    device = pl_module.device
    return {
        "micro_batches": pl_module.corpus.micro_batches if pl_module.corpus else 1,
        "compile": pl_module.hparams["compile"],
        "devices": trainer.world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": f"{platform.machine()} {torch.backends.cpu.get_cpu_capability()}",
        "strategy": type(trainer.strategy).__name__,
        "precision": str(trainer.precision),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def check_together(
    trainer: Trainer, pl_module: LightningModule, position: dict[str, Any] | None
) -> None:
    """Refuse to train ranks that did not all find the same checkpoint.

    Raises:
        CheckpointError: on every rank.
    """
    here = trainer.global_step, (position or {}).get("consumed", 0)
    most = pl_module.ranks.max(*here, *(-number for number in here))
    if most[:2] != [-number for number in most[2:]]:
        raise CheckpointError(
            f"resume: rank {trainer.global_rank} starts at step {here[0]}, another does not; "
            "trainer.default_root_dir must be one folder for all machines"
        )


def warn(carried: dict[str, Any], trainer: Trainer, pl_module: LightningModule) -> None:
    """Say what cannot be as it was."""
    if not carried.get("exact"):
        rank_zero_warn("the checkpoint was saved in mid-step: what follows is near, not exact")
    if not carried.get("memory"):
        rank_zero_warn("the checkpoint holds no memory: it starts empty")
    was, now = carried.get("environment", {}), environment(trainer, pl_module)
    changed = [
        f"{name}: was {was.get(name)}, is {now[name]}"
        for name in now
        if name in was and was[name] != now[name]
    ]
    if changed:
        rank_zero_warn(
            "the order of the text is exact, but losses are so to rounding only, and dropout may "
            f"differ ({'; '.join(changed)})"
        )
