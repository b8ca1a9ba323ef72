"""The state of a run is in run.json, whether it is finished or was stopped."""

import json
from pathlib import Path

import pytest
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning.training import cli
from txl_lightning.training.cli import make_callbacks

PATH = Path("runs/version_0/run.json")


@pytest.fixture
def watch(small, monkeypatch, tmp_path):
    """Train with a callback that is called before each step."""
    monkeypatch.chdir(tmp_path)

    def run(look) -> None:
        own = LambdaCallback(on_train_batch_start=look)
        monkeypatch.setattr(cli, "make_callbacks", lambda *args: [own, *make_callbacks(*args)])
        cli.run_trainer(["fit", *small, "--trainer.max_steps=2"])

    return run


def read_state() -> tuple[str, int]:
    run = json.loads(PATH.read_text())
    return run["state"], run["step"]


def test_a_run_has_its_state_and_its_size(watch):
    states = []
    watch(lambda trainer, *_: states.append(read_state()))
    assert states == [("training", 0), ("training", 0)]
    assert read_state() == ("finished", 2)
    run = json.loads(PATH.read_text())
    assert run["parameters"] > 1000
    assert run["tokens"] == 64


@pytest.mark.parametrize(
    ("error", "state"),
    [(SystemExit(143), "stopped"), (ValueError("no more"), "ended by: no more")],
    ids=["signal", "error"],
)
def test_a_run_that_ends_early_has_its_state(watch, error, state):
    def fail(trainer, *_):
        if trainer.global_step == 1:
            raise error

    with pytest.raises(type(error)):
        watch(fail)
    assert read_state() == (state, 1)


def test_a_test_split_that_cannot_be_read_later_is_said_before_training(accepted, small):
    said = accepted("fit", *small, "--data.split=[0.9, 0.0995, 0.0005]").err
    assert "letters.txt, test: 3 tokens are too few for 4 rows of 1 + 1" in said
    said = accepted("fit", *small, "--data.split=[0.9, 0.1, 0]").err
    assert "too few" not in said
