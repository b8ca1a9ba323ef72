"""What is seen of a model is what the model does, and training does not notice."""

import numpy as np
import pytest
import torch

from txl_lightning.evaluation.attention import attention_rows
from txl_lightning.training.watch.looks import Looks


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train with one who looks, and give the losses too."""

    def run(looks: Looks | None = None, optim=(), data=(), start=None, **options):
        losses, model = [], make_model(optim, dropout=0.1)
        model.on_train_batch_end = lambda outputs, *_: losses.append(outputs["loss"].item())
        options = {"val_check_interval": 3} | options
        trainer = make_trainer(callbacks=[looks] if looks else [], **options)
        trainer.fit(model, datamodule=make_data(**dict(data)), ckpt_path=start)
        return model, losses, trainer

    return run


def test_training_does_not_notice(train):
    torch.manual_seed(1)
    _, alone, _ = train()
    torch.manual_seed(1)
    _, seen, _ = train(Looks())
    assert seen == alone


def test_a_sample_goes_on_from_the_beginning_of_the_validation_text(train):
    looks = Looks(sample_len=50)
    _, _, trainer = train(looks, limit_val_batches=8)
    text = trainer.datamodule.store.ids("val")[:32].astype(np.uint8).tobytes().decode()
    assert [step for step, _ in looks.samples] == [3, 6]
    for _, sample in looks.samples:
        assert sample.startswith(text)
        assert len(sample) > looks.prompt == len(text) == 32


def test_without_a_length_there_is_no_sample(train):
    looks = Looks(sample_len=0)
    train(looks)
    assert looks.samples == []
    assert looks.nats


def test_nats_by_position_are_the_means_of_what_was_validated(train):
    looks, found = Looks(), []
    model, _, _ = train(looks, val_check_interval=6, limit_val_batches=3)
    step = model.validation_step
    model.validation_step = lambda *args: (found.append(step(*args)), found[-1])[1]
    trainer = model.trainer
    model.memories = {}
    trainer.validate(model, datamodule=trainer.datamodule, verbose=False)
    nats_L = torch.cat([nats_BL.double() for nats_BL in found]).nanmean(dim=0)
    assert looks.nats == pytest.approx(nats_L.tolist(), rel=1e-6)
    assert len(looks.nats) == 8


def test_attention_is_that_of_the_text_that_was_validated(train):
    looks = Looks()
    model, _, trainer = train(looks, val_check_interval=6, limit_val_batches=5)
    text = trainer.val_dataloaders.stream
    row = np.concatenate([text.segment(n).tokens_BL[0].numpy() for n in range(5)])
    row = np.append(row, 0)
    assert looks.attention == attention_rows(model.net, row, batch_size=1, tgt_len=8)
    assert {row["layer"] for row in looks.attention} == {1, 2}


def test_a_text_too_short_for_a_full_memory_says_nothing_of_attention(train):
    looks = Looks()
    train(looks, limit_val_batches=2)
    assert looks.attention == []
    assert looks.nats


def test_what_was_seen_is_kept_over_a_resume(train, tmp_path):
    first, second = Looks(20), Looks(20)
    _, _, trainer = train(first, max_steps=3)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    train(second, start=tmp_path / "a.ckpt")
    assert second.samples[: len(first.samples)] == first.samples
    assert [step for step, _ in second.samples] == [3, 6]
