"""LightningCLI for fit, validate, test and predict: plain YAML, our defaults, errors for people."""

import logging
from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from lightning.pytorch.loggers import CSVLogger
from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from .. import errors
from ..checkpoints import load_folder, read_checkpoint
from ..checkpoints.runs import VOCAB, result_folder
from ..data.datamodule import CorpusDataModule
from ..data.vocab import Vocabulary
from ..files import check_folder_writable
from ..model import TransformerXL
from . import options, resume
from .callbacks.checkpointing import AtomicCheckpointIO, replace_signal_handlers
from .callbacks.progress_bar import format_measured
from .callbacks.report import ReportConfig
from .callbacks.time_budget import PlanConfig
from .callbacks.wandb import WandbConfig, run_id_from, wrap_wandb_loggers
from .defaults import TRAINER_DEFAULTS, SaveRun, default_callbacks, trainer_defaults
from .module import LanguageModel
from .run_logger import RunLogger

LIGHTNING_PARTS = ("callbacks", "loggers", "plugins", "profilers", "strategies")
IMPORTABLE = ["txl_lightning", *(f"lightning.pytorch.{part}" for part in LIGHTNING_PARTS)]
"""Packages that a class_path of a config may name; nothing else is imported."""

SAVE_DIR = "--trainer.logger.save_dir="


