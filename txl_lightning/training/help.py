"""The help of Lightning's commands: our settings, and of the Trainer's those that a run needs."""

from typing import Any

from lightning.pytorch.cli import LightningArgumentParser

from ..help import HelpFormatter, describe_command, hide_options

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
    "trainer.max_steps": "Steps of training; -1: no end.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Segments that a validation reads at most; left out, all.",
    "trainer.logger": "A logger beside metrics.csv, for example WandbLogger; false: none at all.",
    "trainer.strategy": "How devices share the work: ddp, fsdp2, or another of Lightning's.",
}
"""Texts where Lightning's own do not fit an endless loader and our folders."""
FIT_ONLY = ("model.optim.", "checkpoint.", "wandb.", "report.", "resume", "trainer.max_")
FIT_ONLY += ("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_")


class Parser(LightningArgumentParser):
    """Lightning's parser with our help formatter."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **{"formatter_class": HelpFormatter} | options)


def describe_options(parser: LightningArgumentParser, command: str, arguments: list[str]) -> None:
    """Write a command's help: its own settings, or with --trainer.help the Trainer's."""
    describe_command(parser, command, ABOUT[command])
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
