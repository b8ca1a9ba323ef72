"""fit, validate, test and predict: parse options, find the checkpoint, build the parts, run."""

import logging
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

import jsonargparse
from jsonargparse import Namespace
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.cli import LightningCLI
from lightning.pytorch.loggers import CSVLogger, Logger, WandbLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException

from .. import errors
from ..checkpoints import LoadedCheckpoint
from ..command_line import Parser
from ..files import dump_yaml, load_yaml
from ..imports import ALLOWED, OWN
from ..model.config import CLASS, make_config
from ..runs.logger import RunLogger
from ..tables import align_columns
from .callback_checks import check_callbacks
from .callbacks.always import NonFiniteGuard, TrainingStateCheckpoint
from .callbacks.checkpointing import AtomicCheckpointIO, BestCheckpoint, LastCheckpoint
from .callbacks.progress_bar import Throughput, TokenProgressBar
from .callbacks.report import Report
from .callbacks.save_run import SaveNats, SaveRun
from .callbacks.time_budget import TimeBudget
from .callbacks.validation_probe import FinalValidation, ValidationProbe
from .callbacks.wandb import WandbRun, replace_wandb_loggers
from .callbacks.weight_averaging import WeightAverage
from .loops import replace_signal_handlers
from .options import (
    asks_for_help,
    check_settings,
    find_resume,
    list_defaults,
    list_parts,
    make_parser,
    require_text,
    set_folder,
)
from .own_text import describe_recipe, find_recipe
from .ranks import check_launcher, print_once, require_gpu, require_srun
from .run_state import read_state
from .settings import Resolved, SettingsLayer, explain_refusal, list_origins, parse, read_given
from .start import (
    check_job,
    check_remaining_steps,
    check_renamed_text,
    check_same_model,
    explain_no_step,
    find_settings,
    find_start,
    load_weights,
    names_new_text,
    notice_new_distances,
)

LIGHTNING_PARTS = ("callbacks", "loggers", "plugins", "profilers", "strategies")
IMPORTABLE = ["txl_lightning", *(f"lightning.pytorch.{part}" for part in LIGHTNING_PARTS)]
"""Packages that a class_path of a config may name; nothing else is imported."""
SHOWN = ("--print_config", "--explain")
"""Options that print the settings of a run in place of running it."""
RUN_OPTIONS = {
    # Lightning's table says "DataLoader 0"; ours is printed at the end.
    "validate": {"verbose": False},
    "test": {"verbose": False},
    # SaveNats writes them to nats.npy; returning those of a long text would fill the memory.
    "predict": {"return_predictions": False},
}
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


def run_trainer(arguments: list[str], check: Callable[[Any], None] = lambda _: None) -> Trainer:
    """Run fit, validate, test or predict, the first argument, once the data pass a check."""
    set_up_libraries()
    try:
        cli = TxlCLI(arguments[0], arguments[1:])
        check(cli.datamodule)
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
    # Importing Lightning sets the level INFO; profilers print their tables by it.
    levels = {"pytorch": logging.WARNING, "fabric": logging.WARNING}
    for name, level in (levels | {"pytorch.profilers": logging.INFO}).items():
        logging.getLogger(f"lightning.{name}").setLevel(level)
    errors.silence_warnings()


