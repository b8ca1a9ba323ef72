"""Options of fit, validate, test and predict: their parser and help, and the checks of values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from textwrap import fill
from typing import Any, ClassVar, Literal

import lightning.pytorch
import yaml
from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from ..checkpoints import LoadedCheckpoint
from ..command_line import COMMANDS, PROGRAM, Parser, is_option
from ..data.datamodule import CorpusDataModule
from ..data.sources import SOURCES
from ..errors import Settings, flatten_settings, prefix_errors, require
from ..files import check_folder_writable
from ..imports import OWN
from ..model.adaptation import Adaptation
from ..model.config import CLASS, find_config_class
from .module import LanguageModel
from .settings import Given, Resolved, parse

Resume = Literal["auto", "must", "never"]
RUNS = "runs"
TEXT_NAMES = ("corpus", *SOURCES)  # settings that name the text
RUN_ARGUMENTS = {"model", "datamodule", "dataloaders", "train_dataloaders", "val_dataloaders"}
"""Arguments of Trainer.fit and the like that are not options."""
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
}
SHORT_HELP = """help config ckpt_path resume seed_everything plan.minutes
    model.net.n_layer model.net.n_head model.net.d_model model.net.mem_len model.net.dropout
    model.eval_mem_len model.optim.name model.optim.lr model.optim.schedule
    data.corpus data.path data.vocab data.tgt_len data.batch_size
    trainer.default_root_dir trainer.max_steps trainer.val_check_interval trainer.precision
    trainer.accelerator trainer.devices trainer.logger trainer.callbacks trainer.help"""
"""Options in the help of a command; --help full shows all but the rarer ones of the Trainer."""
TRAINER_HELP = """default_root_dir max_steps max_epochs max_time gradient_clip_val
    accumulate_grad_batches val_check_interval limit_val_batches limit_test_batches
    limit_predict_batches log_every_n_steps accelerator devices num_nodes strategy precision logger
    callbacks enable_progress_bar help"""
"""Options of the Trainer in --help full; --trainer.help shows all of them."""
FIT_ONLY = (
    *("model.optim.", "checkpoint.", "plan.", "wandb.", "report.", "resume", "trainer.max_"),
    *("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_"),
)
"""Beginnings of the options that only fit uses."""
GROUPS = {
    "model.net": "Network",
    "model": "Evaluation and compilation",
    "data": "Data",
    "checkpoint": "Checkpoints",
    "trainer": "Trainer",
}
"""Titles in the help; others are the first lines of docstrings."""
NETWORK_HELP = f"""--model.net NAME chooses a network: {", ".join(OWN)}, or a class of
settings of your own. With --help it prints their options."""
WITHOUT_EFFECT = ("weights_only", "verbose", "return_predictions")
"""Options of Lightning whose values are fixed."""
DESCRIPTION = """Every setting is also a key of a YAML file: --config FILE, once or several times.
The last value of a setting counts; options come after all files."""
HELP_TEXTS = {
    "help": "Print these options; --help full prints all.",
    "trainer.help": "Print all of the Trainer's options.",
    "config": "YAML file with settings, or the name of an included config.",
    "print_config": "Print all settings of the run, also those of a recipe or a checkpoint, as a "
    "config, and exit.",
    "explain": "Print each setting of the run that is no default, with where it comes from, and "
    "exit.",
    "seed_everything": "Seed of all random numbers: equal ones give equal runs; true: a random "
    "one; false: none.",
    "data.path": "Your own text: a file, a folder or archive of documents, JSON lines, or three of "
    "these for train, val and test. In fit, for 50 kB or more, a recipe by its size, the device "
    "and the minutes replaces the defaults, unless a config sets a network or an optimizer.",
    "resume": "Continue the latest run under trainer.default_root_dir, in its folder, from its "
    "newest intact checkpoint: auto, if there is one; must, or stop; never.",
    "ckpt_path": "A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.",
    "trainer.default_root_dir": "Folder of runs; each run is a folder version_N in it.",
    "trainer.max_steps": "Steps of training, and with plan.minutes their limit; -1: no end.",
    "trainer.max_epochs": "Passes over the text, which end a run unless max_steps, given at the "
    "same place or later, ends it before; -1: as many as there are steps.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Most segments that a validation reads; left out, all.",
    "trainer.logger": "Logger besides metrics.csv, for example WandbLogger; false: no other.",
    "trainer.callbacks": "Callbacks besides ours. Your own need --allow_imports PACKAGE on the "
    "command line, which lets options and configs name its classes.",
    "trainer.strategy": "How devices share the work: ddp, fsdp2, or another of Lightning's.",
}
"""Help of single options, and where Lightning's own does not fit an endless loader."""
EVALUATION_TEXTS = {
    "data.path": "Your own text: a file, a folder or archive of documents, JSON lines, or three of "
    "these for train, val and test; left out, that of the run.",
    "trainer.default_root_dir": "Folder into which predict writes; left out, that of the run.",
    "trainer.logger": "Logger of the results, for example WandbLogger; left out, none.",
}
"""Help of options that have another meaning in commands that do not train."""


