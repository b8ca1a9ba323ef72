"""Defaults of Lightning's commands: the Trainer's options, callbacks, and what a run saves."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import SaveConfigCallback

from ..files import lock_folder, write_text
from .callbacks.checkpointing import BestCheckpoint, LastCheckpoint
from .callbacks.predictions import SaveNats
from .callbacks.progress_bar import SegmentProgressBar, TokenProgressBar
from .callbacks.report import Report
from .callbacks.run_folder import find_writers_elsewhere, run_folder
from .callbacks.throughput import Throughput
from .callbacks.time_budget import TimeBudget
from .callbacks.validation_probe import FinalValidation, ValidationProbe
from .callbacks.wandb import WandbRun, wandb_loggers
from .resume import print_once

TRAINER_DEFAULTS = {
    "max_epochs": -1,
    "max_steps": 2000,
    "val_check_interval": 200,
    "check_val_every_n_epoch": None,
    "gradient_clip_val": 0.25,
    "log_every_n_steps": 10,
    "num_sanity_val_steps": 0,
    "use_distributed_sampler": False,
    "enable_model_summary": False,
    "default_root_dir": "runs",
}


def trainer_defaults(command: str) -> dict[str, Any]:
    """Return defaults of the Trainer; only training has a folder of runs."""
    return TRAINER_DEFAULTS | ({} if command == "fit" else {"default_root_dir": None})


def default_callbacks(
    command: str, config: jsonargparse.Namespace, defaults: dict[str, Any]
) -> list[Callback]:
    """Make the callbacks of every run of a command; a config's own are added."""
    bar = TokenProgressBar() if command == "fit" else SegmentProgressBar()
    bars: list[Callback] = [bar] if config.trainer.enable_progress_bar is not False else []
    if command == "predict":
        return [*bars, SaveNats(Path(config.trainer.default_root_dir))]
    if command != "fit":
        return bars
    probe = ValidationProbe(config.report.sample_len)
    report = Report(probe, config.report.html, defaults)
    # After the report, which draws what W&B shows.
    wandb, budget = WandbRun(probe, config.wandb.checkpoints), TimeBudget(config.plan.minutes)
    callbacks = [Throughput(), probe, FinalValidation(), report, wandb, *bars, budget]
    if config.trainer.enable_checkpointing is not False:
        callbacks += [BestCheckpoint(), LastCheckpoint(config.checkpoint.every_n_steps)]
    return callbacks


class SaveRun(SaveConfigCallback):
    """Lock the run's folder while it trains; before, save the config and the vocabulary there."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.lock = ExitStack()

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            # It says what is run, not how this time it was started.
            self.config = self.config.clone()
            self.config.resume, self.config.ckpt_path = "never", None
            self.folder = run_folder(trainer)
            if trainer.is_global_zero:
                self.lock.callback(os.close, lock_folder(self.folder))
            for line in find_writers_elsewhere(trainer, self.folder):
                print_once(f"warning: {line}")
            super().setup(trainer, pl_module, stage)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        # Not earlier: a text that is too short is one line, and this is another.
        data = trainer.datamodule
        print_once(f"data: {data.config.name}: {data.store.describe()}")

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        path = self.folder / self.config_filename
        self.parser.save(self.config, path, skip_none=False, overwrite=True)
        whole = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
        for logger in wandb_loggers(trainer):
            logger.update_config(whole)
        write_text(trainer.datamodule.vocab.to_json(), self.folder / "vocab.json")

    def teardown(self, *_: Any, **__: Any) -> None:
        self.lock.close()

    on_exception = teardown
