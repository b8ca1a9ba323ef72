"""What was logged is kept over interruptions, and in bounded memory."""

import pytest

from txl_lightning.training.watch import history
from txl_lightning.training.watch.history import History


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
    points = second.of("train/bits_per_byte")
    assert [tokens for tokens, _ in points] == [2 * 32, 4 * 32, 6 * 32, 8 * 32]
    assert [tuple(point) for point in points[:2]] == first.of("train/bits_per_byte")
    assert [row["step"] for row in second.validations()] == [2, 4, 6, 8]
    assert [row["tokens"] for row in second.validations()] == [64, 128, 192, 256]
    assert second.seconds > first.before == 0


def test_a_long_history_is_thinned_evenly(train, monkeypatch):
    monkeypatch.setattr(history, "MOST", 4)
    kept, _ = train(19)
    points = kept.of("train/nats")
    assert 2 <= len(points) < 4
    assert [tokens for tokens, _ in points] == [(1 + 8 * n) * 32 for n in range(len(points))]
    assert len(kept.validations()) == 9


def test_bits_are_those_of_a_byte_where_they_are_known():
    kept = History()
    assert kept.bits == "nats"
    kept.curves = {"train/bits_per_word": [], "train/bits_per_byte": []}
    assert kept.bits == "bits_per_byte"
    kept.curves = {"train/nats": [], "train/bits_per_token": []}
    assert kept.bits == "bits_per_token"
