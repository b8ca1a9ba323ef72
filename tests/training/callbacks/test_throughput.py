"""Tokens per second are those of training; elapsed time survives a resume."""

from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning.training.callbacks import progress_bar
from txl_lightning.training.callbacks.progress_bar import Throughput


@pytest.mark.parametrize("ext_len", [0, 5])
def test_throughput_counts_new_tokens_without_validation_time(fit, monkeypatch, ext_len):
    now = [0.0]

    def wait(seconds: float, *_) -> None:
        now[0] += seconds

    monkeypatch.setattr(progress_bar.time, "perf_counter", lambda: now[0])
    clock = LambdaCallback(
        on_train_batch_end=partial(wait, 1), on_validation_batch_end=partial(wait, 100)
    )
    options = {"log_every_n_steps": 4, "val_check_interval": 3, "max_steps": 4}
    trainer = fit(clock, Throughput(), data={"ext_len": ext_len}, **options)
    assert trainer.callback_metrics["train/tokens_per_second"] == 4 * 8


def test_elapsed_seconds_continue_after_a_resume(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    options = {"log_every_n_steps": 1, "limit_val_batches": 0}
    fit(Throughput(), max_steps=2, **options).save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    assert 0 < checkpoint["txl_lightning"]["seconds"] < 900
    checkpoint["txl_lightning"]["seconds"] = 1000.0
    torch.save(checkpoint, path)
    second = fit(Throughput(), max_steps=4, ckpt_path=path, **options)
    assert second.callback_metrics["train/seconds"] > 1000
