"""Callbacks of a run have one order, and its reasons are true."""

import pytest
from lightning.pytorch import Callback

from txl_lightning.training import cli
from txl_lightning.training.callbacks.always import TrainingStateCheckpoint
from txl_lightning.training.callbacks.checkpointing import BestCheckpoint
from txl_lightning.training.callbacks.report import Report
from txl_lightning.training.callbacks.time_budget import TimeBudget
from txl_lightning.training.callbacks.validation_probe import FinalValidation
from txl_lightning.training.callbacks.wandb import WandbRun
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.cli import ORDER, make_callbacks


class Watch(Callback):
    """Record what is saved; before training, move a callback to the end."""

    def __init__(self, moved: type[Callback] | None = None) -> None:
        self.moved = moved
        self.saved = []

    def on_fit_start(self, trainer, pl_module):
        trainer.callbacks.sort(key=lambda each: type(each) is self.moved)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint):
        self.saved.append(checkpoint)


@pytest.fixture
def train(small, tmp_path, monkeypatch):
    """Train by command line, saving before the only validation and after it."""

    def run(watch: Watch) -> list[Callback]:
        monkeypatch.setattr(cli, "make_callbacks", lambda *args: [watch, *make_callbacks(*args)])
        options = ["--trainer.max_steps=2", "--trainer.val_check_interval=99"]
        options += ["--checkpoint.every_n_steps=1", f"--trainer.default_root_dir={tmp_path}"]
        command = ["fit", *small, *options, "--trainer.callbacks=WeightAverage"]
        return cli.run_trainer(command).callbacks

    return run


def test_callbacks_of_a_run_are_in_the_order_of_the_list(train):
    types = [type(each) for each in train(Watch())]
    others = [kind for kind in ORDER[1:] if kind not in (TimeBudget, Report, WandbRun)]
    assert types == [WeightAverage, Watch, *others]


@pytest.mark.parametrize("moved", [None, TrainingStateCheckpoint, FinalValidation, BestCheckpoint])
def test_last_checkpoint_lacks_what_belongs_to_a_callback_after_it(train, moved):
    callbacks = train(watch := Watch(moved))
    [best] = (each.state_key for each in callbacks if isinstance(each, BestCheckpoint))
    states = [each["callbacks"] for each in watch.saved]
    has = {
        TrainingStateCheckpoint: all(each["txl_lightning"]["exact"] for each in watch.saved),
        FinalValidation: any(each["txl_lightning"]["validation_due"] for each in watch.saved),
        # After the validation, which follows the second step.
        BestCheckpoint: None not in [each[best]["best_model_score"] for each in states[2:]],
    }
    expected = {kind: kind is not moved for kind in has}
    # TrainingStateCheckpoint also asks whether a validation is due.
    expected[FinalValidation] &= moved is not TrainingStateCheckpoint
    assert has == expected
