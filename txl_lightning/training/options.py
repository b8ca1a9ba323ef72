"""Options of Lightning's commands: their help, and what is refused before anything is built."""

from dataclasses import is_dataclass
from typing import Any

from jsonargparse import Namespace
from lightning.pytorch.cli import LightningArgumentParser

from ..data.datamodule import CorpusConfig
from ..errors import prefix_errors, require
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
TEXTS = {
    "ckpt_path": "A checkpoint, or a folder written by convert.",
    "trainer.default_root_dir": "The folder of runs; each has a version_N in it.",
    "trainer.max_steps": "Steps of training, and with plan.minutes their limit; -1: no end.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Segments that a validation reads at most; left out, all.",
    "trainer.logger": "A logger beside metrics.csv, for example WandbLogger; false: none at all.",
    "trainer.strategy": "How devices share the work: ddp, fsdp2, or another of Lightning's.",
}
"""Texts where Lightning's own do not fit an endless loader and our folders."""
FIT_ONLY = ("model.optim.", "checkpoint.", "plan.", "wandb.", "report.", "resume", "trainer.max_")
FIT_ONLY += ("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_")


class Parser(LightningArgumentParser):
    """Lightning's parser with our help formatter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter} | options)


def describe_options(parser: LightningArgumentParser, arguments: list[str]) -> None:
    """Write a command's help: its own settings, or with --trainer.help the Trainer's."""
    command = arguments[0]
    describe_command(parser, command, ABOUT[command])
    # Private: argparse has no public list of a parser's options, nor of their groups.
    for action in parser._actions:
        action.help = TEXTS.get(action.dest, action.help)
    if "--trainer.help" in arguments:
        hide_options(parser, lambda name: not name.startswith("trainer."))
        return
    shown = {f"trainer.{name}" for name in (*TRAINER_OPTIONS.split(), "help")}
    hidden = ("weights_only", *(FIT_ONLY if command != "fit" else ()))
    hide_options(parser, lambda name: name.startswith("trainer.") and name not in shown)
    hide_options(parser, lambda name: name.startswith(hidden))
    # Our settings first: Lightning adds the Trainer's before them.
    parser._action_groups.sort(key=lambda group: group is parser.groups["trainer"])


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
        CorpusConfig(**vars(config.data))
    check_end(OptimConfig(**vars(config.model.optim)), config.trainer.max_steps)
    check_endless(config.trainer)
    if config.plan.minutes is not None:
        steps, expected = config.trainer.max_steps, "the most steps that plan.minutes may take"
        require(steps > 0, "trainer.max_steps", steps, expected)


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
