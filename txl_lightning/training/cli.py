"""LightningCLI for fit, validate, test and predict: plain YAML, our defaults, errors for people."""

from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger

from ..checkpoints import read_checkpoint
from ..data.datamodule import CorpusDataModule
from ..errors import (
    CheckpointError,
    OutOfMemoryError,
    explain_parser_error,
    flatten_settings,
    is_out_of_memory,
)
from ..files import check_folder_writable
from .callbacks.checkpointing import (
    AtomicCheckpointIO,
    BestCheckpoint,
    LastCheckpoint,
    replace_signal_handlers,
)
from .callbacks.predictions import SaveNats
from .callbacks.progress_bar import TokenProgressBar
from .callbacks.report import Report, ReportConfig
from .callbacks.run_folder import find_writers_elsewhere, run_folder
from .callbacks.throughput import Throughput
from .callbacks.time_budget import PlanConfig, TimeBudget
from .callbacks.validation_probe import ValidationProbe
from .callbacks.wandb import WandbConfig, WandbRun, run_id_from, wandb_loggers, wrap_wandb_loggers
from .module import LanguageModel
from .options import Parser, check_settings, describe_options, round_counts
from .resume import (
    CheckpointConfig,
    Resume,
    check_remaining_steps,
    check_same_model,
    find_start,
    load_weights,
    print_once,
    vocabulary_setting,
)
from .run_logger import RunLogger

IMPORTABLE = ["txl_lightning"] + [
    f"lightning.pytorch.{part}"
    for part in ("callbacks", "loggers", "plugins", "profilers", "strategies")
]
"""Packages that a class_path of a config may name; nothing else is imported."""

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


class TxlCLI(LightningCLI):
    """The commands that Lightning's Trainer runs."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.start: Path | None = None
        self.run_folder: Path | None = None
        self.run_id: str | None = None
        jsonargparse.set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=IMPORTABLE,
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
                trainer_defaults=TRAINER_DEFAULTS,
                auto_configure_optimizers=False,
                load_from_checkpoint_support=False,
                parser_class=Parser,
                parser_kwargs={"exit_on_error": False},
                args=arguments,
            )
        except Exception as error:
            if not is_out_of_memory(error):
                raise
            raise out_of_memory(self.config[self.config.subcommand]) from error

    def subcommands(self) -> dict[str, set[str]]:
        # Only the one that is asked for: to build a parser takes a second.
        command = self.arguments[0]
        return {command: LightningCLI.subcommands()[command]}

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument(
            "--trainer.help", action="help", help="List all of the Trainer's options."
        )
        parser.add_argument(
            "--resume",
            type=Resume,
            default="never",
            help="Continue the latest run under trainer.default_root_dir, in its folder, from its "
            "newest whole checkpoint: auto, if there is one; must, or stop; never.",
        )
        parser.add_class_arguments(CheckpointConfig, "checkpoint")
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
        describe_options(parser, self.arguments)
        # Before those of a checkpoint take their place.
        defaults = parser.dump(parser.get_defaults(), skip_none=False, skip_validation=True)
        self.defaults = flatten_settings(yaml.safe_load(defaults))
        self.config = self.parse()

    def parse(self) -> jsonargparse.Namespace:
        """Parse the arguments over the parsers' defaults; mistakes are ValueErrors of one line."""
        try:
            return self.parser.parse_args(self.arguments)
        except jsonargparse.ArgumentError as error:
            raise ValueError(explain_parser_error(str(error), [self.command_parser])) from error

    def _parse_ckpt_path(self) -> None:
        # Private: Lightning's lets a checkpoint's settings override the command line. Here they are
        # defaults: what is given wins, unless the weights would not fit.
        command = self.config.subcommand
        given = self.config[command]
        resume = given.resume if command == "fit" else "never"
        self.start = find_start(resume, given.ckpt_path, Path(given.trainer.default_root_dir))
        if self.start is None:
            return
        checkpoint = read_checkpoint(self.start)
        if resume != "never":
            self.run_folder, self.run_id = self.start.parents[1], run_id_from(checkpoint)
        saved = checkpoint["hyper_parameters"]
        settings = flatten_settings(saved, "model.") | vocabulary_setting(self.start)
        settings.pop("model.net.n_token")
        # It was the fastest where the checkpoint was made.
        settings.pop("model.net.kernel", None)
        try:
            self.command_parser.set_defaults(settings)
        except KeyError as error:
            raise CheckpointError(
                f"ckpt_path: {self.start}: it has a setting that this release does not know "
                f"({error})"
            ) from error
        self.config = self.parse()
        if command == "fit":
            check_remaining_steps(self.config.fit.trainer.max_steps, checkpoint, resume)
        check_same_model(self.config[command].model, saved, training=command == "fit")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand]
        round_counts(config.trainer)
        check_settings(self.command_parser, config)
        if self.subcommand == "fit":
            check_folder_writable("trainer.default_root_dir", config.trainer.default_root_dir)
        elif config.ckpt_path is None:
            raise ValueError("ckpt_path: missing; it must be the checkpoint to measure")
        if config.weights_only is False:
            raise ValueError("weights_only: invalid false; a checkpoint must run no code")
        # Left open, Lightning executes what a checkpoint holds if a plugin of the user's reads it.
        config.weights_only = True
        callbacks = default_callbacks(self.subcommand, config, self.defaults)
        self.trainer_defaults = TRAINER_DEFAULTS | {"callbacks": callbacks}

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        config = self.config[self.subcommand]
        root, made = config.trainer.default_root_dir, self.config_init[self.subcommand].trainer
        if made.logger is not False:
            run_logger = RunLogger(root, name="", version=self.run_folder and self.run_folder.name)
            # A CSVLogger for the same folder would write the same file.
            same = (CSVLogger, run_logger.root_dir)
            others = [each for each in as_list(made.logger) if (type(each), each.root_dir) != same]
            kwargs["logger"] = wrap_wandb_loggers(
                [run_logger, *others], root, config.wandb.required, self.run_id
            )
        elif self.subcommand == "fit":
            # There is no logger to make a run's folder.
            kwargs["default_root_dir"] = self.run_folder or CSVLogger(root, name="").log_dir
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
        if self.start is not None and self.start.is_dir():
            load_weights(self.start, self.model, self.datamodule)
            given["ckpt_path"] = None
        elif self.start is not None:
            given["ckpt_path"] = str(self.start)
        if self.subcommand == "predict":
            # They are in nats.npy; of a long text they would fill the memory.
            given["return_predictions"] = False


