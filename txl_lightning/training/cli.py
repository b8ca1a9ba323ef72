"""fit, validate, test and predict: parse, find the checkpoint to start from, check, build, run."""

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from jsonargparse import Namespace
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from .. import errors
from ..files import check_folder_writable, dump_yaml
from ..imports import ALLOWED
from ..model.contract import make_config
from ..option_errors import explain_value_error
from ..runs.logger import RunLogger
from ..tables import align_columns
from .callbacks.checkpointing import AtomicCheckpointIO, replace_signal_handlers
from .callbacks.save_run import SaveRun, print_once
from .callbacks.wandb import replace_wandb_loggers
from .default_callbacks import make_callbacks
from .lightning_parts import check_monitors, refuse_unusable
from .options import RUNS, check_settings, find_net_class, load_configs, make_parser, parse
from .own_text import adopt_recipe
from .passes import let_passes_decide
from .start import (
    Start,
    adopt_checkpoint,
    check_remaining_steps,
    check_same_model,
    explain_no_step,
    load_weights,
)

LIGHTNING_PARTS = ("callbacks", "loggers", "plugins", "profilers", "strategies")
IMPORTABLE = ["txl_lightning", *(f"lightning.pytorch.{part}" for part in LIGHTNING_PARTS)]
"""Packages that a class_path of a config may name; nothing else is imported."""
MAX_PROCESSES = 8  # largest number of processes per CPU core
RUN_OPTIONS = {
    # Lightning's table says "DataLoader 0"; ours is printed at the end.
    "validate": {"verbose": False},
    "test": {"verbose": False},
    # SaveNats writes them to nats.npy; returning those of a long text would fill the memory.
    "predict": {"return_predictions": False},
}


class TxlCLI(LightningCLI):
    """LightningCLI for one command. Its methods are called in this order, from __init__ to `run`.

    A parser for each command, as Lightning has it, would take a second to build.
    """

    def __init__(self, command: str, words: list[str]) -> None:
        self.command, self.words = command, words
        super().__init__(run=False, load_from_checkpoint_support=False)

    def setup_parser(self, *_: Any) -> None:
        self.words, net_class = find_net_class(self.words)
        self.parser = make_parser(self.command, self.words, net_class)
        # Read them before the checkpoint's settings replace them.
        defaults = self.parser.get_defaults()
        dump = self.parser.dump(defaults, skip_unset=False, skip_validation=True)
        self.defaults = errors.flatten_settings(yaml.safe_load(dump))

    def parse_arguments(self, parser: jsonargparse.ArgumentParser, args: list[str]) -> None:
        self.words = let_passes_decide(self.words, load_configs(self.words))
        settings = parse(parser, self.words)
        if self.command == "fit":
            settings = adopt_recipe(parser, self.words, settings)
        adopted = adopt_checkpoint(self.command, parser, self.words, settings)
        self.parser, self.config, self.start = adopted
        checkpoint = self.start.checkpoint
        self.ckpt_path: Path | None = checkpoint and checkpoint.path
        self.first_step = checkpoint.saved.get("global_step", 0) if checkpoint else 0

    def before_instantiate_classes(self) -> None:
        check_settings(self.parser, self.config)
        set_folder(self.command, self.config, self.start)

    def instantiate_classes(self) -> None:
        # The Trainer first: Lightning may refuse it, and encoding a text may take long.
        self.trainer = self.instantiate_trainer()
        parts = self.config.clone()
        del parts["trainer"]
        with explain_out_of_memory(self.config):
            kind = self.parser.groups["model.net"].group_class
            build = (lambda _, **settings: make_config(settings)), kind, False
            parts = self.parser.instantiate(parts, instantiators=[build])
        self.model, self.datamodule = parts.model, parts.data
        if "adapt" in parts:
            rate, n_row = parts.adapt.rate, parts.data.config.eval_batch_size
            is_possible = not rate or n_row == 1
            errors.require(is_possible, "adapt.rate", rate, "null, or data.eval_batch_size 1")
            self.model.memory_bank.adaptation = parts.adapt if parts.adapt.adapts else None
        self.adopt_state(self.start)
        # Its mapped tensors would keep a file on the disk that training replaces.
        del self.start

    def adopt_state(self, start: Start) -> None:
        """Load weights that begin a run; refuse another text before its folder is made."""
        if start.checkpoint is None:
            return
        text = start.checkpoint.saved.get("CorpusDataModule")
        is_same = text is not None and text["fingerprint"] == self.datamodule.store.fingerprint
        if start.is_new_text and is_same:
            # By another name.
            saved, max_steps = start.checkpoint, self.config.trainer.max_steps
            check_remaining_steps(max_steps, saved.saved, "never")
            check_same_model(self.config.model, saved.settings, training=True)
        if (start.is_new_text and not is_same) or self.ckpt_path.is_dir():
            load_weights(start.checkpoint, self.model, self.datamodule)
            self.ckpt_path = None if self.command == "fit" else self.ckpt_path
        elif self.command == "fit" and text and not self.datamodule.config.allow_mismatch:
            self.datamodule.load_state_dict(text)

    def instantiate_trainer(self) -> Trainer:
        """Make the Trainer; what Lightning refuses, and too many processes, are ValueErrors."""
        options = self.instantiate_trainer_options()
        defaults = make_callbacks(self.command, self.config, self.defaults)
        callbacks = as_list(options["callbacks"]) + defaults
        refuse_unusable(callbacks)
        expected = "false, because a run has loggers and checkpoints"
        errors.require(not options["barebones"], "trainer.barebones", "true", expected)
        if not options["fast_dev_run"]:
            callbacks.append(SaveRun(self.parser, self.config))
        plugins = as_list(options["plugins"])
        for plugin in plugins:
            if isinstance(plugin, CheckpointIO):
                name = type(plugin).__name__
                raise ValueError(f"trainer.plugins: invalid {name}; checkpoints are ours")
        plugins.append(AtomicCheckpointIO(self.start.checkpoint))
        options |= {"callbacks": callbacks, "plugins": plugins}
        options |= self.make_loggers(options["logger"])
        try:
            trainer = Trainer(**options)
        # Lightning refuses settings by errors of many classes.
        except Exception as error:
            raise ValueError(f"trainer: {errors.format_line(str(error))}") from error
        check_processes(trainer)
        replace_signal_handlers(trainer)
        return trainer

    def instantiate_trainer_options(self) -> dict[str, Any]:
        # Only the link from the text to the model needs more than the Trainer's part.
        others = {"data": Namespace(n_token=None), "model": Namespace(net=Namespace())}
        parts = Namespace(trainer=self.config.trainer, **others)
        try:
            options = self.parser.instantiate(parts, instantiate_groups=False)
        except ValueError as error:
            raise ValueError(explain_value_error(str(error))) from error
        return vars(options.trainer)

    def make_loggers(self, logger: Any) -> dict[str, Any]:
        """Return the Trainer's loggers and, for a run without any, the run's folder."""
        settings, folder = self.config.trainer, self.start.run_folder
        specs, root = as_list(settings.logger), settings.default_root_dir
        more = self.config.wandb, self.start.wandb_id
        loggers = replace_wandb_loggers(as_list(logger), specs, root, *more)
        # A measurement makes no folder of a run.
        if self.command != "fit":
            return {"logger": loggers}
        if logger is False:
            return {"logger": [], "default_root_dir": folder or CSVLogger(root, name="").log_dir}
        run_logger = RunLogger(root, name="", version=folder and folder.name)
        # A CSVLogger for the same folder would write the same file.
        same = (CSVLogger, run_logger.root_dir)
        others = [each for each in loggers if (type(each), each.root_dir) != same]
        return {"logger": [run_logger, *others]}

    def run(self) -> None:
        if self.command == "fit":
            check_monitors(self.trainer, self.model, self.datamodule)
        is_file = self.ckpt_path is not None and not self.ckpt_path.is_dir()
        ckpt_path = str(self.ckpt_path) if is_file else None
        # weights_only: otherwise Lightning would run code in a checkpoint that a plugin reads.
        options = RUN_OPTIONS.get(self.command, {}) | {"ckpt_path": ckpt_path, "weights_only": True}
        with explain_out_of_memory(self.config):
            getattr(self.trainer, self.command)(self.model, datamodule=self.datamodule, **options)
        if self.command == "fit" and self.trainer.global_step == self.first_step:
            print_once(explain_no_step(self.trainer))
        if self.command in ("validate", "test") and self.trainer.is_global_zero:
            print(f"{self.ckpt_path}: {self.datamodule.config.name}")
            metrics = self.trainer.callback_metrics.items()
            # The loss equals the nats.
            print(align_columns([(k, f"{v:.4f}", "") for k, v in metrics if "/loss" not in k]))
            if share := self.datamodule.unknown_share(self.command):
                print(f"{share:.1%} of the tokens are unknown, which makes their loss small")


