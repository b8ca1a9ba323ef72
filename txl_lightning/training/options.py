"""Options of fit, validate, test and predict: their parser and help, and the checks of values."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, is_dataclass
from textwrap import fill
from typing import Any, ClassVar, Literal

import lightning.pytorch
import yaml
from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from ..checkpoints import LoadedCheckpoint
from ..command_line import COMMANDS, PROGRAM, Parser, is_option
from ..data.datamodule import CorpusConfig, CorpusDataModule
from ..data.sources import SOURCES
from ..errors import Settings, flatten_settings, prefix_errors, require
from ..files import check_folder_writable
from ..model import EvalLengths
from ..model.adaptation import Adaptation
from ..model.config import CLASS, find_config_class
from .help_texts import (
    DESCRIPTION,
    EVALUATION_TEXTS,
    FIT_ONLY,
    GROUPS,
    HELP_TEXTS,
    NETWORK_HELP,
    SHORT_HELP,
    TRAINER_HELP,
    WITHOUT_EFFECT,
)
from .loops import check_least_steps, refuse_callbacks_by_epoch
from .module import LanguageModel
from .optimizers import OptimConfig, check_end
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
LEAST = {"gradient_clip_val": 0, "log_every_n_steps": 0, "min_steps": 0}
"""Least numbers of the Trainer's options that have none in Lightning."""


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


def check_settings(parser: Parser, settings: Namespace) -> None:
    for key, group in parser.groups.items():
        # A group of single options has no class.
        if is_dataclass(config := getattr(group, "group_class", None)):
            values = {name: v for name, v in vars(settings[key]).items() if name != CLASS}
            with prefix_errors(key):
                config(**values)
    with prefix_errors("model.eval", "_"):
        EvalLengths(settings.model.eval_mem_len, settings.model.eval_clamp_len)
    with prefix_errors("data"):
        CorpusConfig(**settings.data.as_dict())
    if settings.weights_only is False:
        raise ValueError("weights_only: invalid false; a checkpoint must run no code")
    expected = "false, because a run has loggers and checkpoints"
    require(not settings.trainer.barebones, "trainer.barebones", "true", expected)
    make_batches_whole(settings.trainer)
    check_least(settings)
    refuse_callbacks_by_epoch(settings.trainer)
    check_duration(settings)
    check_checkpointing(parser, settings)


def check_least(settings: Namespace) -> None:
    """Refuse numbers that Lightning takes, and with which a run would fail or do something else."""
    for name, least in LEAST.items():
        value = settings.trainer[name]
        is_valid = value is None or value >= least
        require(is_valid, f"trainer.{name}", value, f"at least {least}, or null")
    every = settings.trainer.val_check_interval
    expected = "a number above 0; trainer.limit_val_batches 0 turns validation off"
    # Lightning also takes a duration.
    is_valid = not isinstance(every, int | float) or every > 0
    require(is_valid, "trainer.val_check_interval", every, expected)
    seed = settings.seed_everything
    is_valid = isinstance(seed, bool) or 0 <= seed < 2**32
    require(is_valid, "seed_everything", seed, f"a number from 0 to {2**32 - 1}, true or false")


def check_checkpointing(parser: Parser, settings: Namespace) -> None:
    """Refuse what needs checkpoints in a run that writes none."""
    if settings.trainer.enable_checkpointing is not False or parser.command != COMMANDS["fit"]:
        return
    expected = "null with trainer.enable_checkpointing false"
    for name in ("mirror", "every_n_steps"):
        value = settings.checkpoint[name]
        require(value is None, f"checkpoint.{name}", value, expected)


def check_duration(settings: Namespace) -> None:
    """Check the limits of steps, of passes and of minutes."""
    trainer = settings.trainer
    is_planned = settings.plan.minutes is not None
    steps = trainer.max_steps
    passes = trainer.max_epochs
    least = trainer.min_steps
    require(steps is not None, "trainer.max_steps", "null", "a number of steps, or -1: no end")
    require(passes is not None, "trainer.max_epochs", "null", "a number of passes, or -1: no limit")
    if passes < 0:
        check_end(OptimConfig(**vars(settings.model.optim)), steps)
    has_steps = steps > 0 or (steps < 0 < passes)
    expected = "the most steps that plan.minutes may take"
    require(has_steps or not is_planned, "trainer.max_steps", steps, expected)
    expected = "null with plan.minutes, which sets the steps"
    require(least is None or not is_planned, "trainer.min_steps", least, expected)
    check_least_steps(least, steps)
    check_validations(settings)


def check_validations(settings: Namespace) -> None:
    """Refuse a number of validations beside their distance, and in a run without an end."""
    trainer = settings.trainer
    n = settings.plan.validations
    every = trainer.val_check_interval
    is_default = every == TRAINER_DEFAULTS["val_check_interval"]
    expected = f"null with trainer.val_check_interval {every}"
    require(n is None or is_default, "plan.validations", n, expected)
    has_end = trainer.max_steps >= 0 or trainer.max_epochs >= 0
    expected = "null in a run without trainer.max_steps and trainer.max_epochs"
    require(n is None or has_end, "plan.validations", n, expected)


def make_batches_whole(trainer: Namespace) -> None:
    """Make numbers of batches whole; refuse fractions of a text that has no end.

    Lightning takes whole numbers and fractions. Which of the two a number becomes depends on what
    the process has imported, as Python treats Optional[Union[int, float]] and
    Optional[Union[float, int]] as one.
    """
    for name, value in vars(trainer).items():
        is_count = name.endswith("_batches") or name == "val_check_interval"
        if is_count and isinstance(value, float) and value > 1 and value.is_integer():
            trainer[name] = int(value)
    step = trainer.accumulate_grad_batches
    require(step >= 1, "trainer.accumulate_grad_batches", step, "at least 1")
    if isinstance(trainer.limit_train_batches, int) or isinstance(trainer.overfit_batches, int):
        return
    for name, default in {"val_check_interval": None, "limit_train_batches": 1.0}.items():
        is_valid = not isinstance(trainer[name], float) or trainer[name] == default
        expected = "a whole number of batches, because training has no end"
        require(is_valid, f"trainer.{name}", trainer[name], expected)
