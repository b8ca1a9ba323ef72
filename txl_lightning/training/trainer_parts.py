"""Callbacks, loggers and plugins of a run: ours, and those of a config beside them."""

import os
import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger

from ..checkpoints import LoadedCheckpoint
from ..errors import require
from ..runs.logger import RunLogger
from .callbacks.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from .callbacks.progress_bar import Throughput, TokenProgressBar
from .callbacks.report import Report
from .callbacks.save_run import SaveNats, SaveRun
from .callbacks.time_budget import TimeBudget
from .callbacks.validation_probe import FinalValidation, ValidationProbe
from .callbacks.wandb import WandbRun, replace_wandb_loggers, run_id_from
from .callbacks.weight_averaging import WeightAverage
from .options import WandbConfig
from .training_state import NonFiniteGuard, TrainingStateCheckpoint

ORDER = (
    WeightAverage,  # in a config only: it averages a step before LastCheckpoint saves it
    Throughput,  # stops its clock before others work
    TimeBudget,  # tells which step is the last, before FinalValidation and the bar look
    ValidationProbe,  # measures what Report and WandbRun show
    FinalValidation,  # asks for the validation that LastCheckpoint then knows to be due
    Report,  # draws the pictures that WandbRun logs
    WandbRun,
    TokenProgressBar,
    SaveRun,  # after an exception, it unlocks what Report has written
    NonFiniteGuard,  # from the model; refuses weights before TrainingStateCheckpoint logs a step
    TrainingStateCheckpoint,  # restores random numbers last; commits what LastCheckpoint saves
    BestCheckpoint,  # Lightning puts Checkpoints last; its score is part of last.ckpt
    LastCheckpoint,
)
"""Callbacks of a run as Lightning calls them in each hook, with the reason for each place."""
MAX_PROCESSES = 8  # largest number of processes per CPU core

UNUSABLE = {
    "BackboneFinetuning": "none, because the network has no backbone; --ckpt_path fine-tunes it",
    "BatchSizeFinder": "none; set data.batch_size, and data.micro_batches where memory is short",
    "LearningRateFinder": "none; compare some model.optim.lr with txl-lightning sweep",
}
"""Callbacks of Lightning that look for attributes of other modules, and what to use instead."""


def make_callbacks(
    command: str, config: Namespace, defaults: dict[str, Any], loggers: list[Logger]
) -> list[Callback]:
    """Make the default callbacks of a command, in their order; those of a config precede them."""
    has_bar = config.trainer.enable_progress_bar is not False
    if command != "fit":
        # On stderr of a terminal; a rate of 0 disables it in a pipe.
        bar = RichProgressBar(10 * sys.stderr.isatty(), console_kwargs={"stderr": True})
        writers = [SaveNats(Path(config.trainer.default_root_dir))] if command == "predict" else []
        return [*writers, bar] if has_bar else writers
    probe = ValidationProbe(config.report.sample_len, with_attention=config.report.html)
    callbacks = [Throughput(), probe, FinalValidation()]
    if config.plan.minutes is not None:
        callbacks.append(TimeBudget(config.plan.minutes))
    if config.report.html:
        callbacks.append(Report(probe, defaults))
    if any(isinstance(each, WandbLogger) for each in loggers):
        callbacks.append(WandbRun(probe, config.wandb.checkpoints))
    if has_bar:
        callbacks.append(TokenProgressBar())
    if config.trainer.enable_checkpointing is not False:
        saving = config.checkpoint
        callbacks += [BestCheckpoint(), LastCheckpoint(saving.every_n_steps, saving.mirror)]
    return sorted(callbacks, key=lambda each: ORDER.index(type(each)))


def refuse_unusable(callbacks: list[Callback]) -> None:
    """Refuse callbacks that would fail in the middle of a run, in any run."""
    for each in callbacks:
        for kind in type(each).__mro__:
            name = kind.__name__
            require(name not in UNUSABLE, "trainer.callbacks", name, UNUSABLE.get(name, ""))
        monitor = getattr(each, "monitor", None)
        expected = "a metric that the run logs, such as val/loss"
        require("/" in (monitor or "/"), "trainer.callbacks.monitor", monitor, expected)


def as_list(value: Any) -> list[Any]:
    # True asks for the default, which is not part of the list.
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def make_plugins(given: Any, start: LoadedCheckpoint | None) -> list[Any]:
    """Return the plugins of a config, and ours, which writes and reads checkpoints."""
    for plugin in as_list(given):
        name = type(plugin).__name__
        require(
            not isinstance(plugin, CheckpointIO),
            "trainer.plugins",
            name,
            "none that writes checkpoints",
        )
    return [*as_list(given), AtomicCheckpointIO(start)]


def make_loggers(
    command: str,
    given: Any,
    settings: Namespace,
    wandb: WandbConfig,
    resumed: LoadedCheckpoint | None,
) -> list[Logger]:
    """Return the Trainer's loggers: those of a config, and metrics.csv of a run."""
    loggers = as_list(given)
    root = settings.default_root_dir
    has_wandb = any(isinstance(each, WandbLogger) for each in loggers)
    expected = "--trainer.logger WandbLogger"
    require(has_wandb or not wandb.required, "wandb.required", "true", expected)
    if has_wandb:
        run_id = resumed and run_id_from(resumed.saved)
        specs = as_list(settings.logger)
        loggers = replace_wandb_loggers(loggers, specs, root, wandb.required, run_id)
    # A measurement makes no folder of a run.
    if command != "fit":
        return loggers
    run_logger = RunLogger(root, name="", version=resumed and resumed.run_folder.name)
    # A CSVLogger for the same folder would write the same file.
    same = (CSVLogger, run_logger.root_dir)
    return [run_logger, *(each for each in loggers if (type(each), each.root_dir) != same)]


def check_processes(trainer: Trainer) -> None:
    """Refuse too many processes, which Lightning would all start."""
    limit = MAX_PROCESSES * (os.cpu_count() or 1)
    n_process = trainer.num_devices
    is_possible = not isinstance(trainer.accelerator, CPUAccelerator) or n_process <= limit
    expected = f"at most {limit} processes on this CPU"
    require(is_possible, "trainer.devices", n_process, expected)
