"""Checks before a run: of all settings, and of the callbacks, their files and their metrics."""

import os
import re
from dataclasses import is_dataclass
from itertools import combinations
from pathlib import Path

from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, OnExceptionCheckpoint

from ..command_line import Parser
from ..data.datamodule import CorpusConfig, CorpusDataModule
from ..errors import prefix_errors, require
from ..files import require_local_path
from ..model import EvalLengths
from ..model.config import CLASS
from ..model.reading import convert_nats
from ..runs.folder import BEST, CHECKPOINTS, LAST, PREVIOUS
from .callbacks.checkpointing import BestCheckpoint
from .callbacks.time_budget import TimeBudget
from .callbacks.validation_probe import (
    FinalValidation,
    count_warmup_segments,
    measures_gain,
)
from .loops import check_least_steps, refuse_callbacks_by_epoch
from .module import LanguageModel
from .optimizers import OptimConfig, check_end
from .options import TRAINER_DEFAULTS

LEAST = {"gradient_clip_val": 0, "log_every_n_steps": 0, "min_steps": 0}
"""Least numbers of the Trainer's options that have none in Lightning."""
OUR_PACKAGES = {"lightning", "txl_lightning"}
TRAINING = ("lr", "memory_bytes", "peak_memory_bytes", "tokens_seen", "grad_norm")
SPEED = ("tokens_per_second", "seconds")
GAIN = ("memory_gain", "memory_gain_error")
ANSWERS = ("token_accuracy", "answer_accuracy")
OWN_NAMES = {BEST, LAST, PREVIOUS, "crash-1.ckpt"}  # with 1 for each number


def check_settings(parser: Parser, settings: Namespace) -> None:
    for key, group in parser.groups.items():
        # A group of single options has no class.
        if is_dataclass(config := getattr(group, "group_class", None)):
            values = {name: v for name, v in vars(settings[key]).items() if name != CLASS}
            with prefix_errors(key):
                config(**values)
    with prefix_errors("model.eval", "_"):
        EvalLengths(settings.model.eval_mem_len, settings.model.eval_clamp_len)
    with prefix_errors("data"):
        CorpusConfig(**settings.data.as_dict())
    if settings.weights_only is False:
        raise ValueError("weights_only: invalid false; a checkpoint must run no code")
    expected = "false, because a run has loggers and checkpoints"
    require(not settings.trainer.barebones, "trainer.barebones", "true", expected)
    make_batches_whole(settings.trainer)
    check_least(settings)
    refuse_callbacks_by_epoch(settings.trainer)
    check_duration(settings)
    check_checkpointing(settings)


def check_least(settings: Namespace) -> None:
    """Refuse numbers that Lightning takes, and with which a run would fail or do something else."""
    for name, least in LEAST.items():
        value = settings.trainer[name]
        is_valid = value is None or value >= least
        require(is_valid, f"trainer.{name}", value, f"at least {least}, or null")
    every = settings.trainer.val_check_interval
    expected = "a number above 0; trainer.limit_val_batches 0 turns validation off"
    require(every is None or every > 0, "trainer.val_check_interval", every, expected)
    seed = settings.seed_everything
    is_valid = isinstance(seed, bool) or 0 <= seed < 2**32
    require(is_valid, "seed_everything", seed, f"a number from 0 to {2**32 - 1}, true or false")


def check_checkpointing(settings: Namespace) -> None:
    """Refuse what needs checkpoints in a run that writes none."""
    if settings.trainer.enable_checkpointing is not False:
        return
    expected = "{} with trainer.enable_checkpointing false"
    for name in ("mirror", "every_n_steps"):
        value = settings.checkpoint[name]
        require(value is None, f"checkpoint.{name}", value, expected.format("null"))
    require(settings.resume == "never", "resume", settings.resume, expected.format("never"))


def check_duration(settings: Namespace) -> None:
    """Check the limits of steps, of passes and of minutes."""
    trainer = settings.trainer
    is_planned = settings.plan.minutes is not None
    steps = trainer.max_steps
    passes = trainer.max_epochs
    least = trainer.min_steps
    require(steps is not None, "trainer.max_steps", "null", "a number of steps, or -1: no end")
    require(passes is not None, "trainer.max_epochs", "null", "a number of passes, or -1: no limit")
    if passes < 0:
        check_end(OptimConfig(**vars(settings.model.optim)), steps)
    has_steps = steps > 0 or (steps < 0 < passes)
    expected = "the most steps that plan.minutes may take"
    require(has_steps or not is_planned, "trainer.max_steps", steps, expected)
    expected = "null with plan.minutes, which sets the steps"
    require(least is None or not is_planned, "trainer.min_steps", least, expected)
    check_least_steps(least, steps)
    check_validations(settings)


def check_validations(settings: Namespace) -> None:
    """Refuse a number of validations beside their distance, and in a run without an end."""
    trainer = settings.trainer
    n = settings.plan.validations
    every = trainer.val_check_interval
    is_default = every == TRAINER_DEFAULTS["val_check_interval"]
    expected = f"null with trainer.val_check_interval {every}"
    require(n is None or is_default, "plan.validations", n, expected)
    has_end = trainer.max_steps >= 0 or trainer.max_epochs >= 0
    expected = "null in a run without trainer.max_steps and trainer.max_epochs"
    require(n is None or has_end, "plan.validations", n, expected)


def make_batches_whole(trainer: Namespace) -> None:
    """Make numbers of batches whole; refuse fractions of a text that has no end.

    Lightning takes whole numbers and fractions. Which of the two a number becomes depends on what
    the process has imported, as Python treats Optional[Union[int, float]] and
    Optional[Union[float, int]] as one.
    """
    for name, value in vars(trainer).items():
        is_count = name.endswith("_batches") or name == "val_check_interval"
        if is_count and isinstance(value, float) and value > 1 and value.is_integer():
            trainer[name] = int(value)
    step = trainer.accumulate_grad_batches
    require(step >= 1, "trainer.accumulate_grad_batches", step, "at least 1")
    if isinstance(trainer.limit_train_batches, int) or isinstance(trainer.overfit_batches, int):
        return
    for name, default in {"val_check_interval": None, "limit_train_batches": 1.0}.items():
        is_valid = not isinstance(trainer[name], float) or trainer[name] == default
        expected = "a whole number of batches, because training has no end"
        require(is_valid, f"trainer.{name}", trainer[name], expected)


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
    path = Path(folder).expanduser().resolve()
    return path.name == CHECKPOINTS and path.parent.name.startswith("version_")


def find_folder(callback: ModelCheckpoint) -> Path | None:
    folder = callback.dirpath
    return None if folder is None else Path(folder).expanduser().resolve()


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
