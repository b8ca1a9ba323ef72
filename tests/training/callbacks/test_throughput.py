"""The share of a device's peak is logged where the peak is known, and time survives a resume."""

import pytest
from lightning.pytorch import Callback

from txl_lightning.model.flops import flops_per_token
from txl_lightning.training.callbacks import throughput
from txl_lightning.training.callbacks.throughput import Throughput


@pytest.mark.parametrize("peak", [1e9, None])
def test_mfu_is_the_share_of_a_known_peak(make_model, make_data, make_trainer, monkeypatch, peak):
    monkeypatch.setattr(throughput, "peak_flops", lambda device: peak)
    trainer = make_trainer(callbacks=[Throughput()], log_every_n_steps=2, limit_val_batches=0)
    trainer.fit(make_model(), datamodule=make_data())
    found = trainer.callback_metrics
    expected = peak and pytest.approx(found["train/model_flops_per_second"].item() / peak)
    assert found.get("train/mfu") == expected


def test_seconds_of_a_resumed_run_go_on(make_model, make_data, make_trainer, tmp_path):
    options = {"log_every_n_steps": 1, "limit_val_batches": 0}
    first = make_trainer(callbacks=[Throughput()], max_steps=2, **options)
    first.fit(make_model(), datamodule=make_data())
    first.save_checkpoint(tmp_path / "a.ckpt")
    folder = tmp_path / "runs"
    folder.mkdir(exist_ok=True)
    (folder / "metrics.csv").write_text("step,train/seconds\n1,1000\n")
    second = make_trainer(callbacks=[Throughput()], max_steps=4, **options)
    second.fit(make_model(), datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")
    assert second.callback_metrics["train/seconds"] > 1000


@pytest.mark.parametrize("ext_len", [0, 5])
def test_throughput_counts_new_tokens_and_not_the_time_of_validation(
    make_model, make_data, make_trainer, monkeypatch, ext_len
):
    class Clock(Callback):
        now = 0.0

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 1

        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 100

    clock = Clock()
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock.now)
    options = {"log_every_n_steps": 4, "val_check_interval": 3, "max_steps": 4}
    trainer = make_trainer(callbacks=[clock, Throughput()], **options)
    trainer.fit(make_model(), datamodule=make_data(ext_len=ext_len))
    assert trainer.callback_metrics["train/tokens_per_second"] == 4 * 8
    each = flops_per_token(trainer.lightning_module.net, 8)
    found = trainer.callback_metrics["train/model_flops_per_second"].item()
    assert found == pytest.approx(4 * 8 * each)
