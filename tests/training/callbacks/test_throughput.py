"""MFU is logged if the peak of the device is known; elapsed time survives a resume."""

from functools import partial

import pytest
import torch
from lightning.pytorch.callbacks import LambdaCallback

from txl_lightning.training.callbacks import throughput
from txl_lightning.training.callbacks.throughput import Throughput


@pytest.mark.parametrize(("ext_len", "peak"), [(0, None), (5, 1e9)])
def test_throughput_counts_new_tokens_without_validation_time(fit, monkeypatch, ext_len, peak):
    now = [0.0]

    def wait(seconds: float, *_) -> None:
        now[0] += seconds

    monkeypatch.setattr(throughput.time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(throughput, "peak_flops", lambda device: peak)
    clock = LambdaCallback(
        on_train_batch_end=partial(wait, 1), on_validation_batch_end=partial(wait, 100)
    )
    options = {"log_every_n_steps": 4, "val_check_interval": 3, "max_steps": 4}
    trainer = fit(clock, Throughput(), data={"ext_len": ext_len}, **options)
    metrics = trainer.callback_metrics
    assert metrics["train/tokens_per_second"] == 4 * 8
    flops = 4 * 8 * trainer.lightning_module.net.config.flops_per_token(8)
    assert metrics["train/model_flops_per_second"].item() == pytest.approx(flops)
    assert metrics.get("train/mfu") == (peak and pytest.approx(flops / peak))


def test_elapsed_seconds_continue_after_a_resume(fit, tmp_path):
    path, options = tmp_path / "a.ckpt", {"log_every_n_steps": 1, "limit_val_batches": 0}
    fit(Throughput(), max_steps=2, **options).save_checkpoint(path)
    checkpoint = torch.load(path, weights_only=True)
    assert 0 < checkpoint["seconds"] < 900
    checkpoint["seconds"] = 1000.0
    torch.save(checkpoint, path)
    second = fit(Throughput(), max_steps=4, ckpt_path=path, **options)
    assert second.callback_metrics["train/seconds"] > 1000
