"""LightningCLI for fit, validate, test and predict: plain YAML, our defaults, errors for people."""

import sys
from dataclasses import fields
from pathlib import Path
from typing import Any

import jsonargparse
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI, SaveConfigCallback

from ..checkpoints import read_checkpoint
from ..data import CorpusDataModule
from ..data.datamodule import check_numbers
from ..model import TransformerXLConfig
from .callbacks import SaveNats, Throughput
from .complaints import explain
from .curve import LearningCurve
from .module import LanguageModel
from .optim import OptimConfig
from .progress import TokenProgress

IMPORTABLE = ["txl_lightning"] + [
    f"lightning.pytorch.{part}"
    for part in ("callbacks", "loggers", "plugins", "profilers", "strategies", "trainer.trainer")
]
"""What a config file may name in a class_path; nothing else is imported."""

ANY_EVALUATION = {"mem_len", "clamp_len", "kernel", "dropout", "dropatt", "init_std"}
"""Fields of a checkpoint's network that may be given another value; the others shape weights."""

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

    def __init__(self, args: list[str] | None = None) -> None:
        jsonargparse.set_parsing_settings(
            import_path_denylist=["*"],
            import_path_allowlist=IMPORTABLE,
            config_read_mode_fsspec_enabled=False,
            docstring_parse_attribute_docstrings=True,
        )
        super().__init__(
            LanguageModel,
            CorpusDataModule,
            save_config_callback=SaveRun,
            save_config_kwargs={"overwrite": True},
            seed_everything_default=1,
            trainer_defaults=TRAINER_DEFAULTS | {"callbacks": default_callbacks()},
            auto_configure_optimizers=False,
            load_from_checkpoint_support=False,
            parser_kwargs={"exit_on_error": False, "description": self.__doc__},
            args=args,
        )

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        """The vocabulary's size comes from the corpus."""
        parser.link_arguments("data.n_token", "model.net.n_token", apply_on="instantiate")

    def before_instantiate_classes(self) -> None:
        """Check every number before anything is built, and say where the run is kept."""
        config = self.config[self.subcommand]
        check("model.net", TransformerXLConfig, config.model.net)
        check("model.optim", OptimConfig, config.model.optim)
        data = config.data
        numbers = ("tgt_len", "batch_size", "eval_tgt_len", "eval_batch_size", "split")
        check(
            "data", lambda **given: check_numbers(**given), {name: data[name] for name in numbers}
        )
        if config.trainer.logger in (None, True):
            config.trainer.logger = jsonargparse.Namespace(
                class_path="lightning.pytorch.loggers.CSVLogger",
                init_args=jsonargparse.Namespace(save_dir=config.trainer.default_root_dir, name=""),
            )

    def after_instantiate_classes(self) -> None:
        """predict writes a file instead of returning every token's nats."""
        if self.subcommand == "predict":
            self.config_init["predict"]["return_predictions"] = False

    def parse_arguments(self, parser: LightningArgumentParser, args: Any) -> None:
        """Remember the arguments, to read them again over a checkpoint's settings."""
        self.arguments = sys.argv[1:] if args is None else args
        try:
            super().parse_arguments(parser, args)
        except jsonargparse.ArgumentError as error:
            verbs = self._subcommand_parsers.values()
            known = {action.dest for verb in verbs for action in verb._actions}
            raise ValueError(explain(str(error), sorted(known))) from error

    def _parse_ckpt_path(self) -> None:
        """A checkpoint's settings are defaults: what is given wins, unless it reshapes weights."""
        verb = self.config.subcommand
        path = self.config[verb].ckpt_path
        if path in (None, "last", "best", "hpc"):
            return
        saved = read_checkpoint(path).get("hyper_parameters", {})
        settings = flat("model", saved)
        settings.pop("model.net.n_token", None)
        self._subcommand_parsers[verb].set_defaults(settings)
        self.config = self.parser.parse_args(self.arguments)
        given = self.config[verb].model.net
        for name in {field.name for field in fields(TransformerXLConfig)} - ANY_EVALUATION:
            if name in given and given[name] != saved["net"][name]:
                raise ValueError(
                    f"model.net.{name}: {given[name]} is not the {saved['net'][name]} of the "
                    "checkpoint; leave it out, or use the config.yaml saved with its run"
                )


class SaveRun(SaveConfigCallback):
    """Save the config and the vocabulary in the run's folder before training."""

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Only fit makes a run."""
        if stage == "fit":
            super().setup(trainer, pl_module, stage)

    def save_config(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Beside config.yaml; on rank 0."""
        Path(trainer.log_dir, "vocab.json").write_text(trainer.datamodule.vocab.to_json())


def default_callbacks() -> list[Any]:
    """What every run has; those of a config are added."""
    named = {"auto_insert_metric_name": False, "enable_version_counter": False}
    return [
        ModelCheckpoint(filename="best", monitor="val/nats", **named),
        ModelCheckpoint(filename="last", save_on_exception=True, **named),
        Throughput(),
        LearningCurve(),
        TokenProgress(),
        SaveNats(),
    ]


def check(key: str, build: Any, given: Any) -> None:
    """Build a value only to see whether its numbers are possible."""
    known = {name: value for name, value in dict(given).items() if name != "n_token"}
    try:
        build(**known)
    except ValueError as error:
        raise ValueError(f"{key}.{error}") from error


def flat(prefix: str, settings: dict[str, Any]) -> dict[str, Any]:
    """Nested settings by dotted key."""
    keys: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}.{name}"
        keys |= flat(key, value) if isinstance(value, dict) else {key: value}
    return keys
