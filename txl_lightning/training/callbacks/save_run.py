"""The config and the vocabulary of a run, and the lock of its folder."""

import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_only

from ...errors import print_notice
from ...files import write_text
from ...runs.folder import CONFIG, VOCAB, lock_folder
from .run_folder import find_writers_elsewhere, run_folder
from .wandb import wandb_loggers

print_once = rank_zero_only(print_notice)


class SaveRun(Callback):
    """Save config.yaml and vocab.json in a run's folder; lock the folder while it trains."""

    def __init__(self, parser: ArgumentParser, settings: Namespace) -> None:
        self.parser, self.settings = parser, settings.clone()
        # They are about how this process was started, not about the run.
        self.settings.resume, self.settings.ckpt_path = "never", None
        self.lock = ExitStack()

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        folder = run_folder(trainer)
        if trainer.is_global_zero:
            self.lock.callback(os.close, lock_folder(folder))
        for line in find_writers_elsewhere(trainer, folder):
            print_once(f"warning: {line}")
        if trainer.is_global_zero:
            self.save(trainer, folder)
        trainer.strategy.barrier()

    def save(self, trainer: Trainer, folder: Path) -> None:
        path = folder / CONFIG
        self.parser.save(self.settings, path, skip_none=False, overwrite=True)
        settings = yaml.safe_load(self.parser.dump(self.settings, skip_unset=False))
        for logger in wandb_loggers(trainer):
            logger.update_config(settings)
        write_text(trainer.datamodule.vocab.to_json(), folder / VOCAB)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        # Not earlier: a text that is too short is one line, and this is another.
        data = trainer.datamodule
        print_once(f"data: {data.config.name}: {data.store.describe()}")

    def teardown(self, *_: Any, **__: Any) -> None:
        self.lock.close()

    on_exception = teardown