def default_callbacks(
    command: str, config: jsonargparse.Namespace, defaults: dict[str, Any]
) -> list[Callback]:
    """Make the callbacks of every run of a command; a config's own are added."""
    if command != "fit":
        return [SaveNats()] if command == "predict" else []
    probe = ValidationProbe(config.report.sample_len)
    report = Report(probe, config.report.html, defaults)
    callbacks: list[Callback] = [Throughput(), probe, report]
    # After the report, which draws what W&B shows.
    callbacks.append(WandbRun(probe, config.wandb.checkpoints))
    if config.trainer.enable_progress_bar is not False:
        callbacks.append(TokenProgressBar())
    callbacks.append(TimeBudget(config.plan.minutes))
    if config.trainer.enable_checkpointing is not False:
        callbacks += [BestCheckpoint(), LastCheckpoint(config.checkpoint.every_n_steps)]
    return callbacks


def as_list(given: Any) -> list[Any]:
    """Return what a config gives as a list, as one, or as none (true asks for the default)."""
    if isinstance(given, list):
        return given
    return [] if given in (None, True) else [given]


def out_of_memory(config: jsonargparse.Namespace) -> OutOfMemoryError:
    """Make the error that says what was asked for, and what would need less."""
    asked = {
        "data.batch_size": config.data.batch_size,
        "data.tgt_len": config.data.tgt_len,
        "model.net.mem_len": config.model.net.mem_len,
        "trainer.precision": config.trainer.precision or "32-true",
    }
    settings = ", ".join(f"{key} {value}" for key, value in asked.items())
    return OutOfMemoryError(
        f"out of memory with {settings}; lower one of them, or set data.micro_batches 2, "
        "model.recompute true, trainer.precision bf16-mixed"
    )


class SaveRun(SaveConfigCallback):
    """Save the config and the vocabulary in the run's folder before training."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit":
            # It says what is run, not how this time it was started.
            self.config = self.config.clone()
            self.config.resume, self.config.ckpt_path = "never", None
            # Here, because the ranks agree on the folder together.
            self.folder = run_folder(trainer)
            for line in find_writers_elsewhere(trainer, self.folder):
                print_once(f"warning: {line}")
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / self.config_filename
        self.parser.save(self.config, path, skip_none=False, overwrite=True)
        whole = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
        for logger in wandb_loggers(trainer):
            logger.update_config(whole)
        (self.folder / "vocab.json").write_text(trainer.datamodule.vocab.to_json())
