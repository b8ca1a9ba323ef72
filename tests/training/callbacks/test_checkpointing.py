"""Times at which checkpoints are written, and checkpoints after a signal."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch.callbacks import EarlyStopping, LambdaCallback, ModelCheckpoint, Timer

from txl_lightning.errors import StorageError
from txl_lightning.files import find_write_problem
from txl_lightning.process import exit_on_signals, is_child
from txl_lightning.runs.logger import RunLogger
from txl_lightning.runs.metrics_table import read_log
from txl_lightning.training.callbacks import checkpointing
from txl_lightning.training.callbacks.checkpointing import BestCheckpoint, LastCheckpoint
from txl_lightning.training.start import check_remaining_steps


def send_signal(name: str, step: int, hook: str = "on_train_batch_end") -> LambdaCallback:
    """Send a signal to this process in the first call of a hook after a step."""

    def send(trainer, module, outputs, batch, batch_idx, *_):
        if trainer.global_step == step and (batch_idx == 0 or "train" in hook):
            os.kill(os.getpid(), getattr(signal, f"SIG{name}"))

    return LambdaCallback(**{hook: send})


@pytest.fixture
def accident() -> LambdaCallback:
    def fail(*_):
        raise RuntimeError("an accident")

    return LambdaCallback(on_train_batch_start=fail)


@pytest.fixture
def saved_steps(fit):
    """Train with callbacks; return the steps after which a file was written."""

    def run(*callbacks, **options) -> list[int]:
        steps = []
        record = LambdaCallback(
            on_save_checkpoint=lambda trainer, *_: steps.append(trainer.global_step)
        )
        options = {"max_steps": 8, "val_check_interval": 4} | options
        fit(record, *callbacks, enable_checkpointing=True, **options)
        return list(dict.fromkeys(steps))

    return run


@pytest.fixture
def last(tmp_path) -> Path:
    return tmp_path / "runs" / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize(
    ("every", "options", "steps"),
    [
        (None, {}, [4, 8]),
        (3, {}, [3, 4, 6, 8]),
        (None, {"limit_val_batches": 0}, [8]),
        (2, {"accumulate_grad_batches": 3, "val_check_interval": 12}, [2, 4, 6, 8]),
        # No checkpoint contains gradients that wait for more segments.
        (None, {"accumulate_grad_batches": 3, "val_check_interval": 4, "max_steps": 3}, [3]),
    ],
    ids=str,
)
def test_last_checkpoint_is_written_after_validations_every_few_steps_and_at_the_end(
    saved_steps, last, every, options, steps
):
    assert saved_steps(LastCheckpoint(every), **options) == steps
    checkpoint = torch.load(last, weights_only=True)
    assert checkpoint["txl_lightning"]["exact"]
    # The validation before it is not repeated after a resume.
    assert checkpoint["txl_lightning"]["validation_due"] is False


def test_a_users_checkpoint_knows_that_a_validation_follows_its_step(saved_steps, tmp_path):
    own = ModelCheckpoint(tmp_path / "own", "{step}", every_n_train_steps=2, save_top_k=-1)
    saved_steps(own, LastCheckpoint())
    paths = sorted((tmp_path / "own").iterdir())
    states = [torch.load(path, weights_only=True)["txl_lightning"] for path in paths]
    assert [state["validation_due"] for state in states] == [False, True, False, True]


def test_a_request_to_save_before_training_is_met_after_the_first_step(saved_steps, capfd):
    with exit_on_signals():
        os.kill(os.getpid(), signal.SIGUSR1)
        assert saved_steps(LastCheckpoint()) == [1, 4, 8]
    assert "saved after step 1:" in capfd.readouterr().err


def test_process_that_lightning_started_ends_with_0(saved_steps, monkeypatch):
    """If another process fails, Lightning kills the first one, which may still be running."""
    monkeypatch.setenv("LOCAL_RANK", "1")
    with pytest.raises(SystemExit) as stop:
        saved_steps(send_signal("TERM", 3), LastCheckpoint())
    assert stop.value.code == 0
    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "none")
    assert not is_child()


def test_checkpoint_saved_during_validation_excludes_it(saved_steps, last):
    """Otherwise the next validation would be treated as its rest."""
    with pytest.raises(SystemExit):
        saved_steps(send_signal("TERM", 4, "on_validation_batch_end"), LastCheckpoint())
    loops = torch.load(last, weights_only=True)["loops"]["fit_loop"]
    assert loops["epoch_loop.batch_progress"]["total"]["completed"] == 4
    progress = loops["epoch_loop.val_loop.batch_progress"]
    assert set(progress["total"].values()) == set(progress["current"].values()) == {0}


@pytest.mark.parametrize("n_segment", [1, 2])
def test_every_step_of_a_checkpoint_is_logged_once_and_on_disk_before_it_is_written(
    fit, tmp_path, monkeypatch, n_segment
):
    flushed = []
    seen = []
    sync = os.fsync
    monkeypatch.setattr(
        os, "fsync", lambda n: (flushed.append(os.readlink(f"/proc/self/fd/{n}")), sync(n))
    )
    metrics = tmp_path / "run" / "metrics.csv"

    class RecordingIO(checkpointing.AtomicCheckpointIO):
        def save_checkpoint(self, checkpoint, *args, **options):
            steps = [int(row["step"]) for row in read_log(metrics) if row["train/nats"]]
            assert steps == list(range(checkpoint["global_step"]))
            assert flushed[-1] == str(metrics)
            seen.append(checkpoint["global_step"])
            super().save_checkpoint(checkpoint, *args, **options)

    fit(
        LastCheckpoint(2), ModelCheckpoint(every_n_train_steps=1, save_top_k=-1),
        enable_checkpointing=True,
        logger=RunLogger(tmp_path, name="", version="run"), plugins=[RecordingIO()],
        log_every_n_steps=1, accumulate_grad_batches=n_segment, limit_val_batches=1,
        val_check_interval=2 * n_segment, max_steps=5,
    )  # fmt: skip
    assert sorted(set(seen)) == [1, 2, 3, 4, 5]
    assert [int(row["step"]) for row in read_log(metrics) if row["train/nats"]] == [*range(5)]


class OverTimer(Timer):
    """A Timer whose hour is over after a step."""

    def __init__(self, step: int) -> None:
        super().__init__({"hours": 1})
        self.step = step

    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == self.step:
            self.load_state_dict({"time_elapsed": {"train": 3600}})
        super().on_train_batch_end(trainer)


EPOCHS = {"max_steps": -1, "max_epochs": 2, "limit_train_batches": 4}
BY_EPOCH = {"val_check_interval": 1.0, "check_val_every_n_epoch": 1}
ENDS = {
    "max_steps": ({}, None, [4, 8]),
    "max_epochs": (EPOCHS, None, [4, 8]),
    "max_epochs, validated by epochs": (EPOCHS | BY_EPOCH, None, [4, 8]),
    "max_time": ({}, OverTimer, [4, 6]),
    "early stopping": ({}, lambda _: EarlyStopping("val/nats", stopping_threshold=99.0), [4]),
}


@pytest.mark.parametrize(
    ("end", "hook"),
    [
        *((end, "on_train_batch_end") for end in ENDS),
        ("max_steps", "on_validation_batch_end"),
        ("max_time", "on_validation_batch_end"),
        *((end, None) for end in ENDS),
    ],
)
def test_run_has_its_last_validation_once_however_it_ends_or_is_stopped(
    saved_steps, last, end, hook
):
    """Stopped before or during it, or resumed after it without remaining steps."""
    options, make_end, expected = ENDS[end]

    def run(*callbacks, **resumed) -> list[int]:
        steps = []
        record = LambdaCallback(
            on_validation_end=lambda trainer, _: steps.append(trainer.global_step)
        )
        ending = [make_end(expected[-1])] if make_end else []
        saved_steps(*ending, *callbacks, LastCheckpoint(), record, **options, **resumed)
        return steps

    if hook is None:
        assert run() == expected
    else:
        with pytest.raises(SystemExit):
            run(send_signal("TERM", expected[-1], hook))
    before = torch.load(last, weights_only=True)
    if hook and end == "max_steps":
        check_remaining_steps(8, before, resume="auto")
    assert run(ckpt_path=last) == (expected[-1:] if hook else [])
    after = torch.load(last, weights_only=True)
    with pytest.raises(SystemExit):
        check_remaining_steps(expected[-1], after, resume="auto")
    assert after["global_step"] == expected[-1]
    assert after["txl_lightning"]["validation_due"] is False
    groups, others = (each["optimizer_states"][0]["param_groups"] for each in (before, after))
    assert groups == others


def test_a_validation_after_a_resume_is_logged_with_the_epoch_that_it_ends(saved_steps, tmp_path):
    def run(name, *callbacks, **resumed) -> list[tuple[str, str]]:
        logger = RunLogger(tmp_path, name="", version=name)
        options = EPOCHS | resumed | {"logger": logger, "log_every_n_steps": 1}
        saved_steps(*callbacks, LastCheckpoint(), **options)
        rows = read_log(tmp_path / name / "metrics.csv")
        return [(row["step"], row["epoch"]) for row in rows if row["val/nats"]]

    whole = run("whole")
    assert [int(float(epoch)) for _, epoch in whole] == [0, 1]
    with pytest.raises(SystemExit):
        run("stopped", send_signal("TERM", 8))
    last = tmp_path / "stopped" / "checkpoints" / "last.ckpt"
    assert run("stopped", ckpt_path=last) == whole


@pytest.mark.parametrize("name", ["TERM", "USR1"])
def test_signal_stops_or_only_saves_and_handlers_are_restored_after_training(
    saved_steps, last, name
):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)]
    if name == "TERM":
        with pytest.raises(SystemExit) as stop:
            saved_steps(send_signal(name, 2), LastCheckpoint())
        assert stop.value.code == 143
        assert torch.load(last, weights_only=True)["global_step"] == 2
    else:
        assert saved_steps(send_signal(name, 2), LastCheckpoint()) == [2, 4, 8]
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1)] == before


def test_exception_before_the_first_step_leaves_nothing(saved_steps, last, accident):
    with pytest.raises(RuntimeError, match="an accident"):
        saved_steps(accident, LastCheckpoint())
    assert not list(last.parent.glob("*"))


@pytest.mark.parametrize("place", ["/proc/sys/runs", "/dev/null/runs"])
def test_folder_that_cannot_be_written_stops_before_the_first_step(saved_steps, place, accident):
    assert f"{place}: cannot be written (" in find_write_problem(Path(place))
    with pytest.raises(StorageError, match="cannot be written"):
        saved_steps(accident, LastCheckpoint(), default_root_dir=place)


def test_low_disk_space_is_a_warning_before_the_first_step(saved_steps, monkeypatch):
    """Three files with weights and two moments may not fit."""
    # Such a small disk needs root.
    usage = checkpointing.shutil.disk_usage("/")._replace(free=1000)
    monkeypatch.setattr(checkpointing.shutil, "disk_usage", lambda folder: usage)
    with pytest.warns(UserWarning, match="1,000 bytes free; checkpoints may need"):
        saved_steps(LastCheckpoint())


def test_run_killed_after_its_first_best_checkpoint_writes_another(saved_steps, last):
    """It resumes from a last.ckpt older than that validation."""
    best = last.with_name("best.ckpt")
    saved_steps(LastCheckpoint(), BestCheckpoint(), max_steps=2)
    best.write_bytes(last.read_bytes())
    saved_steps(LastCheckpoint(), BestCheckpoint(), max_steps=4, ckpt_path=last)
    assert torch.load(best, weights_only=True)["global_step"] == 4
