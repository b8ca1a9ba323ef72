"""fit, validate, test and predict: options, parse, find the checkpoint, build, run.

TxlCLI is LightningCLI for one command; its methods stand in the order in which it calls them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jsonargparse
from jsonargparse import Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from .. import errors
from ..checkpoints import LoadedCheckpoint
from ..files import check_folder_writable, dump_yaml
from ..imports import ALLOWED
from ..model.config import CLASS, make_config
from ..tables import align_columns
from .callbacks.save_run import SaveRun, print_once
from .loops import replace_signal_handlers
from .options import (
    RUNS,
    check_settings,
    find_net_class,
    let_passes_decide,
    list_defaults,
    load_configs,
    make_parser,
    parse,
)
from .own_text import adopt_recipe
from .start import (
    check_remaining_steps,
    check_same_model,
    explain_no_step,
    find_defaults,
    find_start,
    load_weights,
    names_new_text,
)
from .trainer_parts import (
    as_list,
    check_processes,
    make_callbacks,
    make_loggers,
    make_plugins,
    refuse_unusable,
)

LIGHTNING_PARTS = ("callbacks", "loggers", "plugins", "profilers", "strategies")
IMPORTABLE = ["txl_lightning", *(f"lightning.pytorch.{part}" for part in LIGHTNING_PARTS)]
"""Packages that a class_path of a config may name; nothing else is imported."""
RUN_OPTIONS = {
    # Lightning's table says "DataLoader 0"; ours is printed at the end.
    "validate": {"verbose": False},
    "test": {"verbose": False},
    # SaveNats writes them to nats.npy; returning those of a long text would fill the memory.
    "predict": {"return_predictions": False},
}


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


class TxlCLI(LightningCLI):
    """One command: LightningCLI itself would take a second to build a parser for each of four."""

    def __init__(self, command: str, words: list[str]) -> None:
        self.command = command
        self.words = words
        super().__init__(
            run=False, save_config_callback=SaveRun, load_from_checkpoint_support=False
        )

    def setup_parser(self, *_: Any) -> None:
        self.words, net_class = find_net_class(self.words)
        self.words = let_passes_decide(self.words, load_configs(self.words))
        self.parser = make_parser(self.command, self.words, net_class)
        # Read them before the settings of a recipe or of a checkpoint replace them.
        self.defaults = list_defaults(self.parser)

    def parse_arguments(self, *_: Any) -> None:
        """Parse, and again with what follows from the first time as defaults."""
        self.config = parse(self.parser, self.words)
        if self.command == "fit":
            self.config = adopt_recipe(self.parser, self.words, self.config)
        self.find_checkpoint(self.config)
        if self.checkpoint is not None:
            self.adopt_settings(self.checkpoint)

    def find_checkpoint(self, settings: Namespace) -> None:
        """Load the checkpoint to start from, if any."""
        resume = settings.resume if self.command == "fit" else "never"
        mirror = settings.checkpoint.mirror
        root = Path(settings.trainer.default_root_dir or RUNS)
        self.checkpoint = found = find_start(resume, settings.ckpt_path, root, mirror)
        if found is None and self.command != "fit":
            raise ValueError("ckpt_path: missing; it must be the checkpoint to measure")
        self.ckpt_path = found and found.path
        self.first_step = found.saved.get("global_step", 0) if found else 0
        # The run that goes on, in its folder; or else another text, on which weights are tuned.
        self.resumed = found if resume != "never" else None
        is_new_run = self.command == "fit" and found is not None and resume == "never"
        self.is_new_text = is_new_run and names_new_text(settings.data, found.path)

    def adopt_settings(self, checkpoint: LoadedCheckpoint) -> None:
        """Parse with the checkpoint's settings, in a parser of the options of its network."""
        saved = checkpoint.settings["net"].get(CLASS)
        given = self.config.model.net.get(CLASS)
        if saved != given:
            expected = f"{saved}, as in the checkpoint"
            errors.require(given is None, f"model.net.{CLASS}", given, expected)
            self.parser = make_parser(self.command, self.words, saved)
        about = self.command, self.is_new_text, self.config.data, self.words
        try:
            self.parser.set_defaults(find_defaults(checkpoint, *about))
        except KeyError as error:
            reason = f"it has a setting that this release does not know ({error})"
            raise errors.CheckpointError(f"ckpt_path: {checkpoint.path}: {reason}") from error
        self.config = parse(self.parser, self.words)
        self.is_new_text = self.is_new_text and not self.config.data.allow_mismatch
        self.check_checkpoint(continues=self.command == "fit" and not self.is_new_text)

    def check_checkpoint(self, continues: bool) -> None:
        """Refuse settings that conflict with the checkpoint, and a run that is complete."""
        if continues:
            resume = self.config.resume if self.resumed else "never"
            steps = self.config.trainer.max_steps
            check_remaining_steps(steps, self.checkpoint.saved, resume)
        check_same_model(self.config.model, self.checkpoint.settings, training=continues)

    def before_instantiate_classes(self) -> None:
        check_settings(self.parser, self.config)
        set_folder(self.command, self.config, self.checkpoint)

    def instantiate_classes(self) -> None:
        # The Trainer first: Lightning may refuse it, and encoding a text may take long. Only the
        # link from the text to the model needs more than the Trainer's part.
        others = {"data": Namespace(n_token=None), "model": Namespace(net=Namespace())}
        parts = Namespace(trainer=self.config.trainer, **others)
        try:
            self.config_init = self.parser.instantiate(parts, instantiate_groups=False)
        except ValueError as error:
            raise ValueError(self.parser.explain_error(str(error))) from error
        self.trainer = self.instantiate_trainer()
        parts = self.config.clone()
        del parts["trainer"]
        kind = self.parser.groups["model.net"].group_class
        build = (lambda _, **settings: make_config(settings)), kind, False
        with explain_out_of_memory(self.config):
            parts = self.parser.instantiate(parts, instantiators=[build])
        self.model = parts.model
        self.datamodule = parts.data
        if "adapt" in parts:
            rate = parts.adapt.rate
            is_possible = not rate or parts.data.config.eval_batch_size == 1
            errors.require(is_possible, "adapt.rate", rate, "null, or data.eval_batch_size 1")
            self.model.memory_bank.adaptation = parts.adapt if parts.adapt.adapts else None

    def instantiate_trainer(self, **_: Any) -> Trainer:
        """Make the Trainer; what Lightning refuses, and too many processes, are ValueErrors."""
        given = self.config_init.trainer
        settings = self.config.trainer
        expected = "false, because a run has loggers and checkpoints"
        errors.require(not given["barebones"], "trainer.barebones", "true", expected)
        refuse_unusable(as_list(given["callbacks"]))
        options = {"plugins": make_plugins(given["plugins"], self.checkpoint)}
        more = self.config.wandb, self.resumed
        options["logger"] = make_loggers(self.command, given["logger"], settings, *more)
        callbacks = make_callbacks(self.command, self.config, self.defaults, options["logger"])
        # LightningCLI adds these, and SaveRun, to those of the settings.
        self.trainer_defaults = {"callbacks": callbacks}
        try:
            trainer = super().instantiate_trainer(**options)
        # Lightning refuses settings by errors of many classes.
        except Exception as error:
            raise ValueError(f"trainer: {errors.format_line(str(error))}") from error
        check_processes(trainer)
        replace_signal_handlers(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        """Load weights that begin a run; refuse another text before its folder is made."""
        source = self.checkpoint
        is_fit = self.command == "fit"
        # Its mapped tensors would keep a file on the disk that training replaces.
        del self.checkpoint, self.resumed
        if source is None:
            return
        text = source.saved.get("CorpusDataModule")
        is_same = text is not None and text["fingerprint"] == self.datamodule.store.fingerprint
        if self.is_new_text and is_same:
            # By another name.
            check_remaining_steps(self.config.trainer.max_steps, source.saved, "never")
            check_same_model(self.config.model, source.settings, training=True)
        if (self.is_new_text and not is_same) or source.path.is_dir():
            load_weights(source, self.model, self.datamodule)
            self.ckpt_path = None if is_fit else source.path
        elif is_fit and text and not self.datamodule.config.allow_mismatch:
            self.datamodule.load_state_dict(text)

    def run(self) -> None:
        is_file = self.ckpt_path is not None and not self.ckpt_path.is_dir()
        ckpt_path = str(self.ckpt_path) if is_file else None
        # weights_only: otherwise Lightning would run code in a checkpoint that a plugin reads.
        options = RUN_OPTIONS.get(self.command, {}) | {"ckpt_path": ckpt_path, "weights_only": True}
        with explain_out_of_memory(self.config):
            getattr(self.trainer, self.command)(self.model, datamodule=self.datamodule, **options)
        if self.command == "fit" and self.trainer.global_step == self.first_step:
            print_once(explain_no_step(self.trainer))
        if self.command in ("validate", "test") and self.trainer.is_global_zero:
            self.print_results()

    def print_results(self) -> None:
        print(f"{self.ckpt_path}: {self.datamodule.config.name}")
        metrics = self.trainer.callback_metrics.items()
        # The loss equals the nats.
        print(align_columns([(k, f"{v:.4f}", "") for k, v in metrics if "/loss" not in k]))
        if share := self.datamodule.unknown_share(self.command):
            print(f"{share:.1%} of the tokens are unknown, which makes their loss small")


def set_folder(command: str, settings: Namespace, start: LoadedCheckpoint | None) -> None:
    """Set the folder of runs, or of a checkpoint's results, and check that it is writable."""
    trainer = settings.trainer
    if not trainer.default_root_dir:
        trainer.default_root_dir = RUNS if command == "fit" else str(start.run_folder)
    if command in ("fit", "predict"):
        advice = "; checkpoint.mirror copies runs to one"
        check_folder_writable("trainer.default_root_dir", trainer.default_root_dir, advice)


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
