"""LightningCLI for fit, validate, test and predict: plain YAML, our defaults, errors for people."""

from pathlib import Path
from typing import Any

import jsonargparse
import yaml
from lightning.fabric.plugins.io import CheckpointIO
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback
from lightning.pytorch.loggers import CSVLogger, Logger

from ..checkpoints import read_checkpoint
from ..data.datamodule import CorpusDataModule
from ..errors import CheckpointError, OutOfMemoryError, explain_parser_error, flatten_settings
from ..files import check_folder_writable
from .callbacks.checkpointing import WholeFiles, take_over_signals
from .callbacks.non_finite import is_out_of_memory
from .callbacks.report import ReportConfig
from .callbacks.run_metrics import run_folder
from .callbacks.wandb import WandbConfig, run_id_from, wandb_loggers, wrap_wandb_loggers
from .checks import as_counts, check_numbers_of, check_same_network, check_same_optimiser
from .fsdp import register
from .help import Parser, describe_options
from .module import LanguageModel
from .resume import Resume, SavingConfig, begin_with, note, starting_point, vocabulary_in
from .usual import default_callbacks

IMPORTABLE = ["txl_lightning"] + [
    f"lightning.pytorch.{part}"
    for part in ("callbacks", "loggers", "plugins", "profilers", "strategies")
]
"""What a config file may name in a class_path; nothing else is imported."""

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
    """The verbs that Lightning runs."""

    def __init__(self, arguments: list[str]) -> None:
        self.arguments = arguments
        self.start: Path | None = None
        self.run_id: str | None = None
        register()
        jsonargparse.set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=IMPORTABLE,
            config_read_mode_fsspec_enabled=False,
            docstring_parse_attribute_docstrings=True,
        )
        try:
            self.call()
        except (RuntimeError, MemoryError) as error:
            if is_out_of_memory(error):
                raise OutOfMemoryError(
                    out_of_memory(self.config[self.config.subcommand])
                ) from error
            raise

    def call(self) -> None:
        """Read the arguments and run the verb."""
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
            parser_kwargs={"exit_on_error": False, "description": self.__doc__},
            args=self.arguments,
        )

    def subcommands(self) -> dict[str, set[str]]:
        """Only the verb that is asked for: to build a parser takes a second."""
        verbs = LightningCLI.subcommands()
        return {verb: verbs[verb] for verb in verbs if verb in self.arguments[:1]} or verbs

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The vocabulary's size comes from the corpus."""
        parser.add_argument(
            "--trainer.help", action="help", help="List all of the Trainer's options."
        )
        parser.add_argument(
            "--resume",
            type=Resume,
            default="never",
            help="Go on from the newest whole checkpoint under trainer.default_root_dir: "
            "auto, if there is one; must, or stop; never.",
        )
        parser.add_class_arguments(SavingConfig, "checkpoint")
        parser.add_class_arguments(WandbConfig, "wandb")
        parser.add_class_arguments(ReportConfig, "report")
        parser.link_arguments("data.n_token", "model.net.n_token", apply_on="instantiate")

    def _add_subcommands(self, parser: LightningArgumentParser, **options: Any) -> None:
        super()._add_subcommands(parser, **options)
        for verb, subparser in self._subcommand_parsers.items():
            describe_options(subparser, verb, self.arguments)

    def before_instantiate_classes(self) -> None:
        """Check every number before anything is built."""
        config = self.config[self.subcommand]
        as_counts(config.trainer)
        check_numbers_of(config)
        if self.subcommand == "fit":
            check_folder_writable("trainer.default_root_dir", config.trainer.default_root_dir)
        if self.subcommand != "fit" and config.ckpt_path is None:
            raise ValueError("ckpt_path: missing; it must be the checkpoint to measure")
        if config.weights_only is False:
            raise ValueError("weights_only: invalid false; a checkpoint must run no code")
        # Left open, Lightning executes what a checkpoint holds if a plugin of the user's reads it.
        config.weights_only = True
        self.trainer_defaults = TRAINER_DEFAULTS | {
            "callbacks": default_callbacks(self.subcommand, config)
        }

    def instantiate_trainer(self, **kwargs: Any) -> Trainer:
        """A run is a folder of files under default_root_dir, whatever else logs it."""
        config = self.config[self.subcommand]
        given = config.trainer
        logger = self.config_init[self.subcommand].trainer.logger
        if logger is not False:
            loggers = with_files(logger, given.default_root_dir)
            how = (given.default_root_dir, config.wandb.required, self.run_id)
            kwargs["logger"] = wrap_wandb_loggers(loggers, *how)
        plugins = self.config_init[self.subcommand].trainer.plugins or []
        plugins = plugins if isinstance(plugins, list) else [plugins]
        for plugin in plugins:
            if isinstance(plugin, CheckpointIO):
                kind = type(plugin).__name__
                raise ValueError(f"trainer.plugins: invalid {kind}; checkpoints are ours")
        kwargs["plugins"] = [*plugins, WholeFiles(given.default_root_dir)]
        trainer = super().instantiate_trainer(**kwargs)
        take_over_signals(trainer)
        return trainer

    def after_instantiate_classes(self) -> None:
        """Start where it was found to; predict writes a file instead of returning all nats."""
        if self.start is not None:
            weights_only = self.start.is_dir()
            if weights_only:
                begin_with(self.start, self.model, self.datamodule)
            given = self.config_init[self.subcommand]
            given["ckpt_path"] = None if weights_only else str(self.start)
        if self.subcommand == "predict":
            self.config_init["predict"]["return_predictions"] = False

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Read the arguments; they are kept, to be read again over a checkpoint's settings."""
        self.config = self.parse()

    def parse(self) -> jsonargparse.Namespace:
        """The arguments as a config.

        Raises:
            ValueError: a mistake, in one line.
        """
        try:
            return self.parser.parse_args(self.arguments)
        except jsonargparse.ArgumentError as error:
            verbs = self._subcommand_parsers.values()
            known = {action.dest for verb in verbs for action in verb._actions}
            raise ValueError(explain_parser_error(str(error), sorted(known))) from error

    def _parse_ckpt_path(self) -> None:
        """A checkpoint's settings are defaults: what is given wins, unless it reshapes weights."""
        verb = self.config.subcommand
        given = self.config[verb]
        resume = given.resume if verb == "fit" else "never"
        root = Path(given.trainer.default_root_dir)
        self.start = starting_point(resume, given.ckpt_path, root)
        if self.start is None:
            return
        checkpoint = read_checkpoint(self.start)
        self.run_id = None if resume == "never" else run_id_from(checkpoint)
        saved, step = checkpoint["hyper_parameters"], checkpoint.get("global_step", 0)
        settings = flatten_settings(saved, "model.") | vocabulary_in(self.start)
        settings.pop("model.net.n_token")
        try:
            self._subcommand_parsers[verb].set_defaults(settings)
        except KeyError as error:
            said = "it has a setting that this release does not know"
            raise CheckpointError(f"ckpt_path: {self.start}: {said} ({error})") from error
        self.config = self.parse()
        if verb == "fit":
            check_not_done(self.config.fit.trainer.max_steps, step, resume)
        model = self.config[verb].model
        check_same_network(model.net, saved["net"])
        # What convert writes has none.
        if verb == "fit" and "optim" in saved:
            check_same_optimiser(model.optim.name, saved["optim"]["name"])


