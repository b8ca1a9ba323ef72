"""Checks of the callbacks of a config: their files, and the metrics that they monitor."""

import os
import re
from itertools import combinations
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from ..data.datamodule import CorpusDataModule
from ..errors import require
from ..files import expand_home, require_local_path
from ..model.reading import convert_nats
from ..runs.folder import BEST, CHECKPOINTS, LAST, PREVIOUS
from .callbacks.checkpointing import BestCheckpoint
from .callbacks.time_budget import TimeBudget
from .callbacks.validation_probe import (
    FinalValidation,
    count_warmup_segments,
    measures_gain,
)
from .module import LanguageModel

OUR_PACKAGES = {"lightning", "txl_lightning"}
TRAINING = ("lr", "memory_bytes", "peak_memory_bytes", "tokens_seen", "grad_norm")
SPEED = ("tokens_per_second", "seconds")
GAIN = ("memory_gain", "memory_gain_error")
ANSWERS = ("token_accuracy", "answer_accuracy")
OWN_NAMES = {BEST, LAST, PREVIOUS, "crash-1.ckpt"}  # with 1 for each number


def check_callbacks(trainer: Trainer, model: LanguageModel, data: CorpusDataModule) -> None:
    """Refuse files and monitors before the run, not at its first checkpoint or validation."""
    callbacks = trainer.callbacks
    for each in callbacks:
        # It replaces and removes files, and would wait for ranks that have ended.
        is_ours = not isinstance(each, OnExceptionCheckpoint)
        expected = "none that saves at an exception: a run writes crash-N.ckpt itself"
        require(is_ours, "trainer.callbacks", type(each).__name__, expected)
        # AtomicCheckpointIO would write to a folder of that name on this machine.
        folder = getattr(each, "dirpath", None) or "."
        require_local_path(
            "trainer.callbacks.dirpath", folder, "; checkpoint.mirror copies runs to one"
        )
    check_names([each for each in callbacks if isinstance(each, ModelCheckpoint)])
    packages = {type(each).__module__.partition(".")[0] for each in callbacks}
    # Callbacks of other packages may log any metric.
    if not packages <= OUR_PACKAGES:
        return
    for each in callbacks:
        if monitor := getattr(each, "monitor", None):
            check_monitor(monitor, trainer, model, data)


def check_names(callbacks: list[ModelCheckpoint]) -> None:
    """Refuse names of files that a run writes itself, or that two callbacks would write."""
    others = [each for each in callbacks if not isinstance(each, BestCheckpoint)]
    for each in others:
        name = each.filename or ""
        is_inside = not example_name(each).startswith(("../", "/"))
        require(is_inside, "trainer.callbacks.filename", name, "a name within its dirpath")
        if not is_run_folder(each.dirpath):
            continue
        expected = "false, or a dirpath of its own: a run writes its own last.ckpt"
        require(not each.save_last, "trainer.callbacks.save_last", each.save_last, expected)
        expected = "another name, or a dirpath of its own: a run writes files of this name itself"
        is_free = re.sub(r"\d+", "1", example_name(each)) not in OWN_NAMES
        require(is_free, "trainer.callbacks.filename", name, expected)
    for one, other in combinations(others, 2):
        is_same = find_folder(one) == find_folder(other)
        is_same = is_same and example_name(one) == example_name(other)
        expected = "another name for each ModelCheckpoint"
        name = one.filename or "its default"
        require(not is_same, "trainer.callbacks.filename", name, expected)


def is_run_folder(folder: str | None) -> bool:
    """Return True for the folder of a run's checkpoints, however it is written; the default."""
    if folder is None:
        return True
    path = Path(expand_home(folder)).resolve()
    return path.name == CHECKPOINTS and path.parent.name.startswith("version_")


def find_folder(callback: ModelCheckpoint) -> Path | None:
    folder = callback.dirpath
    return None if folder is None else Path(expand_home(folder)).resolve()


def example_name(callback: ModelCheckpoint) -> str:
    """Return a name as the callback would write it, with 1 for each number."""
    name = callback.filename or "{epoch}-{step}"
    if callback.auto_insert_metric_name:
        name = re.sub(r"{([^:}]*)", r"\1={\1", name)
    return os.path.normpath(re.sub(r"{[^}]*}", "1", name)) + callback.FILE_EXTENSION


def check_monitor(
    monitor: str, trainer: Trainer, model: LanguageModel, data: CorpusDataModule
) -> None:
    """Refuse a metric that this run does not log, or not before its first validation."""
    names = list_metrics(data)
    if monitor in [f"val/{name}" for name in GAIN]:
        expected = "a metric that does not need validations longer than the memory"
        require(has_gain(trainer, model, data), "trainer.callbacks.monitor", monitor, expected)
    if monitor == "train/mem_filled" and not hasattr(model.net.empty_memory(1), "filled_B"):
        names.remove(monitor)
    expected = f"one of {', '.join(names)}"
    require(monitor in names, "trainer.callbacks.monitor", monitor, expected)
    if monitor.startswith("train/"):
        check_first_row(monitor, trainer)


def check_first_row(monitor: str, trainer: Trainer) -> None:
    """Refuse a metric of training whose first row follows the first validation."""
    every = trainer.log_every_n_steps
    require(every > 0, "trainer.log_every_n_steps", every, f"1 or more, to monitor {monitor}")
    interval = find_validation_interval(trainer)
    if interval is None:
        return
    first = max(interval // trainer.accumulate_grad_batches, 1)
    first = first if trainer.max_steps < 0 else min(first, trainer.max_steps)
    expected = f"at most {first}, the steps before the first validation, to monitor {monitor}"
    require(every <= first, "trainer.log_every_n_steps", every, expected)


def find_validation_interval(trainer: Trainer) -> int | None:
    """Return the segments before the first validation; None if they are not known yet."""
    if any(isinstance(each, TimeBudget) for each in trainer.callbacks):
        return None
    for each in trainer.callbacks:
        if isinstance(each, FinalValidation) and each.n_validation:
            # Steps of passes are counted later.
            n_step = trainer.max_steps
            per_step = trainer.accumulate_grad_batches
            return None if n_step < 0 else each.find_interval(n_step, per_step)
    interval = trainer.val_check_interval
    return interval if isinstance(interval, int) else None


def has_gain(trainer: Trainer, model: LanguageModel, data: CorpusDataModule) -> bool:
    """Return True if ValidationProbe will measure the memory gain of more than one row."""
    if not measures_gain(model):
        return False
    stream = data.val_dataloader()
    limit = trainer.limit_val_batches
    n_segment = min(limit if isinstance(limit, int) else int(limit * len(stream)), len(stream))
    n_warmup = count_warmup_segments(model, data.config, next(iter(stream)))
    return (n_segment - n_warmup) * data.config.eval_batch_size > 1


def list_metrics(data: CorpusDataModule) -> list[str]:
    """Return the names of all metrics that a run may log, those of validation first."""
    names = {"val": ("tokens_seen", *GAIN, *(ANSWERS if data.store.example_len else ()))}
    names["train"] = (*TRAINING, "mem_filled", *SPEED)
    unit = data.vocab.unit
    return [
        f"{stage}/{name}"
        for stage, others in names.items()
        for name in ("loss", *convert_nats(0.0, unit, data.bytes_per_token(stage)), *others)
    ]