class TxlCLI(LightningCLI):
    """The commands that Lightning's Trainer runs."""

    def __init__(self, arguments: list[str]) -> None:
        allowed, self.arguments = options.take_option(arguments, "--allow_imports")
        self.start: Path | None = None
        # What convert wrote, loaded: its sizes are those of its weights.
        self.converted: tuple[TransformerXL, Vocabulary | None] | None = None
        self.run_folder: Path | None = None
        self.run_id: str | None = None
        jsonargparse.set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=IMPORTABLE + options.allow_imports(allowed),
            config_read_mode_fsspec_enabled=False,
            docstring_parse_attribute_docstrings=True,
        )
        try:
            super().__init__(
                LanguageModel,
                CorpusDataModule,
                save_config_callback=SaveRun,
                save_config_kwargs={"save_to_log_dir": False},
                seed_everything_default=1,
                trainer_defaults=trainer_defaults(self.arguments[0]),
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
                parser_class=options.Parser,
                parser_kwargs={"exit_on_error": False},
                args=self.arguments,
            )
        except Exception as error:
            if not errors.is_out_of_memory(error):
                raise
            raise out_of_memory(self.config[self.config.subcommand]) from error

    def subcommands(self) -> dict[str, set[str]]:
        # Only the one that is asked for: to build a parser takes a second.
        command = self.arguments[0]
        return {command: LightningCLI.subcommands()[command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--trainer.help", action="help")
        parser.add_argument("--resume", type=resume.Resume, default="never")
        parser.add_class_arguments(resume.CheckpointConfig, "checkpoint")
        parser.add_class_arguments(PlanConfig, "plan")
        parser.add_class_arguments(WandbConfig, "wandb")
        parser.add_class_arguments(ReportConfig, "report")
        parser.link_arguments("data.n_token", "model.net.n_token", apply_on="instantiate")

    @property
    def command_parser(self) -> LightningArgumentParser:
        # Private: Lightning gives nobody the parser of a command.
        return self._subcommand_parsers[self.arguments[0]]

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        parser = self.command_parser
        options.describe_options(parser, self.arguments)
        # Before those of a checkpoint take their place.
        defaults = parser.dump(parser.get_defaults(), skip_none=False, skip_validation=True)
        self.defaults = errors.flatten_settings(yaml.safe_load(defaults))
        self.config = self.parse()

    def parse(self) -> jsonargparse.Namespace:
        """Parse the arguments over the parsers' defaults; mistakes are ValueErrors of one line."""
        try:
            config = self.parser.parse_args(self.arguments)
            options.check_groups(self.command_parser, config[self.arguments[0]])
            return config
        except jsonargparse.ArgumentError as error:
            missing = errors.MISSING.search(str(error))
            is_filled = any(word.startswith(SAVE_DIR) for word in self.arguments)
            if is_filled or not missing or missing.group(1, 3) != ("trainer.logger", "save_dir"):
                raise ValueError(self.explain_error(error)) from error
        # A logger that does not say where it writes.
        rest = self.parser.parse_args([*self.arguments, "--trainer.logger=false"])
        self.arguments = [*self.arguments, f"{SAVE_DIR}{root_folder(rest[rest.subcommand])}"]
        return self.parse()

    def explain_error(self, error: jsonargparse.ArgumentError) -> str:
        """Return an error in one line, with the config file, of several, that it is in."""
        for path in options.take_option(self.arguments, "-c", "--config")[0]:
            try:
                self.parser.parse_args([self.arguments[0], f"--config={path}"])
            except jsonargparse.ArgumentError as alone:
                words = errors.explain_parser_error(str(alone), [self.command_parser])
                return f"{errors.shorten(path)}: {words}"
        return errors.explain_parser_error(str(error), [self.command_parser])

    def _parse_ckpt_path(self) -> None:
        # Private: Lightning's lets a checkpoint's settings override the command line. Here they are
        # defaults: what is given wins, unless the weights would not fit.
        command = self.config.subcommand
        given = self.config[command]
        how = given.resume if command == "fit" else "never"
        self.start = resume.find_start(how, given.ckpt_path, Path(root_folder(given)))
        if self.start is None:
            return
        checkpoint = read_checkpoint(self.start)
        self.converted = load_folder(self.start) if self.start.is_dir() else None
        if how != "never":
            self.run_folder, self.run_id = self.start.parents[1], run_id_from(checkpoint)
        saved = checkpoint["hyper_parameters"]
        settings = errors.flatten_settings(saved, "model.")
        if (vocab := self.start / VOCAB).is_file():
            settings["data.vocab"] = str(vocab)
        if command != "fit":
            is_named = options.names_text(given.data, self.arguments)
            settings |= resume.text_settings(self.start, is_named)
        settings.pop("model.net.n_token")
        # It was the fastest where the checkpoint was made.
        settings.pop("model.net.kernel", None)
        try:
            self.command_parser.set_defaults(settings)
        except KeyError as error:
            words = f"it has a setting that this release does not know ({error})"
            raise errors.CheckpointError(f"ckpt_path: {self.start}: {words}") from error
        self.config = self.parse()
        if command == "fit":
            resume.check_remaining_steps(self.config.fit.trainer.max_steps, checkpoint, how)
        resume.check_same_model(self.config[command].model, saved, training=command == "fit")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        options.round_counts(config.trainer)
        options.check_settings(self.command_parser, config)
        if self.subcommand == "fit":
            config.trainer.default_root_dir = root_folder(config)
        elif self.start is None:
            raise ValueError("ckpt_path: missing; it must be the checkpoint to measure")
        elif not config.trainer.default_root_dir:
            config.trainer.default_root_dir = str(result_folder(self.start))
        if self.subcommand in ("fit", "predict"):
            check_folder_writable("trainer.default_root_dir", config.trainer.default_root_dir)
        if config.weights_only is False:
            raise ValueError("weights_only: invalid false; a checkpoint must run no code")
        # Left open, Lightning executes what a checkpoint holds if a plugin of the user's reads it.
        config.weights_only = True
        callbacks = default_callbacks(self.subcommand, config, self.defaults)
        self.trainer_defaults = trainer_defaults(self.subcommand) | {"callbacks": callbacks}

    def instantiate_classes(self) -> None:
        options.check_trainer(self.config[self.subcommand].trainer)
        super().instantiate_classes()

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config[self.subcommand]
        root, made = config.trainer.default_root_dir, self.config_init[self.subcommand].trainer
        loggers = as_list(made.logger)
        # What is measured makes no folder of a run.
        if self.subcommand == "fit" and made.logger is not False:
            run_logger = RunLogger(root, name="", version=self.run_folder and self.run_folder.name)
            # A CSVLogger for the same folder would write the same file.
            same = (CSVLogger, run_logger.root_dir)
            others = [each for each in loggers if (type(each), each.root_dir) != same]
            loggers = [run_logger, *others]
        elif self.subcommand == "fit":
            # There is no logger to make a run's folder.
            kwargs["default_root_dir"] = self.run_folder or CSVLogger(root, name="").log_dir
        kwargs["logger"] = wrap_wandb_loggers(loggers, root, config.wandb.required, self.run_id)
        plugins = as_list(made.plugins)
        for plugin in plugins:
            if isinstance(plugin, CheckpointIO):
                kind = type(plugin).__name__
                raise ValueError(f"trainer.plugins: invalid {kind}; checkpoints are ours")
        kwargs["plugins"] = [*plugins, AtomicCheckpointIO()]
        trainer = super().instantiate_trainer(**kwargs)
        replace_signal_handlers(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        given = self.config_init[self.subcommand]
        if self.converted is not None:
            resume.load_weights(*self.converted, self.model, self.datamodule)
            given["ckpt_path"] = None
        elif self.start is not None:
            given["ckpt_path"] = str(self.start)
        if self.subcommand in ("validate", "test"):
            # Lightning's table says "DataLoader 0"; ours is printed below.
            given["verbose"] = False
        elif self.subcommand == "predict":
            # They are in nats.npy; of a long text they would fill the memory.
            given["return_predictions"] = False

    def after_test(self) -> None:
        if self.trainer.is_global_zero:
            print(f"{self.start}: {self.datamodule.config.name}")
            print(format_measured(self.trainer.callback_metrics))

    after_validate = after_test


def run_trainer(arguments: list[str]) -> TxlCLI:
    """Run fit, validate, test or predict, the first argument; return what it was done with."""
    # Importing Lightning sets these.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    errors.silence_warnings()
    Console.on_broken_pipe = raise_again
    try:
        return TxlCLI(arguments)
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error


def raise_again(_: Console) -> None:
    # A closed pipe ends the process with 141: rich's own reaction is exit code 1.
    raise


def root_folder(config: jsonargparse.Namespace) -> str:
    return config.trainer.default_root_dir or TRAINER_DEFAULTS["default_root_dir"]


def as_list(given: Any) -> list[Any]:
    # True asks for the default, which is none of these.
    if given is None or isinstance(given, bool):
        return []
    return given if isinstance(given, list) else [given]


def out_of_memory(config: jsonargparse.Namespace) -> errors.OutOfMemoryError:
    keys = ("data.batch_size", "data.tgt_len", "model.net.mem_len", "trainer.precision")
    asked = {key: "32-true" if config[key] is None else config[key] for key in keys}
    settings = ", ".join(f"{key} {value}" for key, value in asked.items())
    return errors.OutOfMemoryError(
        f"out of memory with {settings}; lower one of them, or set data.micro_batches 2, "
        "model.recompute true, trainer.precision bf16-mixed"
    )