@dataclass(frozen=True)
class CheckpointConfig(Settings):
    """When last.ckpt is written, besides validations and the end, and where it is copied to."""

    minima: ClassVar = {"every_n_steps": 1}

    every_n_steps: int | None = None
    """Number of steps between writes."""
    mirror: str | None = None
    """URL (s3://, gs://, file://) to which a run is copied after each write; with resume, it is
    fetched from there if it is not on this machine."""


@dataclass(frozen=True)
class PlanConfig(Settings):
    """Duration of a run."""

    minima: ClassVar = {"validations": 1}

    minutes: float | None = None
    """Minutes of training and validations together, at any speed: learning rate and validations
    follow the clock, and the last step is when the time is over (at most trainer.max_steps)."""
    validations: int | None = None
    """Number of validations of the whole run; default one every trainer.val_check_interval."""

    def __post_init__(self) -> None:
        super().__post_init__()
        is_valid = self.minutes is None or 0 < self.minutes < math.inf
        require(is_valid, "minutes", self.minutes, "a number greater than 0, or null")


@dataclass(frozen=True)
class WandbConfig(Settings):
    """Settings of runs whose logger is WandbLogger."""

    required: bool = False
    """Stop where the server cannot be reached; otherwise the run goes on offline."""
    checkpoints: Literal["best", "all", "none"] = "best"
    """Checkpoints that W&B keeps when training is over: best.ckpt, last.ckpt too, or neither."""


@dataclass(frozen=True)
class ReportConfig(Settings):
    """Settings of the report of a run."""

    minima: ClassVar = {"sample_len": 0}

    html: bool = True
    """Write report.html, curve.png and attention.png in the run's folder."""
    sample_len: int = 200
    """Tokens that the model writes after each validation; 0: none."""


class TrainerParser(Parser, LightningArgumentParser):
    """Parser of the options of LightningCLI, with our help."""


