"""SaveRun: settings, vocabulary and state in a run's folder, and its lock; SaveNats: of predict."""

import io
import os
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from jsonargparse import ArgumentParser, Namespace
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import BasePredictionWriter
from lightning.pytorch.utilities import rank_zero_warn

from ...command_line import format_value
from ...errors import (
    DataError,
    StorageError,
    flatten_settings,
    print_notice,
    shorten,
    show_controls,
)
from ...files import find_host_name, load_yaml, replace_file, write_json, write_text
from ...runs.folder import CONFIG, STATE, VOCAB, lock_folder, name_job, run_folder
from ..ranks import print_once
from .wandb import OfflineFallbackWandbLogger

MAX_CHANGES = 8  # of settings that a message lists


class SaveRun(Callback):
    """Save config.yaml, vocab.json and run.json in a run's folder; lock it while it trains."""

    def __init__(self, parser: ArgumentParser, settings: Namespace) -> None:
        self.parser = parser
        self.settings = settings
        self.lock = ExitStack()
        self.folder: Path | None = None

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        if stage != "fit":
            return
        folder = run_folder(trainer)  # asked of all ranks together
        if trainer.is_global_zero:
            self.lock.callback(os.close, lock_folder(folder))

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        # Not earlier: a setting that the network refuses must not replace those of a resumed run.
        self.folder = folder = run_folder(trainer)  # asked of all ranks together
        if trainer.is_global_zero:
            text, settings = dump_settings(self.parser, self.settings)
            if changes := list_changes(folder / CONFIG, settings):
                others = ", ..." if len(changes) > MAX_CHANGES else ""
                print_once(f"resume: changed {', '.join(changes[:MAX_CHANGES])}{others}")
            write_text(text, folder / CONFIG)
            for logger in trainer.loggers:
                if isinstance(logger, OfflineFallbackWandbLogger):
                    logger.update_config(settings)
            write_text(trainer.datamodule.vocab.to_json(), folder / VOCAB)
        trainer.strategy.barrier()

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        # Not earlier: for a text that is too short, only the error is printed.
        data = trainer.datamodule
        print_once(f"data: {data.config.name}: {data.store.describe()}")
        # Said before training, not after it. An empty split is meant to be empty.
        if trainer.is_global_zero and len(data.store.text("test")):
            try:
                data.test_dataloader()
            except DataError as error:
                print_notice(f"warning: {error}")
        self.write_state(trainer, "training")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.write_state(trainer, "finished")

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        if self.folder is not None:
            self.write_state(trainer, describe_end(exception))
        self.lock.close()

    def teardown(self, *_: Any, **__: Any) -> None:
        self.lock.close()

    def write_state(self, trainer: Trainer, state: str) -> None:
        """Write run.json; a failure is a warning, and stops no checkpoint."""
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        module = trainer.lightning_module
        run = {"state": state, "step": trainer.global_step, "max_steps": trainer.max_steps}
        run["parameters"] = sum(each.numel() for each in module.net.parameters())
        run |= {"tokens": module.tokens_seen, "seconds": module.seconds}
        run |= {"host": find_host_name(), "pid": os.getpid(), "job": name_job()}
        try:
            write_json(run, self.folder / STATE)
        except StorageError as error:
            rank_zero_warn(str(error))


def dump_settings(parser: ArgumentParser, settings: Namespace) -> tuple[str, dict[str, Any]]:
    """Return the settings of a run as the YAML of its config, and as that is read."""
    settings = settings.clone()
    # They say how this process was started; a resumed run must not repeat them.
    settings.resume = "never"
    settings.ckpt_path = None
    text = parser.dump(settings, skip_unset=False)
    return text, yaml.safe_load(text)


def list_changes(config: Path, settings: dict[str, Any]) -> list[str]:
    """Return what differs from the config of a run that is resumed, as "trainer.max_steps 4 to 6";
    nothing for a new run."""
    if not config.is_file():
        return []
    before = flatten_settings(load_yaml(config.read_text(encoding="utf-8")))
    pairs = ((key, before.get(key), value) for key, value in flatten_settings(settings).items())
    return [
        f"{key} {shorten(format_value(old))} to {shorten(format_value(new))}"
        for key, old, new in pairs
        if old != new
    ]


def describe_end(exception: BaseException) -> str:
    """Return the state of a run that an exception has ended."""
    is_stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
    return "stopped" if is_stopped else f"ended by: {exception}"


class SaveNats(BasePredictionWriter):
    """Write nats.npy in a folder: nats of the scored tokens, [B, T] in input order.

    Unscored tokens of a row are nan where another row has scored ones. Each of several ranks that
    has rows writes its own: nats.rank0.npy.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        super().__init__(write_interval="epoch")

    def write_on_epoch_end(self, trainer: Trainer, _: Any, predictions: list, *__: Any) -> None:
        rank = f".rank{trainer.global_rank}" if trainer.world_size > 1 else ""
        path = self.folder / f"nats{rank}.npy"
        nats_BT = torch.cat(predictions, dim=1).float().cpu().numpy()
        if np.isnan(nats_BT).all():
            return
        buffer = io.BytesIO()
        # Without the warm-up, which no row scores.
        np.save(buffer, nats_BT[:, ~np.isnan(nats_BT).all(axis=0)])
        replace_file(path, lambda part: part.write_bytes(buffer.getbuffer()))
        print(show_controls(f"nats of every scored token: {path}"))
