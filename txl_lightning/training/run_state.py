"""The state of a run: what it needs to go on as if it had not stopped.

Lightning restores weights, optimizer, schedule, scaler, counts of steps, and its own callbacks. The
text's vocabulary and fingerprint are CorpusDataModule's, and are only compared. All else is a
`RunState`. In training, the module, its `memory_bank`, the loader and the callbacks of `OWNERS`
have its values, and `capture_state` adds them to a checkpoint. A resume happens in this order:

1. `find_start` (start.py) loads a checkpoint, whose settings of model and text count unless others
   are given. `AtomicCheckpointIO` gives it to Lightning.
2. `setup` of model and callbacks.
3. `prepare_resume`, called by `LanguageModel.on_load_checkpoint`, Lightning's first hook with a
   checkpoint. It sets what decides whether and how long training goes on, and changes what
   Lightning loads next.
4. Lightning restores weights and callbacks, calls `on_fit_start` (with fsdp2 before 3), restores
   loops and optimizer, and starts training if a step is left.
5. `on_train_start` of the callbacks in their order (`ORDER` in cli.py): TimeBudget goes on in its
   plan; TrainingStateCheckpoint calls `restore_state`, the last that may change random numbers;
   LastCheckpoint runs a validation that is due.
6. `LanguageModel.on_train_start`: settings of the optimizer that are given now.
"""

import platform
import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.strategies import ModelParallelStrategy
from lightning.pytorch.trainer.states import TrainerStatus
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor

from ..data.stream import TrainingLoader, share_rows
from ..imports import find_version, list_foreign_classes
from ..model.contract import join_rows
from ..model.parts import is_onednn_faster
from ..runs.folder import FORMAT, KEY
from . import loops

State = dict[str, Any]
TRAINED = "trained"  # key of the trained weights where state_dict has their average


@dataclass
class RunState:
    """State of a resumed run besides Lightning's part; in a checkpoint under `txl_lightning`."""

    exact: bool = False
    """Saved between two steps, with memory and random numbers of all ranks."""
    world_size: int = 1
    environment: State = field(default_factory=dict)
    """Settings and versions that affect the rounding of sums."""
    tokens: int = 0
    """Read in training on all devices."""
    seconds: float = 0.0
    """Of training and its validations."""
    position: State | None = None
    """Of the TrainingLoader in the text; None if Lightning restores a loader of another kind."""
    memory: dict[str, Tensor] | None = None
    """Of all rows in their order, whichever rank read them; None before the first step."""
    ranks: list[State] = field(default_factory=list)
    """Of each rank: `rng`, its random numbers, and `mean`, its nats and targets since the last row
    of training was logged."""
    n_skipped: int = 0
    """Updates that were left out because of numbers that are not finite."""
    validation_due: bool = False
    """Whether a validation follows this step, or was not over."""
    plan_state: State | None = None
    """Limits and times of a plan that follows the clock."""
    n_averaged: int = 0
    """Steps in the average of the weights. The average is the checkpoint's `state_dict`, so that
    other commands load it, and the weights that training continues from are `trained`."""
    wandb_id: str | None = None
    """Of the run at W&B, which loggers continue; they are made before a Trainer."""
    samples: list[Any] = field(default_factory=list)
    """This and the next three: what validations measured, for the report."""
    prompt_len: int = 0
    nats_by_position: list[Any] = field(default_factory=list)
    attention: list[Any] = field(default_factory=list)


OWNERS = {
    "n_skipped": "NonFiniteGuard",
    "validation_due": "LastCheckpoint",
    "plan_state": "TimeBudget",
    "n_averaged": "WeightAverage",
    "wandb_id": "WandbRun",
    "samples": "ValidationProbe",
    "prompt_len": "ValidationProbe",
    "nats_by_position": "ValidationProbe",
    "attention": "ValidationProbe",
}
"""The callback that keeps a value of the state up to date, in an attribute of that name."""


def find_callbacks(trainer: Trainer, name: str) -> list[Any]:
    """Return the callbacks of a class of ours, or of one that is derived from it.

    By its name, because the files of callbacks import this one.
    """
    return [each for each in trainer.callbacks if name in list_our_classes(type(each))]


def list_our_classes(kind: type) -> list[str]:
    return [each.__name__ for each in kind.__mro__ if each.__module__.startswith("txl_lightning.")]


