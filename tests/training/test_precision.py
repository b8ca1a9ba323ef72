"""Positions and losses are exact in every precision; memory is kept in the one computed in."""

import math

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from txl_lightning import LanguageModel, stream_nats

COMPUTE = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
}
EVERY = pytest.mark.parametrize("precision", COMPUTE)


class Dtypes(Callback):
    """The precision of what each segment starts from."""

    def __init__(self):
        self.found = []

    def on_train_start(self, trainer, module):
        bank, get = module.memory_bank, module.memory_bank.get

        def note(stage, *args):
            memory = get(stage, *args)
            tensor = memory.h_NBMD if stage == "train" else memory.buffer.v_NHBCK
            self.found.append((stage, tensor.dtype))
            return memory

        bank.get = note


class Losses(Callback):
    """What training and validation give for each segment."""

    def __init__(self):
        self.training, self.validation = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.training.append(outputs["loss"].detach())

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.validation.append(outputs)


def model_of(make_model, **changes) -> LanguageModel:
    seed_everything(3, verbose=False)
    return make_model(**changes)


@EVERY
def test_every_precision_trains_and_counts_right(make_model, make_data, make_trainer, precision):
    data, losses = make_data(), Losses()
    options = {"limit_val_batches": 1.0, "gradient_clip_val": 0.25, "callbacks": [losses]}
    trainer = make_trainer(precision=precision, **options)
    model = model_of(make_model)
    trainer.fit(model, datamodule=data)
    assert len(losses.training) == 6
    assert all(map(math.isfinite, losses.training))
    found = trainer.validate(model, datamodule=data, verbose=False)[0]["val/nats"]
    whole = stream_nats(model.net.float(), data.store.ids("val"), batch_size=4, tgt_len=8)
    assert found == pytest.approx(whole.mean().item(), rel=0.02)


@EVERY
def test_memory_has_the_precision_of_the_products_from_the_first_segment_on(
    make_model, make_data, make_trainer, precision
):
    model, dtypes = model_of(make_model), Dtypes()
    options = {"max_steps": 3, "val_check_interval": 3, "callbacks": [dtypes]}
    make_trainer(precision=precision, **options).fit(model, datamodule=make_data())
    dtype = COMPUTE[precision]
    assert dtypes.found == [("train", dtype)] * 3 + [("val", dtype)] * 3
    assert model.memory_bank.committed["train", 0].h_NBMD.dtype == dtype


def test_a_memory_of_another_precision_is_taken_over(make_model, make_data, make_trainer, tmp_path):
    trainer = make_trainer(limit_val_batches=0, max_steps=3)
    trainer.fit(model_of(make_model), datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    model, dtypes = model_of(make_model), Dtypes()
    options = {"limit_val_batches": 0, "max_steps": 5, "callbacks": [dtypes]}
    other = make_trainer(precision="bf16-mixed", **options)
    with pytest.warns(match="precision: was 32-true, is bf16-mixed"):
        other.fit(model, datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")
    assert dtypes.found == [("train", torch.bfloat16)] * 2
    assert model.memory_bank.committed["train", 0].filled_B.tolist() == [12] * 4


@EVERY
def test_losses_are_at_least_float32(make_model, make_data, make_trainer, precision):
    losses = Losses()
    trainer = make_trainer(precision=precision, max_steps=2, val_check_interval=2)
    trainer.callbacks.append(losses)
    trainer.fit(model_of(make_model), datamodule=make_data())
    expected = torch.float64 if precision == "64-true" else torch.float32
    assert {loss.dtype for loss in losses.training + losses.validation} == {expected}
    assert len(losses.training + losses.validation) == 5


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_tells_all_distances_apart(make_model, make_data, make_trainer, precision):
    """In bfloat16, 257 is 256."""
    seen = []
    model = model_of(make_model, mem_len=600)
    model.net.positions.register_forward_hook(lambda *args: seen.append(args[-1][0].r_THK))
    trainer = make_trainer(precision=precision, max_steps=1, limit_val_batches=0)
    trainer.fit(model, datamodule=make_data())
    assert seen[0].dtype == torch.bfloat16
    assert len(seen[0].flatten(1).unique(dim=0)) == len(seen[0]) == 600 + 8 + 1


def test_the_curve_of_mixed_precision_is_that_of_float32(make_model, make_data, make_trainer):
    curves = []
    for precision in ("32-true", "bf16-mixed"):
        losses = Losses()
        options = {"max_steps": 30, "limit_val_batches": 0, "callbacks": [losses]}
        trainer = make_trainer(precision=precision, gradient_clip_val=0.25, **options)
        model = model_of(make_model, d_model=32, optim={"lr": 1e-2})
        trainer.fit(model, datamodule=make_data())
        curves.append([loss.item() for loss in losses.training])
    assert curves[0][-1] < 0.7 * curves[0][0]
    assert curves[1] == pytest.approx(curves[0], rel=0.01)
    assert curves[1] != curves[0]
