"""Options of Lightning's commands: their help, and what is refused before anything is built."""

import os
import sys
import warnings
from argparse import ArgumentError, ArgumentParser
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any

from jsonargparse import ActionConfigFile, Namespace
from lightning.pytorch import Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.cli import LightningArgumentParser

from ..data.config import DataConfig
from ..data.datamodule import CorpusConfig
from ..errors import format_line, prefix_errors, require, shorten
from ..files import find_config
from ..help import HelpFormatter, describe_command, hide_options
from ..model import EvalLengths
from .optimizers import OptimConfig, check_end

ABOUT = {
    "fit": "Train a Transformer-XL on a text, and validate on the way. Every setting is a key of a "
    "YAML file too (--config FILE, several of which may be given); the last value given counts.",
    "validate": "Measure a checkpoint on the validation text.",
    "test": "Measure a checkpoint on the test text.",
    "predict": "Write the nats of every token of the test text to a file, nats.npy.",
}
TRAINER_OPTIONS = """default_root_dir max_steps max_time gradient_clip_val accumulate_grad_batches
    val_check_interval limit_val_batches limit_test_batches limit_predict_batches log_every_n_steps
    accelerator devices num_nodes strategy precision logger callbacks enable_progress_bar"""
"""Options of the Trainer in a command's help; --trainer.help lists them all."""
SHORT_OPTIONS = """help config ckpt_path resume plan.minutes
    model.net.n_layer model.net.n_head model.net.d_model model.net.mem_len model.net.dropout
    model.eval_mem_len model.optim.name model.optim.lr model.optim.schedule
    data.corpus data.path data.vocab data.tgt_len data.batch_size
    trainer.default_root_dir trainer.max_steps trainer.val_check_interval trainer.precision
    trainer.accelerator trainer.devices trainer.logger trainer.callbacks trainer.help"""
"""Options of a command's help, unless --help full asks for all."""
TEXTS = {
    "help": "Print these options; --help full prints all.",
    "trainer.help": "List all of the Trainer's options.",
    "resume": "Continue the latest run under trainer.default_root_dir, in its folder, from its "
    "newest whole checkpoint: auto, if there is one; must, or stop; never.",
    "ckpt_path": "A run's folder, for its best.ckpt; a checkpoint; or a folder written by convert.",
    "trainer.default_root_dir": "The folder of runs; each has a version_N in it.",
    "trainer.max_steps": "Steps of training, and with plan.minutes their limit; -1: no end.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Segments that a validation reads at most; left out, all.",
    "trainer.logger": "A logger beside metrics.csv, for example WandbLogger; false: none at all.",
    "trainer.callbacks": "Callbacks besides ours; your own with --allow_imports PACKAGE, which "
    "lets options and configs name its classes, and which only the command line can say.",
    "trainer.strategy": "How devices share the work: ddp, fsdp2, or another of Lightning's.",
}
"""Texts of single options, and where Lightning's own do not fit an endless loader."""
OBJECTS = {"callbacks", "plugins", "default_root_dir"}
BUILT_LATER = {"logger", "enable_progress_bar", "enable_checkpointing", "enable_model_summary"}
BUILT_LATER |= OBJECTS
"""Options of the Trainer that name objects, or have no say in what a machine can do."""
MAX_PROCESSES = 8
"""Processes for each core of a CPU."""
FIT_ONLY = ("model.optim.", "checkpoint.", "plan.", "wandb.", "report.", "resume", "trainer.max_")
FIT_ONLY += ("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_")


class ConfigOption(ActionConfigFile):
    """--config, which takes a given config's name, too."""

    def __call__(self, parser: Any, config: Namespace, value: Any, *option: Any) -> None:
        with prefix_errors(shorten(value), ": "):
            try:
                super().__call__(parser, config, find_config(value), *option)
            except AttributeError:  # jsonargparse's list of files has the same key
                require(False, "config", "a key of a file", "none of that name")