def capture_state(trainer: Trainer, module: LightningModule, checkpoint: State) -> None:
    """Add the state of a run to a checkpoint of Lightning's; all ranks call it together.

    After an exception on one rank, it alone calls it, and saves no state of the others.
    """
    is_crash = trainer.state.status == TrainerStatus.INTERRUPTED
    loader = trainer.train_dataloader
    state = RunState(
        exact=module.between_steps and not module.memory_bank.staged and not is_crash,
        world_size=trainer.world_size,
        environment=describe_rounding(trainer, module),
        tokens=module.tokens_seen,
        seconds=module.seconds,
        position=loader.state_dict() if isinstance(loader, TrainingLoader) else None,
    )
    for name, owner in OWNERS.items():
        for callback in find_callbacks(trainer, owner):
            setattr(state, name, getattr(callback, name))
    # After an exception on one rank, to gather would be to wait for the others forever.
    if not is_crash or trainer.world_size == 1:
        capture_ranks(state, trainer, module)
    checkpoint[KEY] = {"format": FORMAT} | vars(state)
    for last in find_callbacks(trainer, "LastCheckpoint"):
        if last.loops_before_validation is not None:
            # Otherwise Lightning continues this validation where the next one should begin.
            checkpoint["loops"]["fit_loop"] = last.loops_before_validation
    if state.position is not None:
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)
    for average in find_callbacks(trainer, "WeightAverage"):
        if average.average is not None:
            trained = average.trained or module.net
            checkpoint[TRAINED] = trained.state_dict(prefix="net.")
            checkpoint["state_dict"] = average.average.state_dict(prefix="net.")


def capture_ranks(state: RunState, trainer: Trainer, module: LightningModule) -> None:
    """Set what each rank has of its own: the memory of its rows, random numbers, running mean."""
    memory = module.memory_bank.committed.get(("train", 0))
    memory = memory and memory.to("cpu")
    mean = [value.item() for value in module.get_nats("train").metric_state.values()]
    # Not module.device: after training, Lightning has moved the weights to the CPU.
    own = {"rng": get_random_states(trainer.strategy.root_device), "mean": mean}
    own["memory"] = memory and memory.tensors()
    ranks = module.ranks.gather(own)
    # Rank 0 writes the checkpoint.
    if ranks is not None:
        parts = [rank.pop("memory") for rank in ranks]
        state.memory = memory and join_rows(memory, parts)
        state.ranks = ranks


def read_state(checkpoint: Mapping[str, Any]) -> RunState:
    """Return the state in a checkpoint; what a checkpoint lacks has its initial value."""
    saved = checkpoint.get(KEY, {})
    if saved.get("format", 2) == 2:
        saved = gather_format_2(checkpoint) | saved
    names = [each.name for each in fields(RunState) if each.name in saved]
    return RunState(**{name: saved[name] for name in names})


def gather_format_2(checkpoint: Mapping[str, Any]) -> State:
    """Return what format 2 kept elsewhere: with each callback, and with Lightning's loaders."""
    callbacks = checkpoint.get("callbacks", {})
    values = {}
    for owner in OWNERS.values():
        values |= callbacks.get(owner, {})
    saved = checkpoint.get("loops", {}).get("fit_loop", {}).get("state_dict", {})
    loader, *_ = saved.get("combined_loader") or [{}]
    return values | {
        "seconds": checkpoint.get("seconds", 0.0),
        "position": loader if "read_as" in loader else None,
        "plan_state": callbacks.get("TimeBudget"),
        "n_averaged": values.get("count", 0),
        "wandb_id": values.get("run_id"),
    }


def drop_format_2(checkpoint: State, state: RunState) -> None:
    """Remove what `gather_format_2` has read, and Lightning would load, or miss a callback for."""
    for owner in OWNERS.values():
        checkpoint.get("callbacks", {}).pop(owner, None)
    if state.position is not None:
        checkpoint["loops"]["fit_loop"]["state_dict"].pop("combined_loader", None)


def prepare_resume(trainer: Trainer, module: LightningModule, checkpoint: State) -> RunState:
    """Before Lightning loads anything: set what training starts by, change what Lightning loads.

    Returns the state, for `restore_state`. The module has its precision, and so will the average.
    """
    state = read_state(checkpoint)
    drop_format_2(checkpoint, state)
    swap_weights(trainer, module, checkpoint)
    module.tokens_seen = state.tokens
    module.started_at -= state.seconds
    for name, owner in OWNERS.items():
        for callback in find_callbacks(trainer, owner):
            if (value := getattr(state, name)) is not None:
                setattr(callback, name, value)
    step = checkpoint["global_step"]
    if module.pass_limit:
        done = loops.read_progress(checkpoint)
        module.pass_limit.load(state.position or {}, state.tokens, done)
    adapt_callbacks(trainer, checkpoint.get("callbacks", {}))
    # After the steps that remain are known.
    for last in find_callbacks(trainer, "LastCheckpoint"):
        last.allow_validation(trainer, step)
    if isinstance(trainer.strategy, ModelParallelStrategy):
        names = "FinalValidation", "LastCheckpoint"
        late = [each for name in names for each in find_callbacks(trainer, name)]
        loops.repeat_fit_start(trainer, module, late)
    return state


