"""TrainingStateCheckpoint: memory, position and random numbers in every checkpoint.

N layers   B rows of all ranks   M remembered   D width
"""

import platform
import random
from typing import Any

import numpy as np
import torch
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn

from ...checkpoints.files import FORMAT, KEY
from ...data.stream import Segment, TrainingLoader
from ...errors import CheckpointError
from ...model import Memory
from ..computing import has_bfloat16_units

State = dict[str, Any]


class TrainingStateCheckpoint(Callback):
    """Commit memory and position together, after the step and before a checkpoint is written.

    A checkpoint gets the memory of all rows, in their order, whichever rank read them, and each
    rank's random numbers and running mean. The position is in it where Lightning keeps the state of
    loaders.
    """

    def __init__(self) -> None:
        self.loaded: State | None = None
        self.position: State | None = None

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        refuse_different_starts(trainer, pl_module, self.position)
        if self.loaded is not None:
            # Not earlier: nothing else draws random numbers from here on.
            restore(self.loaded, trainer, pl_module)
        elif trainer.global_rank:
            # Ranks that draw the same would drop the same units of different rows.
            torch.manual_seed(torch.initial_seed() + trainer.global_rank)
        # With max_epochs given, Lightning forgets the position when anything has asked for
        # trainer.estimated_stepping_batches.
        if self.position is not None and isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.load_state_dict(self.position)
        self.loaded = self.position = None

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: Any, outputs: Any, batch: Segment, *_: Any
    ) -> None:
        pl_module.memory_bank.commit()
        if isinstance(trainer.train_dataloader, TrainingLoader):
            trainer.train_dataloader.commit(batch)

    def on_save_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: State) -> None:
        crashed, bank = trainer.state.status == TrainerStatus.INTERRUPTED, pl_module.memory_bank
        memory = bank.committed.get(("train", 0))
        own = {
            "memory": memory and (memory.h_NBMD.cpu(), memory.filled_B.cpu()),
            "rng": random_states(pl_module.device),
            "mean": [value.item() for value in pl_module.train_nats.metric_state.values()],
        }
        # All ranks get here and rank 0 writes; but after an exception on one rank, gathering would
        # wait for the others forever.
        ranks = [own] if crashed else pl_module.ranks.gather(own)
        checkpoint[KEY] = {
            "format": FORMAT,
            "exact": pl_module.between_steps and not bank.staged and not crashed,
            "world_size": trainer.world_size,
            "environment": describe_rounding(trainer, pl_module),
        }
        if ranks is not None and (not crashed or trainer.world_size == 1):
            parts, memory = [rank.pop("memory") for rank in ranks], None
            # There is none before the first step.
            if None not in parts:
                h, filled = zip(*parts, strict=True)
                memory = {"h": torch.cat(h, dim=1), "filled": torch.cat(filled)}
            checkpoint[KEY] |= {"memory": memory, "ranks": ranks}

    def on_load_checkpoint(self, trainer: Trainer, pl_module: Any, checkpoint: State) -> None:
        if trainer.state.fn == "fit":
            self.loaded = checkpoint.get(KEY, {})
            loaders = checkpoint["loops"]["fit_loop"]["state_dict"].get("combined_loader")
            self.position = loaders[0] if loaders else None


def restore(state: State, trainer: Trainer, pl_module: Any) -> None:
    warn_of_changes(state, describe_rounding(trainer, pl_module))
    ranks, rank = state.get("ranks", []), trainer.global_rank
    if memory := state.get("memory"):
        count = len(memory["filled"]) // trainer.world_size
        rows = slice(rank * count, (rank + 1) * count)
        own = Memory(memory["h"][:, rows].clone(), memory["filled"][rows].clone())
        pl_module.memory_bank.committed["train", 0] = own
    if not ranks:
        return
    if len(ranks) == trainer.world_size:
        set_random_states(ranks[rank]["rng"], pl_module.device)
        mean = ranks[rank]["mean"]
    else:
        set_random_states(ranks[0]["rng"], pl_module.device)
        torch.manual_seed(int(torch.randint(1 << 62, ())) + rank)
        mean = np.sum([each["mean"] for each in ranks], axis=0) * (rank == 0)
    # The sum and the count since training was last logged.
    for name, value in zip(pl_module.train_nats.metric_state, mean, strict=True):
        getattr(pl_module.train_nats, name).fill_(value)


def random_states(device: torch.device) -> State:
    kind, keys, *rest = np.random.get_state()
    states = {"torch": torch.get_rng_state(), "python": random.getstate()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states | {"numpy": (kind, keys.tolist(), *rest)}


def set_random_states(states: State, device: torch.device) -> None:
    torch.set_rng_state(states["torch"])
    random.setstate(states["python"])
    np.random.set_state(states["numpy"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)


def describe_rounding(trainer: Trainer, pl_module: Any) -> State:
    """Return what decides, beside the settings, how a sum is rounded."""
    device = pl_module.device
    vectors = torch.backends.cpu.get_cpu_capability()
    vectors += " AMX" * has_bfloat16_units(torch.device("cpu"))
    return {
        "micro_batches": pl_module.corpus.config.micro_batches if pl_module.corpus else 1,
        "compile": pl_module.hparams["compile"],
        "devices": trainer.world_size,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "processor": f"{platform.machine()} {vectors}",
        "strategy": type(trainer.strategy).__name__,
        "precision": str(trainer.precision),
        "threads": torch.get_num_threads(),
        "torch": str(torch.__version__),
    }


def refuse_different_starts(trainer: Trainer, pl_module: Any, position: State | None) -> None:
    """Raise a CheckpointError on every rank if not all have loaded the same checkpoint."""
    here = trainer.global_step, (position or {}).get("consumed", 0)
    largest = pl_module.ranks.max(*here, *(-number for number in here))
    if largest[:2] != [-number for number in largest[2:]]:
        raise CheckpointError(
            f"resume: rank {trainer.global_rank} starts at step {here[0]}, another does not; "
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
