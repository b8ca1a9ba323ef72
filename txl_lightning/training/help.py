"""The help of Lightning's verbs: our settings first, of the Trainer's what a run needs."""

import argparse
from typing import Any

import jsonargparse
from lightning.pytorch import Trainer
from lightning.pytorch.cli import LightningArgumentParser

from ..help import Words, example, program

ABOUT = {
    "fit": "Train a Transformer-XL on a text, and validate on the way.",
    "validate": "Measure a checkpoint on the validation text.",
    "test": "Measure a checkpoint on the test text.",
    "predict": "Write the nats of every token of the test text to a file, nats.npy.",
}
MEASURED = (
    "Lengths and batches may be others than in training. The settings of training are taken, too, "
    "so that a run's config.yaml can be given with --config; fit --help lists them."
)
TRAINED = (
    "Every setting is a key of a YAML file, too (--config FILE, several of which may be given); "
    "what is given last counts. A group may have a file of its own: --data FILE."
)
SAID = {
    "config": "A YAML file of settings.",
    "print_config": "Print all settings as YAML, as they would be used, and exit.",
    "seed_everything": "Where random numbers start from; true takes another start each time.",
    "ckpt_path": "A checkpoint, or a folder written by convert.",
    "verbose": "Whether the measured numbers are printed.",
    "trainer.help": "All of the Trainer's options.",
    "trainer.default_root_dir": "The folder of runs; each has a version_N in it.",
    "trainer.max_steps": "Steps of training; -1 is no end.",
    "trainer.max_time": "How long it may take, as days:hours:minutes:seconds.",
    "trainer.gradient_clip_val": "Norm that gradients are scaled down to if theirs is greater; "
    "null, none.",
    "trainer.accumulate_grad_batches": "Segments whose gradients make one step.",
    "trainer.val_check_interval": "Segments from one validation to the next.",
    "trainer.limit_val_batches": "Segments that a validation reads at most; left out, all.",
    "trainer.limit_test_batches": "Segments that are read at most; left out, all.",
    "trainer.limit_predict_batches": "Segments that are read at most; left out, all.",
    "trainer.log_every_n_steps": "Steps from one line in metrics.csv to the next.",
    "trainer.accelerator": "What computes: cpu, gpu, mps, or auto, the best there is.",
    "trainer.devices": "How many of them, or which: [0, 2]; auto is all.",
    "trainer.num_nodes": "Machines that train together.",
    "trainer.strategy": "How devices share the work: ddp, each with all weights; fsdp2, each with "
    "a part of them; or another of Lightning's.",
    "trainer.precision": "What numbers are computed in; left out, 32-true.",
    "trainer.logger": "A logger beside metrics.csv, as WandbLogger; its settings follow: "
    "--trainer.logger.offline true. false is none at all.",
    "trainer.callbacks": "Callbacks beside our own, as WeightAverage; the settings of one are "
    "listed by --trainer.callbacks.help WeightAverage.",
    "trainer.enable_progress_bar": "Whether a line shows how far it is.",
}
"""What is said of options that are not ours."""
OF_TRAINING = ("model.optim.", "checkpoint.", "wandb.", "report.", "resume", "trainer.max_")
OF_TRAINING += ("trainer.gradient_", "trainer.accumulate_", "trainer.val_", "trainer.log_every_")
OF_TRAINING += ("trainer.callbacks",)
"""How options begin that nothing but fit has a use for."""
LIMITS = {"fit": "val", "validate": "val", "test": "test", "predict": "predict"}
"""What the Trainer calls the text that a verb reads."""
NEVER = {"weights_only", "trainer.model_registry"}
"""Options with one possible value, and of a service that has no part in this."""


class Parser(LightningArgumentParser):
    """A parser whose help is in words, also that of a callback or a logger."""

    def __init__(self, *args: Any, **options: Any) -> None:
        usual = {"formatter_class": Words, "prog": program("VERB")}
        super().__init__(*args, **usual | options)

    def add_lightning_class_args(self, kind: type, *args: Any, **options: Any) -> list[str]:
        """Look for documented fields, but not the Trainer's: it has none, which takes long."""
        jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=kind is not Trainer)
        added = super().add_lightning_class_args(kind, *args, **options)
        jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
        return added


class TrainerHelp(argparse._HelpAction):
    """Speak of the Trainer's options, and of nothing else."""

    def __call__(self, parser: jsonargparse.ArgumentParser, *_: Any) -> None:
        parser.description = parser.epilog = None
        parser.groups["trainer"].title = "Lightning's Trainer"
        hidden = {*NEVER, "trainer.help"}
        for action in parser._actions:
            action.untold = not action.dest.startswith("trainer.") or action.dest in hidden
        parser.print_help()
        parser.exit()


def put_in_words(parser: jsonargparse.ArgumentParser, verb: str) -> None:
    """Make a verb's help one that can be read; what it accepts stays the same."""
    parser.prog = program(verb)
    parser.description = "\n\n".join((ABOUT[verb], TRAINED if verb == "fit" else MEASURED))
    parser.epilog = example(verb)
    for action in parser._actions:
        name = action.option_strings[-1].strip("-+")
        action.help = SAID.get(name, action.help)
        action.untold = not is_of_use(name, verb)
    put_in_order(parser)


def put_in_order(parser: jsonargparse.ArgumentParser) -> None:
    """What a run is told first comes first: its checkpoint, our settings, the Trainer's."""
    first, *groups = parser._action_groups[1:]
    # The last one is the verb's own: the checkpoint it begins with.
    first._group_actions += groups.pop()._group_actions
    trainer, order = parser.groups["trainer"], {name: at for at, name in enumerate(SAID)}
    trainer.title = "Of Lightning's Trainer, whose other options --trainer.help lists"
    trainer._group_actions.sort(key=lambda action: order.get(action.dest, len(order)))
    parser._action_groups = [first, *(group for group in groups if group is not trainer), trainer]


def is_of_use(name: str, verb: str) -> bool:
    """Whether a verb's help speaks of an option."""
    if name.startswith("trainer.limit_"):
        return name == f"trainer.limit_{LIMITS[verb]}_batches"
    if verb != "fit" and name.startswith(OF_TRAINING):
        return False
    return name not in NEVER and (name in SAID or not name.startswith("trainer."))