def swap_weights(trainer: Trainer, module: LightningModule, checkpoint: State) -> None:
    """Let training continue from the weights, and the average from itself."""
    callbacks = find_callbacks(trainer, "WeightAverage")
    if TRAINED not in checkpoint:
        for each in callbacks:
            each.forget()
        return
    average = checkpoint["state_dict"]
    checkpoint["state_dict"] = checkpoint.pop(TRAINED)
    for each in callbacks:
        each.adopt(module.net, average)
    if not callbacks:
        rank_zero_warn(
            "the checkpoint holds an average of weights; without the callback WeightAverage "
            "training continues from the weights themselves"
        )


def adapt_callbacks(trainer: Trainer, saved: State) -> None:
    """Change what Lightning will load: EarlyStopping's patience, and the folder of best.ckpt."""
    for each in trainer.early_stopping_callbacks:
        if each.state_key in saved:
            saved[each.state_key]["patience"] = each.patience
    for each in find_callbacks(trainer, "BestCheckpoint"):
        if each.state_key in saved:
            best = each.adopt(saved.pop(each.state_key))
            saved |= {each.state_key: best} if best else {}


def restore_state(state: RunState, trainer: Trainer, module: LightningModule) -> None:
    """After Lightning's part, and as the last before training that may draw random numbers: restore
    memory, random numbers, running mean and position in the text."""
    warn_of_changes(state, describe_rounding(trainer, module))
    if state.memory:
        restore_memory(state.memory, trainer, module)
    if state.ranks:
        restore_ranks(state.ranks, trainer, module)
    if state.position is not None:
        trainer.train_dataloader.load_state_dict(state.position)


def restore_memory(tensors: State, trainer: Trainer, module: LightningModule) -> None:
    """Restore the memory of this rank's rows."""
    memory = module.net.empty_memory(1)
    memory = memory.restore(tensors)
    memory = memory.rows(share_rows(memory.batch_size, trainer.global_rank, trainer.world_size))
    # Copies, because the tensors may be those of a file that training replaces.
    copies = {name: tensor.clone() for name, tensor in memory.tensors().items()}
    module.memory_bank.committed["train", 0] = memory.restore(copies)


def restore_ranks(ranks: list[State], trainer: Trainer, module: LightningModule) -> None:
    """Restore random numbers and the running mean, also of another number of ranks."""
    rank = trainer.global_rank
    if len(ranks) == trainer.world_size:
        set_random_states(ranks[rank]["rng"], trainer.strategy.root_device)
        mean = ranks[rank]["mean"]
    else:
        set_random_states(ranks[0]["rng"], trainer.strategy.root_device)
        torch.manual_seed(int(torch.randint(1 << 62, ())) + rank)
        mean = np.sum([each["mean"] for each in ranks], axis=0) * (rank == 0)
    for state, value in zip(module.get_nats("train").metric_state.values(), mean, strict=True):
        state.fill_(value)


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
    classes = list_foreign_classes(module.net.config, getattr(module.corpus, "vocab", None))
    packages = {key: name.partition(".")[0] for key, name in classes.items()}
    return {key: f"{package} {find_version(package)}" for key, package in packages.items()}


def describe_rounding(trainer: Trainer, module: LightningModule) -> State:
    """Return what affects the rounding of sums, besides the settings of the model."""
    device = trainer.strategy.root_device
    vectors = torch.backends.cpu.get_cpu_capability()
    vectors += " AMX" * torch.cpu.get_capabilities().get("amx_bf16", False)
    vectors += " oneDNN" * is_onednn_faster()
    return find_packages(module) | {
        "micro_batches": module.corpus.config.micro_batches if module.corpus else 1,
        "compile": module.hparams["compile"],
        "cuda_graph": module.hparams["cuda_graph"],
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


def warn_of_changes(state: RunState, now: State) -> None:
    if not state.exact:
        rank_zero_warn("the checkpoint was saved in mid-step: what follows is near, not exact")
    if not state.memory:
        rank_zero_warn("the checkpoint holds no memory: it starts empty")
    was = now | state.environment
    changed = [f"{name}: was {was[name]}, is {now[name]}" for name in now if was[name] != now[name]]
    if changed:
        rank_zero_warn(
            "the order of the text is exact, but losses are so to rounding only, and dropout may "
            f"differ ({'; '.join(changed)})"
        )
