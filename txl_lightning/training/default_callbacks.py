"""Default callbacks of Trainer commands; a new one of fit needs a reasoned place in ORDER."""

import sys
from pathlib import Path
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import RichProgressBar

from .callbacks.checkpointing import BestCheckpoint, LastCheckpoint
from .callbacks.progress_bar import TokenProgressBar
from .callbacks.report import Report
from .callbacks.save_run import SaveNats, SaveRun
from .callbacks.throughput import Throughput
from .callbacks.time_budget import TimeBudget
from .callbacks.training_state import NonFiniteGuard, TrainingStateCheckpoint
from .callbacks.validation_probe import FinalValidation, ValidationProbe
from .callbacks.wandb import WandbRun
from .callbacks.weight_averaging import WeightAverage

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
