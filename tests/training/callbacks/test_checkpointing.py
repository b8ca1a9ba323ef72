"""When checkpoints are written, and what a signal leaves behind."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning.errors import StorageError
from txl_lightning.files import find_write_problem
from txl_lightning.signals import is_child
from txl_lightning.training.callbacks import checkpointing
from txl_lightning.training.callbacks.checkpointing import BestCheckpoint, LastCheckpoint


class Signal(Callback):
    """Send one to this process after a step, or in the first validation after it."""

    def __init__(self, name: str, step: int, in_validation=False):
        self.number, self.step = getattr(signal, f"SIG{name}"), step
        self.in_validation = in_validation

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and not self.in_validation:
            os.kill(os.getpid(), self.number)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and batch_idx == 0 and self.in_validation:
            os.kill(os.getpid(), self.number)


class Steps(Callback):
    """Which step each file was written after."""

    def __init__(self):
        self.saved = []

    def on_save_checkpoint(self, trainer, module, checkpoint):
        self.saved.append(trainer.global_step)


@pytest.fixture
def fit(make_model, make_data, make_trainer, tmp_path):
    """Train with such callbacks; all but ours are called before it."""

    def run(*callbacks, **options):
        changes = {"enable_checkpointing": True, "max_steps": 8, "val_check_interval": 4}
        changes["default_root_dir"] = tmp_path / "run"
        trainer = make_trainer(callbacks=list(callbacks), **changes | options)
        trainer.fit(make_model(), datamodule=make_data())

    return run


@pytest.fixture
def last(tmp_path) -> Path:
    return tmp_path / "run" / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("every", "options", "steps"),
    [
        (None, {}, [4, 8]),
        (3, {}, [3, 4, 6, 8]),
        (None, {"limit_val_batches": 0}, [8]),
        (2, {"accumulate_grad_batches": 3, "val_check_interval": 12}, [2, 4, 6, 8]),
    ],
    ids=str,
)
def test_last_checkpoint_is_written_after_validations_every_few_steps_and_at_the_end(
    fit, every, options, steps
):
    record = Steps()
    fit(record, LastCheckpoint(every), **options)
    assert list(dict.fromkeys(record.saved)) == steps


def test_validation_while_gradients_accumulate_saves_nothing(fit, last):
    """Gradients that wait for more segments are in no checkpoint."""
    record = Steps()
    options = {"accumulate_grad_batches": 3, "val_check_interval": 4, "max_steps": 3}
    fit(record, LastCheckpoint(), **options)
    assert record.saved == [3]
    assert torch.load(last, weights_only=True)["txl_lightning"]["exact"]


def test_process_that_lightning_started_ends_with_0(fit, monkeypatch):
    """Lightning kills the first process, which may not have ended, when another one fails."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as stop:
        fit(Signal("TERM", 3), LastCheckpoint())
    assert stop.value.code == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not is_child()


def test_checkpoint_saved_in_validation_counts_nothing_of_it(fit, last):
    """Else the one that follows would be taken for its rest."""
    with pytest.raises(SystemExit):
        fit(Signal("TERM", 4, in_validation=True), LastCheckpoint())
    loops = torch.load(last, weights_only=True)["loops"]["fit_loop"]
    assert loops["epoch_loop.batch_progress"]["total"]["completed"] == 4
    progress = loops["epoch_loop.val_loop.batch_progress"]
    assert set(progress["total"].values()) == set(progress["current"].values()) == {0}


def test_usr1_saves_once_and_training_continues(fit):
    record = Steps()
    fit(record, Signal("USR1", 2), LastCheckpoint())
    assert record.saved == [2, 4, 8]


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_signal_handlers_are_restored_after_training(fit, name):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    try:
        fit(Signal(name, 2), LastCheckpoint())
    except SystemExit:
        assert name == "TERM"
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


class Accident(Callback):
    def on_train_batch_start(self, *_):
        raise RuntimeError("an accident")


def test_exception_before_the_first_step_leaves_nothing(fit, last):
    with pytest.raises(RuntimeError, match="an accident"):
        fit(Accident(), LastCheckpoint())
    assert not list(last.parent.glob("*"))


@pytest.mark.parametrize("place", ["/proc/sys/runs", "/dev/null/runs"])
def test_folder_that_cannot_be_written_stops_before_the_first_step(fit, place):
    assert f"{place}: cannot be written (" in find_write_problem(Path(place))
    with pytest.raises(StorageError, match="cannot be written"):
        fit(Accident(), LastCheckpoint(), default_root_dir=place)


def test_little_space_is_warned_of_before_the_first_step(fit, monkeypatch):
    """Three files of weights and two moments may not fit."""
    # A disk as small cannot be had without being root.
    usage = checkpointing.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(checkpointing.shutil, "disk_usage", lambda path: usage)
    with pytest.warns(UserWarning, match="1,000 bytes free; checkpoints may need"):
        fit(LastCheckpoint())


def test_best_checkpoint_is_of_the_lowest_nats(fit, last):
    class Record(Callback):
        nats = ()

        def on_validation_end(self, trainer, module):
            self.nats += ((trainer.callback_metrics["val/nats"].item(), trainer.global_step),)

    record = Record()
    fit(record, BestCheckpoint(), max_steps=6, val_check_interval=2)
    best = torch.load(last.with_name("best.ckpt"), weights_only=True)
    assert len(record.nats) == 3
    assert best["global_step"] == min(record.nats)[1]
