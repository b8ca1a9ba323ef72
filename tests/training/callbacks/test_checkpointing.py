"""When checkpoints are written, and what a signal leaves behind."""

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning.errors import StorageError
from txl_lightning.files import find_write_problem
from txl_lightning.signals import is_child
from txl_lightning.training.callbacks import checkpointing
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint


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


class Validated(Callback):
    """Each validation: after which step, and what it found."""

    def __init__(self):
        self.found = []

    def on_validation_end(self, trainer, module):
        self.found.append((trainer.global_step, trainer.callback_metrics["val/nats"].item()))


@pytest.fixture
def fit(make_model, make_data, make_trainer, tmp_path):
    """Train with such callbacks; all but LastCheckpoint are called before it."""

    def run(*callbacks, ckpt_path=None, into="run", **options):
        changes = {"enable_checkpointing": True, "max_steps": 8, "val_check_interval": 4}
        changes["default_root_dir"] = tmp_path / into
        torch.manual_seed(3)
        trainer = make_trainer(callbacks=list(callbacks), **changes | options)
        trainer.fit(make_model(dropout=0.2), datamodule=make_data(), ckpt_path=ckpt_path)
        return trainer

    return run


@pytest.fixture
def last(tmp_path) -> Path:
    return tmp_path / "run" / "checkpoints" / "last.ckpt"


def held(path: Path) -> dict:
    return torch.load(path, weights_only=True)


@pytest.mark.parametrize(
    ("every", "options", "steps"),
    [
        (None, {}, [4, 8]),
        (3, {}, [3, 4, 6, 8]),
        (None, {"limit_val_batches": 0}, [8]),
        (None, {"max_steps": 6}, [4, 6]),
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
    assert held(last)["txl_lightning"]["exact"]


@pytest.mark.parametrize(
    ("name", "code", "step", "in_validation"),
    [
        ("TERM", 143, 3, False),
        ("TERM", 143, 4, True),
        ("HUP", 143, 4, False),
        ("INT", 130, 4, True),
    ],
)
def test_run_stopped_by_a_signal_resumes_as_if_it_had_not_stopped(
    fit, last, tmp_path, capfd, name, code, step, in_validation
):
    with pytest.raises(SystemExit) as stop:
        fit(Signal(name, step, in_validation), LastCheckpoint())
    assert stop.value.code == code
    assert held(last)["global_step"] == step
    said = capfd.readouterr().err
    assert f"SIG{name}: this step is finished and saved" in said
    assert f"saved after step {step}: {last}" in said
    resumed, whole = Validated(), Validated()
    fit(resumed, LastCheckpoint(), ckpt_path=last, into="resumed")
    fit(whole, LastCheckpoint(), into="whole")
    assert resumed.found == whole.found
    assert [step for step, _ in whole.found] == [4, 8]
    weights = (
        held(tmp_path / name / "checkpoints" / "last.ckpt")["state_dict"].values()
        for name in ("resumed", "whole")
    )
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


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
    loops = held(last)["loops"]["fit_loop"]
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


@pytest.mark.slow
def test_exit_code_of_a_process_is_its_signals_and_its_last_step_is_logged(
    tmp_path, small, repository
):
    command = [sys.executable, repository / "tests" / "faults" / "driver.py", "fit", *small]
    environment = {**os.environ, "FAULT": "TERM:3", "PYTHONPATH": str(repository)}
    options = {"cwd": tmp_path, "env": environment, "capture_output": True, "check": False}
    since = time.monotonic()
    done = subprocess.run(command, **options, text=True, timeout=100)
    assert done.returncode == 143, done.stderr
    assert time.monotonic() - since < 60
    assert "saved after step 3" in done.stderr
    assert held(tmp_path / "runs/version_0/checkpoints/last.ckpt")["global_step"] == 3
    with (tmp_path / "runs/version_0/metrics.csv").open() as file:
        logged = [row["step"] for row in csv.DictReader(file) if row["train/nats"]]
    # The last step's, too; they are counted from 0.
    assert logged == ["0", "1", "2"]


class Accident(Callback):
    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        if trainer.global_step == 6:
            raise RuntimeError("an accident")


def test_exception_leaves_last_checkpoint_and_a_crash_checkpoint_to_continue_near(fit, last, capfd):
    with pytest.raises(RuntimeError, match="an accident"):
        fit(Accident(), LastCheckpoint())
    crash = last.with_name("crash-6.ckpt")
    assert [held(path)["global_step"] for path in (last, crash)] == [4, 6]
    exact = [held(path)["txl_lightning"]["exact"] for path in (last, crash)]
    assert exact == [True, False]
    assert f"the state at the crash is in {crash}" in capfd.readouterr().err
    with pytest.warns(UserWarning, match="saved in mid-step: what follows is near, not exact"):
        assert fit(LastCheckpoint(), ckpt_path=crash, into="other").global_step == 8


def test_exception_before_the_first_step_leaves_nothing(fit, last):
    class Early(Callback):
        def on_train_batch_start(self, *_):
            raise RuntimeError("an accident")

    with pytest.raises(RuntimeError, match="an accident"):
        fit(Early(), LastCheckpoint())
    assert not list(last.parent.glob("*"))


def test_writable_folder_is_left_as_it_was(tmp_path):
    assert find_write_problem(tmp_path / "new") is None
    assert list((tmp_path / "new").iterdir()) == []


@pytest.mark.parametrize("place", ["/proc/sys/runs", "/dev/null/runs"])
def test_folder_that_cannot_be_written_stops_before_the_first_step(fit, place):
    class Steps(Callback):
        def on_train_batch_start(self, *_):
            raise AssertionError("a step")

    assert f"{place}: cannot be written (" in find_write_problem(Path(place))
    with pytest.raises(StorageError, match="cannot be written"):
        fit(Steps(), LastCheckpoint(), default_root_dir=place)


def test_little_space_is_warned_of_before_the_first_step(fit, monkeypatch):
    """Three files of weights and two moments may not fit."""
    # A disk as small cannot be had without being root.
    usage = checkpointing.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(checkpointing.shutil, "disk_usage", lambda path: usage)
    with pytest.warns(UserWarning, match="1,000 bytes free; checkpoints may need"):
        fit(LastCheckpoint())
