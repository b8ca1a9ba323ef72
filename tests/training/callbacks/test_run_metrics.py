"""The metrics of a run are read back from its metrics.csv as they were logged."""

import pytest
from lightning.pytorch.loggers import CSVLogger

from txl_lightning.training.callbacks import run_metrics
from txl_lightning.training.callbacks.run_metrics import RunMetrics, read_metrics
from txl_lightning.training.callbacks.validation_probe import ValidationProbe


@pytest.fixture
def metrics(make_model, make_data, make_trainer, tmp_path):
    """The metrics of a run with two validations, and its trainer."""
    logger = CSVLogger(tmp_path, name="", version="run")
    options = {"log_every_n_steps": 1, "val_check_interval": 2, "num_sanity_val_steps": 2}
    trainer = make_trainer(callbacks=[ValidationProbe(0)], logger=logger, max_steps=4, **options)
    trainer.fit(make_model(), datamodule=make_data())
    return read_metrics(tmp_path / "run"), trainer


def test_curves_are_the_logged_values_over_tokens(metrics):
    found, trainer = metrics
    latest = trainer.callback_metrics
    assert [tokens for tokens, _ in found.curve("train/nats")] == [32, 64, 96, 128]
    assert found.curve("train/nats")[-1][1] == pytest.approx(latest["train/nats"].item())
    assert found.last("val/nats") == pytest.approx(latest["val/nats"].item())
    assert [row["step"] for row in found.validations] == [2, 4]
    assert [row["tokens_seen"] for row in found.validations] == [64, 128]
    assert found.last("train/nothing") == 0


def test_a_folder_without_metrics_has_none(tmp_path):
    metrics = read_metrics(tmp_path)
    assert (metrics.rows, metrics.validations, metrics.best, metrics.bits) == ([], [], None, "nats")


def test_steps_taken_twice_count_once_with_their_last_values(tmp_path):
    lines = ["step,train/lr,val/nats", "0,1.0,", "1,2.0,", "1,,9.0", "1,3.0,", "1,,8.0", "2,4.0,"]
    (tmp_path / "metrics.csv").write_text("\n".join(lines))
    first, second, third = read_metrics(tmp_path).rows
    assert first == {"step": 1, "train/lr": 1.0}
    assert second == {"step": 2, "train/lr": 3.0, "val/nats": 8.0}
    assert third == {"step": 3, "train/lr": 4.0}


def test_long_curves_are_thinned_evenly(monkeypatch):
    monkeypatch.setattr(run_metrics, "MAX_POINTS", 4)
    rows = [{"step": n, "train/tokens_seen": 32 * n, "train/nats": 0.5 * n} for n in range(1, 10)]
    assert RunMetrics(rows).curve("train/nats") == [(32, 0.5), (128, 2.0), (224, 3.5)]
    assert len(RunMetrics(rows[:4]).curve("train/nats")) == 4


def test_bits_are_per_byte_where_known():
    assert RunMetrics([{"val/bits_per_word": 1, "val/bits_per_byte": 1}]).bits == "bits_per_byte"
    assert RunMetrics([{"train/nats": 1, "train/bits_per_token": 1}]).bits == "bits_per_token"


def test_the_best_validation_has_the_least_finite_nats():
    values = [float("nan"), 3.0, 2.0, 2.5]
    rows = [{"step": n, "val/nats": nats, "val/loss": nats} for n, nats in enumerate(values)]
    assert RunMetrics(rows).best == {"step": 2, "nats": 2.0}


def test_validations_are_of_the_first_text_with_nats_before_other_readings():
    row = {"step": 7, "val/bits": 1.0, "val/1/nats": 5.0, "val/nats": 2.0, "val/tokens_seen": 8.0}
    [validation] = RunMetrics([{"step": 1, "train/lr": 1.0}, row]).validations
    assert list(validation.items()) == [("step", 7), ("tokens_seen", 8), ("nats", 2), ("bits", 1)]