def make_parser(command: str, words: Sequence[str] = (), net_class: str | None = None) -> Parser:
    """Return the parser of a command, with the settings of `net_class`, or a TransformerXLConfig.

    Words that ask for help hide the options it does not show.
    """
    summary = COMMANDS[command].summary
    # Only for help, because jsonargparse leaves hidden options out of config.yaml.
    asks_for_help = {"-h", "--help", "--trainer.help"} & {*words}
    parser = TrainerParser(
        command=command,
        description=f"{summary[0].upper()}{summary[1:]}. {DESCRIPTION}",
        texts=HELP_TEXTS if command == "fit" else HELP_TEXTS | EVALUATION_TEXTS,
        is_hidden=choose_hidden(command, words, net_class) if asks_for_help else lambda _: False,
        dump_header=[f"lightning.pytorch=={lightning.pytorch.__version__}"],
    )
    parser.add_argument("-c", "--config", action=ActionConfigFile)
    # Like --print_config no setting: TxlCLI takes it from the words.
    parser.add_argument("--explain", action="help")
    parser.add_argument("--seed_everything", type=bool | int, default=1)
    parser.add_argument("--resume", type=Resume, default="never")
    with prefix_errors("model.net"):
        parser.add_class_arguments(find_config_class(net_class), "model.net")
    if net_class:
        parser.add_argument(f"--model.net.{CLASS}", default=net_class, help="Class of settings.")
    parser.add_class_arguments(LanguageModel, "model", fail_untyped=False, skip={"net"})
    parser.add_lightning_class_args(CorpusDataModule, "data")
    parser.link_arguments("data.n_token", "model.net.n_token", apply_on="instantiate")
    parser.add_class_arguments(CheckpointConfig, "checkpoint")
    parser.add_class_arguments(PlanConfig, "plan")
    parser.add_class_arguments(WandbConfig, "wandb")
    parser.add_class_arguments(ReportConfig, "report")
    if command in ("validate", "test"):
        parser.add_class_arguments(Adaptation, "adapt")
    parser.add_lightning_class_args(Trainer, "trainer")
    parser.add_argument("--trainer.help", action="help")
    parser.add_method_arguments(Trainer, command, as_group=False, skip=RUN_ARGUMENTS)
    defaults = TRAINER_DEFAULTS | {"default_root_dir": RUNS if command == "fit" else None}
    parser.set_defaults({f"trainer.{name}": value for name, value in defaults.items()})
    for key, title in GROUPS.items():
        parser.groups[key].title = title
    if "--trainer.help" not in words:
        parser.groups["model.net"].description = fill(NETWORK_HELP, 76)
    return parser


def list_defaults(parser: Parser) -> dict[str, Any]:
    dump = parser.dump(parser.get_defaults(), skip_unset=False, skip_validation=True)
    return flatten_settings(yaml.safe_load(dump))


def list_parts(value: Any) -> list[Any]:
    # True asks for the default, which is not part of the list.
    if value is None or isinstance(value, bool):
        return []
    return value if isinstance(value, list) else [value]


def asks_for_help(word: str) -> bool:
    """Return True for --help, --trainer.help and the help of a class."""
    name = word.partition("=")[0]
    return word == "-h" or (is_option(word) and name.endswith(("--help", ".help")))


def choose_hidden(command: str, words: Sequence[str], own: str | None) -> Callable[[str], bool]:
    """Return a function that is True for options that the requested help does not show."""
    if "--trainer.help" in words:
        return lambda name: not name.startswith("trainer.")
    shown = {f"trainer.{name}" for name in TRAINER_HELP.split()}
    short = None if "full" in words else {*SHORT_HELP.split()}

    def is_hidden(name: str) -> bool:
        is_rare = name.startswith("trainer.") and name not in shown
        is_useless = name in WITHOUT_EFFECT or (command != "fit" and name.startswith(FIT_ONLY))
        is_own = own is not None and name.startswith("model.net.")
        return is_rare or is_useless or not (short is None or name in short or is_own)

    return is_hidden


def find_resume(command: str, given: Given) -> Resume:
    """Return whether a run goes on; the parser refuses what is none of the three."""
    resume = given.get("resume")
    return resume if command == "fit" and resume in ("auto", "must") else "never"


def names_text(given: Given) -> bool:
    return given.names(*(f"data.{name}" for name in TEXT_NAMES))


def require_text(given: Given, parser: Parser | None = None) -> None:
    """Refuse options and configs that name no text; a parser refuses a misspelt option before."""
    if not names_text(given):
        if parser:
            parse(parser, Resolved(given, []))
        expected = "--data.path my.txt, --data.corpus NAME or --config quickstart"
        raise ValueError(f"data.path: missing; expected {expected} (first: {PROGRAM} quickstart)")


def set_folder(command: str, trainer: Namespace, measured: LoadedCheckpoint | None) -> None:
    """Set the folder of runs, or of a checkpoint's results, and check that it is writable."""
    if not trainer.default_root_dir:
        trainer.default_root_dir = RUNS if command == "fit" else str(measured.run_folder)
    if command in ("fit", "predict"):
        advice = "; checkpoint.mirror copies runs to one"
        check_folder_writable("trainer.default_root_dir", trainer.default_root_dir, advice)
