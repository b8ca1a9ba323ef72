"""What a person sees while training."""

import io

import pytest
from rich.console import Console

from txl_lightning.training.curve import LearningCurve
from txl_lightning.training.progress import TokenProgress


def watched(terminal: bool, **changes) -> TokenProgress:
    progress = TokenProgress(**changes)
    progress.console = Console(file=io.StringIO(), force_terminal=terminal, width=120)
    return progress


@pytest.mark.parametrize("terminal", [False, True])
def test_it_shows_loss_bits_and_validation(make_model, make_data, make_trainer, terminal):
    progress = watched(terminal, seconds_between_lines=0)
    options = {"enable_progress_bar": True, "val_check_interval": 3, "log_every_n_steps": 1}
    trainer = make_trainer(callbacks=[progress], **options)
    trainer.fit(make_model(), datamodule=make_data())
    shown = progress.console.file.getvalue()
    assert "parameters on cpu" in shown
    assert "bits/byte" in shown
    assert "nats" in shown
    assert "6/6" in shown
    assert shown.count("validation:") == 2
    assert progress.live is None


def test_lines_are_not_printed_more_often_than_asked(make_model, make_data, make_trainer):
    progress = watched(terminal=False, seconds_between_lines=1e6)
    trainer = make_trainer(callbacks=[progress], enable_progress_bar=True, log_every_n_steps=1)
    trainer.fit(make_model(), datamodule=make_data())
    lines = progress.console.file.getvalue().splitlines()
    assert sum(line.startswith("step") and "/6" in line for line in lines) == 1


def test_the_curve_goes_on_after_a_resume(make_model, make_data, make_trainer, tmp_path):
    first, second = LearningCurve(), LearningCurve()
    options = {"log_every_n_steps": 2, "val_check_interval": 2}
    trainer = make_trainer(callbacks=[first], max_steps=4, **options)
    trainer.fit(make_model(), datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    resumed = make_trainer(callbacks=[second], max_steps=8, **options)
    resumed.fit(make_model(), datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")
    tokens = [point[0] for point in second.points["train"]]
    assert tokens == [2 * 32, 4 * 32, 6 * 32, 8 * 32]
    assert second.points["train"][:2] == first.points["train"]
    assert [point[0] for point in second.points["val"]] == tokens