def run_trainer(arguments: list[str]) -> Trainer:
    """Run fit, validate, test or predict, the first argument."""
    command, *words = arguments
    set_up_libraries()
    try:
        cli = TxlCLI(command, words)
        cli.run()
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error
    return cli.trainer


def set_up_libraries() -> None:
    jsonargparse.set_parsing_settings(
        import_path_denylist=["*"],
        import_path_allowlist=IMPORTABLE + ALLOWED,
        config_read_mode_fsspec_enabled=False,
        docstring_parse_attribute_docstrings=True,
    )
    jsonargparse.set_dumper("yaml", dump_yaml)
    # Importing Lightning sets the level INFO.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    errors.silence_warnings()
    Console.on_broken_pipe = raise_again


def set_folder(command: str, settings: Namespace, start: Start) -> None:
    """Set the folder of runs, or of a checkpoint's results, and check that it is writable."""
    trainer = settings.trainer
    if not trainer.default_root_dir:
        trainer.default_root_dir = RUNS if command == "fit" else str(start.checkpoint.run_folder)
    if command in ("fit", "predict"):
        check_folder_writable("trainer.default_root_dir", trainer.default_root_dir)


def raise_again(_: Console) -> None:
    # A closed pipe is exit code 141; with rich's own method it is 1.
    raise


def as_list(value: Any) -> list[Any]:
    # True asks for the default, which is not part of the list.
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def check_processes(trainer: Trainer) -> None:
    """Refuse too many processes, which Lightning would all start."""
    limit, n_process = MAX_PROCESSES * (os.cpu_count() or 1), trainer.num_devices
    is_possible = not isinstance(trainer.accelerator, CPUAccelerator) or n_process <= limit
    expected = f"at most {limit} processes on this CPU"
    errors.require(is_possible, "trainer.devices", n_process, expected)


@contextmanager
def explain_out_of_memory(settings: Namespace) -> Iterator[None]:
    try:
        yield
    except errors.ALLOCATION_ERRORS as error:
        if not errors.is_out_of_memory(error):
            raise
        keys = ("data.batch_size", "data.tgt_len", "model.net.mem_len", "trainer.precision")
        values = {key: "32-true" if settings[key] is None else settings[key] for key in keys}
        listed = ", ".join(f"{key} {value}" for key, value in values.items())
        raise errors.OutOfMemoryError(
            f"out of memory with {listed}; lower one of them, or set data.micro_batches 2, "
            "model.recompute true, trainer.precision bf16-mixed"
        ) from error