class Parser(LightningArgumentParser):
    """Lightning's parser with our help formatter and names for the given configs."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter} | options)

    def add_argument(self, *names: Any, **options: Any) -> Any:
        if options.get("action") is ActionConfigFile:
            options["action"] = ConfigOption
        return super().add_argument(*names, **options)


def describe_options(parser: LightningArgumentParser, arguments: list[str]) -> None:
    """Write a command's help, short, or full; or with --trainer.help the Trainer's options."""
    command = arguments[0]
    describe_command(parser, command, ABOUT[command])
    if command != "fit":
        parser.usage = parser.usage.replace("[options]", "ckpt_path [options]")
    # Private: argparse has no public list of a parser's options, nor of their groups.
    for action in parser._actions:
        action.help = TEXTS.get(action.dest, action.help)
    # Only in a help: jsonargparse leaves what it hides out of config.yaml, too.
    if asks := {"-h", "--help", "--trainer.help"} & {*arguments}:
        hide_from_help(parser, command, "--trainer.help" in asks, "full" in arguments)
    # Our settings first: Lightning adds the Trainer's before them.
    parser._action_groups.sort(key=lambda group: group is parser.groups["trainer"])


def hide_from_help(
    parser: LightningArgumentParser, command: str, only_trainer: bool, is_full: bool
) -> None:
    if only_trainer:
        hide_options(parser, lambda name: not name.startswith("trainer."))
        return
    shown = {f"trainer.{name}" for name in (*TRAINER_OPTIONS.split(), "help")}
    hidden = ("weights_only", *(FIT_ONLY if command != "fit" else ()))
    hide_options(parser, lambda name: name.startswith("trainer.") and name not in shown)
    hide_options(parser, lambda name: name.startswith(hidden))
    if not is_full:
        hide_options(parser, lambda name: name not in SHORT_OPTIONS.split())


def check_groups(parser: LightningArgumentParser, config: Namespace) -> None:
    for key in parser.groups:
        # jsonargparse takes a number in place of settings. A command is a group of itself, too.
        is_valid = key not in config or isinstance(config[key], Namespace)
        require(is_valid, key, config.get(key), "settings by name")


def check_settings(parser: LightningArgumentParser, config: Namespace) -> None:
    """Refuse values that cannot be, with the whole key."""
    for key, group in parser.groups.items():
        # Groups of single options have no class.
        if is_dataclass(kind := getattr(group, "group_class", None)):
            with prefix_errors(key):
                kind(**vars(config[key]))
    with prefix_errors("model.eval", "_"):
        EvalLengths(config.model.eval_mem_len, config.model.eval_clamp_len)
    with prefix_errors("data"):
        CorpusConfig(**config.data.as_dict())
    steps = config.trainer.max_steps
    require(steps is not None, "trainer.max_steps", "null", "a number of steps, or -1: no end")
    check_end(OptimConfig(**vars(config.model.optim)), steps)
    check_endless(config.trainer)
    is_enough = config.plan.minutes is None or steps > 0
    require(is_enough, "trainer.max_steps", steps, "the most steps that plan.minutes may take")


def take_option(arguments: list[str], *names: str) -> tuple[list[str], list[str]]:
    """Return all values of an option, and the arguments without it."""
    parser = ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(*names, dest="values", action="append", default=[])
    try:
        found, rest = parser.parse_known_args(arguments)
    except ArgumentError as error:
        raise ValueError(f"{names[-1].lstrip('-')}: {error.message}") from error
    return found.values, rest


def allow_imports(packages: list[str]) -> list[str]:
    """Return packages that the command line, and no file, lets configs name; they are importable
    also from the folder one stands in."""
    for package in packages:
        parts = package.split(".")
        # jsonargparse allows itself to nobody: its settings say what may be imported.
        is_possible = all(map(str.isidentifier, parts)) and parts[0] != "jsonargparse"
        require(is_possible, "allow_imports", package, "the name of a package of yours")
    if packages:
        sys.path.append(str(Path.cwd()))
    return packages


def names_text(data: Namespace, arguments: list[str]) -> bool:
    """Tell whether another text than the run's is asked for."""
    is_default = (data.path, data.corpus) == (None, DataConfig.corpus)
    return not is_default or any(word.startswith("--data.corpus") for word in arguments)


def check_trainer(trainer: Namespace) -> None:
    """Let Lightning refuse what it cannot do here, with the key, before a text is encoded."""
    given = {name: value for name, value in vars(trainer).items() if name not in BUILT_LATER}
    given = {name: value for name, value in given.items() if not isinstance(value, Namespace)}
    try:
        make_trainer(given)
    except Exception as error:
        tried = {}
        for name, value in given.items():
            tried[name] = value
            try:
                make_trainer(tried)
            except Exception as refusal:
                words = f"trainer.{name}: invalid {shorten(value)}; {format_line(str(refusal))}"
                raise ValueError(words) from error
        raise


def make_trainer(options: dict[str, Any]) -> None:
    with warnings.catch_warnings(action="ignore"):
        trainer = Trainer(**options, **dict.fromkeys(BUILT_LATER - OBJECTS, False))
    # Lightning would start them all.
    most = MAX_PROCESSES * (os.cpu_count() or 1)
    if isinstance(trainer.accelerator, CPUAccelerator) and trainer.num_devices > most:
        raise ValueError(f"expected at most {most} processes on this CPU")


def round_counts(trainer: Namespace) -> None:
    """Make numbers of batches whole numbers.

    Lightning takes either kind, and which of the two a number becomes depends on what the process
    has imported: Python keeps one of Optional[Union[int, float]] and Optional[Union[float, int]].
    """
    for name, value in vars(trainer).items():
        counts = name.endswith("_batches") or name == "val_check_interval"
        if counts and isinstance(value, float) and value > 1 and value.is_integer():
            trainer[name] = int(value)


def check_endless(trainer: Namespace) -> None:
    """Refuse fractions of a stream that has no end, unless epochs are limited to a few batches."""
    if any(isinstance(trainer[name], int) for name in ("limit_train_batches", "overfit_batches")):
        return
    for name, default in {"val_check_interval": None, "limit_train_batches": 1.0}.items():
        whole = not isinstance(trainer[name], float) or trainer[name] == default
        expected = "a whole number of batches, because training has no end"
        require(whole, f"trainer.{name}", trainer[name], expected)
