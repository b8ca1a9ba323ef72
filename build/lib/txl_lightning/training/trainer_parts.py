"""Callbacks, loggers and plugins of a run: ours, and those of a config beside them."""

import os
import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import EarlyStopping, RichProgressBar
from lightning.pytorch.loggers import CSVLogger

from ..checkpoints import LoadedCheckpoint
from ..data.datamodule import CorpusDataModule
from ..errors import invalid, require
from ..model.reading import readings
from ..runs.logger import RunLogger
from .callbacks.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from .callbacks.progress_bar import TokenProgressBar
from .callbacks.report import Report
from .callbacks.save_run import SaveNats, SaveRun
from .callbacks.throughput import Throughput
from .callbacks.time_budget import TimeBudget
from .callbacks.training_state import NonFiniteGuard, TrainingStateCheckpoint
from .callbacks.validation_probe import FinalValidation, ValidationProbe
from .callbacks.wandb import WandbConfig, WandbRun, replace_wandb_loggers, run_id_from
from .callbacks.weight_averaging import WeightAverage
from .module import LanguageModel

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
TRAINING = ("lr", "memory_bytes", "peak_memory_bytes", "mem_filled", "tokens_seen", "grad_norm")
SPEED = ("tokens_per_second", "seconds")
PROBED = ("tokens_seen", "memory_gain", "memory_gain_error")
ANSWERS = ("token_accuracy", "answer_accuracy")
OUR_PACKAGES = ("lightning", "txl_lightning")


def make_callbacks(command: str, config: Namespace, defaults: dict[str, Any]) -> list[Callback]:
    """Make the default callbacks of a command, in their order; those of a config precede them."""
    # Lightning's bar is on stderr of a terminal; a rate of 0 disables it in a pipe.
    rate, options = 10 * sys.stderr.isatty(), {"console_kwargs": {"stderr": True}}
    probe = ValidationProbe(config.report.sample_len)
    bar = TokenProgressBar(probe) if command == "fit" else RichProgressBar(rate, **options)
    bars: list[Callback] = [bar] if config.trainer.enable_progress_bar is not False else []
    if command != "fit":
        writers = [SaveNats(Path(config.trainer.default_root_dir))] if command == "predict" else []
        return [*bars, *writers]
    report = Report(probe, config.report.html, defaults)
    wandb, budget = WandbRun(probe, config.wandb), TimeBudget(config.plan.minutes)
    callbacks = [Throughput(), budget, probe, FinalValidation(), report, wandb, *bars]
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


def as_list(value: Any) -> list[Any]:
    # True asks for the default, which is not part of the list.
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def make_plugins(given: Any, start: LoadedCheckpoint | None) -> list[Any]:
    """Return the plugins of a config, and ours, which writes and reads checkpoints."""
    for plugin in as_list(given):
        name, is_theirs = type(plugin).__name__, isinstance(plugin, CheckpointIO)
        require(not is_theirs, "trainer.plugins", name, "none that writes checkpoints")
    return [*as_list(given), AtomicCheckpointIO(start)]


def make_loggers(
    command: str,
    given: Any,
    settings: Namespace,
    wandb: WandbConfig,
    resumed: LoadedCheckpoint | None,
) -> dict[str, Any]:
    """Return the Trainer's loggers and, for a run without any, the run's folder."""
    specs, root = as_list(settings.logger), settings.default_root_dir
    run_folder, wandb_id = None, None
    if resumed is not None:
        run_folder, wandb_id = resumed.run_folder, run_id_from(resumed.saved)
    loggers = replace_wandb_loggers(as_list(given), specs, root, wandb, wandb_id)
    # A measurement makes no folder of a run.
    if command != "fit":
        return {"logger": loggers}
    if given is False:
        folder = run_folder or CSVLogger(root, name="").log_dir
        return {"logger": [], "default_root_dir": folder}
    run_logger = RunLogger(root, name="", version=run_folder and run_folder.name)
    # A CSVLogger for the same folder would write the same file.
    same = (CSVLogger, run_logger.root_dir)
    others = [each for each in loggers if (type(each), each.root_dir) != same]
    return {"logger": [run_logger, *others]}


def check_processes(trainer: Trainer) -> None:
    """Refuse too many processes, which Lightning would all start."""
    limit, n_process = MAX_PROCESSES * (os.cpu_count() or 1), trainer.num_devices
    is_possible = not isinstance(trainer.accelerator, CPUAccelerator) or n_process <= limit
    expected = f"at most {limit} processes on this CPU"
    require(is_possible, "trainer.devices", n_process, expected)


def check_monitors(trainer: Trainer, module: LanguageModel, data: CorpusDataModule) -> None:
    """Refuse a monitor that no metric of this run has, or has too late for its first use."""
    packages = {type(each).__module__.partition(".")[0] for each in trainer.callbacks}
    # Callbacks of other packages may log any metric.
    if trainer.fast_dev_run or not packages <= {*OUR_PACKAGES}:
        return
    names = list_metrics(trainer, data)
    for each in trainer.callbacks:
        monitor = getattr(each, "monitor", None)
        if monitor is None or isinstance(each, BestCheckpoint):
            continue
        key = f"trainer.callbacks: {type(each).__name__}: monitor"
        require(monitor in names, key, monitor, f"one of {', '.join(names)}")
        if isinstance(each, EarlyStopping):
            validates = bool(trainer.limit_val_batches)
            expected = "a run with validations, after which it looks"
            require(validates, "trainer.limit_val_batches", trainer.limit_val_batches, expected)
            if monitor.startswith("train/"):
                check_logged_in_time(trainer, key, monitor)


def check_logged_in_time(trainer: Trainer, key: str, monitor: str) -> None:
    every, n_segment = trainer.log_every_n_steps, trainer.val_check_interval
    if isinstance(n_segment, int) and n_segment // trainer.accumulate_grad_batches < every:
        expected = f"a val/ metric; training is logged first at step {every} (log_every_n_steps)"
        raise invalid(key, monitor, f"{expected}, after the first validation")


def list_metrics(trainer: Trainer, data: CorpusDataModule) -> list[str]:
    """Return the names of all metrics that a run may log, those of validation first."""
    validates = bool(trainer.limit_val_batches)
    answers = ANSWERS if data.store.example_len else ()
    names = {"val": (*PROBED, *answers) if validates else None, "train": (*TRAINING, *SPEED)}
    return [
        f"{stage}/{name}"
        for stage, others in names.items()
        if others is not None
        for name in ("loss", *readings(0.0, data.vocab.unit, data.bytes_per_token(stage)), *others)
    ]
