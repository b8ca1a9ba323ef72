"""What was logged is kept over interruptions, and in bounded memory."""

import pytest

from txl_lightning import LanguageModel
from txl_lightning.training.callbacks import history
from txl_lightning.training.callbacks.history import History
from txl_lightning.training.callbacks.summary import columns


@pytest.fixture
def train(make_model, make_data, make_trainer):
    def run(max_steps: int, start=None, **options) -> tuple[History, object]:
        kept = History()
        options = {"log_every_n_steps": 1, "val_check_interval": 2} | options
        trainer = make_trainer(callbacks=[kept], max_steps=max_steps, **options)
        trainer.fit(make_model(), datamodule=make_data(), ckpt_path=start)
        return kept, trainer

    return run


def test_the_history_goes_on_after_a_resume(train, tmp_path):
    first, trainer = train(4, log_every_n_steps=2)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    second, _ = train(8, tmp_path / "a.ckpt", log_every_n_steps=2)
    points = second.training("bits_per_byte")
    assert [tokens for tokens, _ in points] == [2 * 32, 4 * 32, 6 * 32, 8 * 32]
    assert [tuple(point) for point in points[:2]] == first.training("bits_per_byte")
    assert [row["step"] for row in second.validations] == [2, 4, 6, 8]
    assert [row["tokens"] for row in second.validations] == [64, 128, 192, 256]
    taken = second.seconds
    assert taken > first.seconds > 0
    # The clock has stopped.
    assert second.seconds == taken


def test_a_long_history_is_thinned_evenly(train, monkeypatch):
    monkeypatch.setattr(history, "MOST", 4)
    kept, _ = train(19)
    points = kept.training("nats")
    assert 2 <= len(points) < 4
    assert [tokens for tokens, _ in points] == [(1 + 8 * n) * 32 for n in range(len(points))]
    assert len(kept.validations) == 9


def test_bits_are_those_of_a_byte_where_they_are_known():
    kept = History()
    assert kept.bits == "nats"
    kept.curves = {"bits_per_word": [], "bits_per_byte": []}
    assert kept.bits == "bits_per_byte"
    kept.curves = {"nats": [], "bits_per_token": []}
    assert kept.bits == "bits_per_token"


def test_thinning_goes_on_where_it_was(train, tmp_path, monkeypatch):
    monkeypatch.setattr(history, "MOST", 4)
    _, trainer = train(9)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    resumed, _ = train(19, tmp_path / "a.ckpt")
    alone, _ = train(19)
    points = [tuple(point) for point in resumed.training("nats")]
    assert [tokens for tokens, _ in points] == [tokens for tokens, _ in alone.training("nats")]


def test_a_reading_that_comes_later_is_of_its_own_validation(train, monkeypatch):
    report = LanguageModel.log_results

    def with_more(self, stage):
        if self.global_step > 2:
            self.log("val/late", float(self.global_step))
        report(self, stage)

    monkeypatch.setattr(LanguageModel, "log_results", with_more)
    kept, _ = train(6)
    assert ["late" in row for row in kept.validations] == [False, True, True]
    assert kept.validation("late") == [(128, 4.0), (192, 6.0)]
    head, rows = columns(kept.validations)
    assert (rows[0][head.index("late")], rows[1][head.index("late")]) == ("", "4.000")


def test_the_best_validation_is_of_numbers():
    kept = History()
    assert kept.best is None
    kept.validations = [{"nats": float("nan")}, {"nats": 3.0}, {"nats": 2.0}, {"nats": 2.5}]
    assert kept.best is kept.validations[2]


def test_a_check_before_training_is_no_validation(train):
    kept, _ = train(4, num_sanity_val_steps=2)
    assert [row["step"] for row in kept.validations] == [2, 4]


def test_the_numbers_are_those_that_were_logged(train):
    kept, trainer = train(4, val_check_interval=4)
    now = trainer.callback_metrics
    assert kept.training("nats")[-1] == (128, now["train/nats"].item())
    assert kept.validation("nats") == [(128, now["val/nats"].item())]
    assert kept.validation("bits_per_byte") == [(128, now["val/bits_per_byte"].item())]