class TxlCLI(LightningCLI):
    """LightningCLI for one command: its constructor calls the methods from `setup_parser` on."""

    def __init__(self, command: str, words: list[str]) -> None:
        self.command = command
        self.asked = {word for word in words if word in SHOWN}
        words = [word for word in words if word not in SHOWN]
        self.given = read_given(words)
        self.net_class = self.given.net_class
        self.resume = find_resume(command, self.given)
        below = [] if any(map(asks_for_help, words)) else self.find_layers()
        self.resolved = Resolved(self.given, below)
        how = {"save_config_callback": SaveRun, "load_from_checkpoint_support": False}
        super().__init__(args=self.resolved.arguments, run=False, **how)

    def find_layers(self) -> list[SettingsLayer]:
        """Return the settings of the recipe and of the checkpoint, below what is given."""
        self.is_new_text = False
        self.checkpoint = found = self.find_checkpoint()
        saved = [self.adopt_checkpoint(found)] if found else []
        if found is None or not found.data_settings:
            require_text(self.given, self.parser)
        self.recipe = find_recipe(self.given, self.parser, saved) if self.command == "fit" else None
        layers = [self.recipe] if self.recipe else []
        return [*layers, *saved]

    def find_checkpoint(self) -> LoadedCheckpoint | None:
        """Load the checkpoint to start from, which a measurement needs; None for a new run."""
        if self.resume != "never" or self.given.get_text("ckpt_path") is not None:
            return find_start(self.resume, self.given)
        if self.command != "fit":
            raise ValueError("ckpt_path: missing; it must be the checkpoint to measure")
        return None

    def adopt_checkpoint(self, found: LoadedCheckpoint) -> SettingsLayer:
        """Return the settings of the checkpoint; its network must be of the class that is given."""
        saved = found.settings["net"].get(CLASS, OWN["TransformerXL"])
        expected = f"{saved}, as in the checkpoint"
        is_same = self.net_class in (None, saved)
        errors.require(is_same, f"model.net.{CLASS}", self.net_class, expected)
        self.net_class = self.net_class or found.settings["net"].get(CLASS)
        # Another text, on which weights are tuned.
        is_new_run = self.command == "fit" and self.resume == "never"
        self.is_new_text = is_new_run and names_new_text(self.given, found)
        return find_settings(found, not self.is_new_text, self.given)

    @cached_property
    def parser(self) -> Parser:  # made after the checkpoint is found, which has the network's class
        return make_parser(self.command, self.given.words, self.net_class)

    def setup_parser(self, *_: Any) -> None:
        self.defaults = list_defaults(self.parser)

    def parse_arguments(self, *_: Any) -> None:
        """Parse once: one config with all layers, and the words."""
        self.config = parse(self.parser, self.resolved)
        found = self.checkpoint
        self.ckpt_path = found and found.path
        self.first_step = found.saved.get("global_step", 0) if found else 0
        self.resumed = found if self.resume != "never" else None  # it goes on in its folder
        self.is_new_text = self.is_new_text and not self.config.data.allow_mismatch
        if self.asked:
            self.print_settings()
            raise SystemExit(0)
        if found is not None:
            self.check_checkpoint(continues=self.command == "fit" and not self.is_new_text)

    def print_settings(self) -> None:
        """Print what will run, as a config, or as the origin of each setting that is no default."""
        check_settings(self.parser, self.config)
        text = self.parser.dump(self.config, skip_unset=False)
        if "--print_config" in self.asked:
            print(text, end="")
            return
        print(align_columns([*list_origins(load_yaml(text), self.defaults, self.resolved)]))

    def check_checkpoint(self, continues: bool) -> None:
        """Refuse settings that conflict with the checkpoint, and a run that is complete."""
        if continues:
            if self.resumed:
                check_job(self.resumed.run_folder, self.parser, self.config, self.given)
            check_remaining_steps(self.config.trainer.max_steps, self.checkpoint.saved, self.resume)
        check_same_model(self.config.model, self.checkpoint.settings, training=continues)

    def before_instantiate_classes(self) -> None:
        check_settings(self.parser, self.config)
        if self.recipe:
            print_once(describe_recipe(self.recipe, self.config))
        set_folder(self.command, self.config.trainer, self.checkpoint)
        if self.command != "fit":
            notice_new_distances(self.config, self.checkpoint)

    def instantiate_classes(self) -> None:
        # The Trainer first: Lightning may refuse it, and encoding a text may take long. Only the
        # link from the text to the model needs more than the Trainer's part.
        others = {"data": Namespace(n_token=None), "model": Namespace(net=Namespace())}
        parts = Namespace(trainer=self.config.trainer, **others)
        try:
            self.config_init = self.parser.instantiate(parts, instantiate_groups=False)
        except ValueError as error:
            raise explain_refusal(self.parser, self.resolved, str(error)) from error
        self.trainer = self.instantiate_trainer()
        parts = self.config.clone()
        del parts["trainer"]
        kind = self.parser.groups["model.net"].group_class
        build = (lambda _, **settings: make_config(settings)), kind, False
        with errors.explain_out_of_memory(self.config):
            parts = self.parser.instantiate(parts, instantiators=[build])
        self.model = parts.model
        self.datamodule = parts.data
        if adapt := parts.get("adapt"):
            with errors.prefix_errors("adapt"):
                adapt.require_used()
                adapt.require_no_warmup(parts.data.config.eval_warmup_len)
                is_possible = not adapt.rate or parts.data.config.eval_batch_size == 1
                errors.require(is_possible, "rate", adapt.rate, "null, or data.eval_batch_size 1")
            self.model.memory_bank.adaptation = adapt if adapt.adapts else None

    def instantiate_trainer(self, **_: Any) -> Trainer:
        """Make the Trainer; what Lightning refuses is a ValueError."""
        given = self.config_init.trainer
        require_gpu(given["accelerator"])
        require_srun()
        plugins = list_parts(given["plugins"])
        for plugin in plugins:
            is_possible = not isinstance(plugin, CheckpointIO)
            expected = "none that writes checkpoints"
            errors.require(is_possible, "trainer.plugins", type(plugin).__name__, expected)
        loggers = make_loggers(self.command, given["logger"], self.config, self.resumed)
        options = {"plugins": [*plugins, AtomicCheckpointIO(self.checkpoint)], "logger": loggers}
        # LightningCLI adds these, and SaveRun, to those of the settings.
        callbacks = make_callbacks(self.command, self.config, self.defaults, loggers)
        self.trainer_defaults = {"callbacks": callbacks}
        try:
            trainer = super().instantiate_trainer(**options)
        # Lightning refuses settings by errors of many classes.
        except Exception as error:
            raise ValueError(f"trainer: {errors.format_line(str(error))}") from error
        check_launcher(trainer)
        replace_signal_handlers(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        """Load weights that begin a run; refuse callbacks and texts before its folder is made."""
        source = self.checkpoint
        is_fit = self.command == "fit"
        # Its mapped tensors would keep a file on the disk that training replaces.
        del self.checkpoint, self.resumed
        if is_fit and self.config.trainer.callbacks:
            check_callbacks(self.trainer, self.model, self.datamodule)
        if source is None:
            return
        text = source.saved.get("CorpusDataModule")
        is_same = text is not None and text["fingerprint"] == self.datamodule.store.fingerprint
        if self.is_new_text and is_same:  # by another name
            check_renamed_text(self.config, source, self.given)
        if (self.is_new_text and not is_same) or source.path.is_dir():
            load_weights(source, self.model, self.datamodule)
            self.ckpt_path = None if is_fit else source.path
            self.first_step = 0
        elif is_fit and text and not self.datamodule.config.allow_mismatch:
            self.datamodule.load_state_dict(text)

    def run(self) -> None:
        ckpt_path = str(self.ckpt_path) if self.ckpt_path and self.ckpt_path.is_file() else None
        # weights_only: otherwise Lightning would run code in a checkpoint that a plugin reads.
        options = RUN_OPTIONS.get(self.command, {}) | {"ckpt_path": ckpt_path, "weights_only": True}
        with errors.explain_out_of_memory(self.config):
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
    callbacks = [Throughput(), probe, FinalValidation(config.plan.validations)]
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


def make_loggers(
    command: str, given: Any, config: Namespace, resumed: LoadedCheckpoint | None
) -> list[Logger]:
    """Return the Trainer's loggers: those of a config, and metrics.csv of a run."""
    loggers = list_parts(given)
    root = config.trainer.default_root_dir
    has_wandb = any(isinstance(each, WandbLogger) for each in loggers)
    expected = "--trainer.logger WandbLogger"
    errors.require(has_wandb or not config.wandb.required, "wandb.required", "true", expected)
    if has_wandb:
        run_id = resumed and read_state(resumed.saved).wandb_id
        specs = list_parts(config.trainer.logger)
        loggers = replace_wandb_loggers(loggers, specs, root, config.wandb.required, run_id)
    # A measurement makes no folder of a run.
    if command != "fit":
        return loggers
    run_logger = RunLogger(root, name="", version=resumed and resumed.run_folder.name)
    # A CSVLogger for the same folder would write the same file.
    same = (CSVLogger, run_logger.root_dir)
    return [run_logger, *(each for each in loggers if (type(each), each.root_dir) != same)]