def with_files(given: Any, root: str) -> list[Logger]:
    """The loggers that are given, after one whose folder is the run's, checkpoints included."""
    others = given if isinstance(given, list) else [given] if isinstance(given, Logger) else []
    ours = CSVLogger(root, name="")
    same = [each for each in others if isinstance(each, CSVLogger) and each.root_dir == root]
    return [ours, *(each for each in others if each not in same)]


def check_not_done(max_steps: int, step: int, resume: Resume) -> None:
    """Leave when a run that is resumed has nothing left to do.

    Raises:
        ValueError: the checkpoint, named by its path, is beyond the steps asked for.
    """
    if not 0 <= max_steps <= step:
        return
    if resume != "never":
        note(f"all {max_steps} steps are done; more with --trainer.max_steps")
        raise SystemExit(0)
    message = f"trainer.max_steps: invalid {max_steps}; expected more than the"
    raise ValueError(f"{message} {step} steps of the checkpoint")


def out_of_memory(config: jsonargparse.Namespace) -> str:
    """What was asked for, and what would need less."""
    asked = {
        "data.batch_size": config.data.batch_size,
        "data.tgt_len": config.data.tgt_len,
        "model.net.mem_len": config.model.net.mem_len,
        "trainer.precision": config.trainer.precision or "32-true",
    }
    said = ", ".join(f"{key} {value}" for key, value in asked.items())
    return (
        f"out of memory with {said}; lower one of them, or set data.micro_batches 2, "
        "model.recompute true, trainer.precision bf16-mixed"
    )


class SaveRun(SaveConfigCallback):
    """Save the config and the vocabulary in the run's folder before training."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Only fit makes a run. Every rank asks for the folder: they agree on it together."""
        if stage == "fit":
            # It says what is run, not how this time it was begun.
            self.config = self.config.clone()
            self.config.resume, self.config.ckpt_path = "never", None
            self.folder = run_folder(trainer)
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """config.yaml and vocab.json, and the config on W&B; on rank 0."""
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / self.config_filename
        self.parser.save(self.config, path, skip_none=False, overwrite=True)
        whole = yaml.safe_load(self.parser.dump(self.config, skip_unset=False))
        for logger in wandb_loggers(trainer):
            logger.update_config(whole)
        (self.folder / "vocab.json").write_text(trainer.datamodule.vocab.to_json())
