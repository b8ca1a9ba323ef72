"""Losses are exact in every precision, and memory is kept in the one of the products."""

import math

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from txl_lightning import stream_nats

COMPUTE = {
    "32-true": torch.float32,
    "64-true": torch.float64,
    "bf16-mixed": torch.bfloat16,
    "bf16-true": torch.bfloat16,
}


class Record(Callback):
    """Losses of training, results of validation, and precisions of what each segment reads."""

    def __init__(self):
        self.losses, self.nats, self.dtypes = [], [], []

    def on_train_start(self, trainer, module):
        bank, get = module.memory_bank, module.memory_bank.get

        def note(stage, *args):
            memory = get(stage, *args)
            tensor = memory.h_NBMD if stage == "train" else memory.buffer.v_NHBCK
            self.dtypes.append((stage, tensor.dtype))
            return memory

        bank.get = note

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].detach())

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.nats.append(outputs)


@pytest.fixture
def fit(make_model, make_data, make_trainer):
    def run(precision, net=(), ckpt_path=None, **options):
        seed_everything(3, verbose=False)
        record, model = Record(), make_model(**dict(net))
        changes = {"gradient_clip_val": 0.25, "limit_val_batches": 0, "callbacks": [record]}
        trainer = make_trainer(precision=precision, **changes | options)
        trainer.fit(model, datamodule=make_data(), ckpt_path=ckpt_path)
        return record, model, trainer

    return run


@pytest.mark.parametrize("precision", COMPUTE)
def test_every_precision_measures_right_with_losses_of_at_least_float32(fit, make_data, precision):
    record, model, trainer = fit(precision, limit_val_batches=1.0, max_steps=3)
    assert all(map(math.isfinite, record.losses))
    data, exact = make_data(), torch.float64 if precision == "64-true" else torch.float32
    [values] = trainer.validate(model, datamodule=data, verbose=False)
    whole = stream_nats(model.net.float(), data.store.ids("val"), batch_size=4, tgt_len=8)
    assert values["val/nats"] == pytest.approx(whole.mean().item(), rel=0.02)
    assert {loss.dtype for loss in record.losses + record.nats} == {exact}


@pytest.mark.parametrize("precision", COMPUTE)
def test_memory_has_the_precision_of_the_products_from_the_first_segment_on(fit, precision):
    record, model, _ = fit(precision, max_steps=2, val_check_interval=2, limit_val_batches=2)
    dtype = COMPUTE[precision]
    assert record.dtypes == [("train", dtype)] * 2 + [("val", dtype)] * 2
    assert model.memory_bank.committed["train", 0].h_NBMD.dtype == dtype


def test_memory_of_a_checkpoint_gets_the_precision_of_training(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    fit("32-true", max_steps=3)[2].save_checkpoint(path)
    with pytest.warns(match="precision: was 32-true, is bf16-mixed"):
        record, model, _ = fit("bf16-mixed", ckpt_path=path, max_steps=5)
    assert record.dtypes == [("train", torch.bfloat16)] * 2
    assert model.memory_bank.committed["train", 0].filled_B.tolist() == [12] * 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_tells_all_distances_apart(make_model, make_data, make_trainer, precision):
    """In bfloat16, 257 is 256."""
    terms, model = [], make_model(mem_len=600)
    model.net.positions.register_forward_hook(lambda *args: terms.append(args[-1][0].r_THK))
    trainer = make_trainer(precision=precision, max_steps=1, limit_val_batches=0)
    trainer.fit(model, datamodule=make_data())
    assert terms[0].dtype == torch.bfloat16
    assert len(terms[0].flatten(1).unique(dim=0)) == len(terms[0]) == 600 + 8 + 1


def test_curve_of_mixed_precision_is_that_of_float32(fit):
    net = {"d_model": 32, "optim": {"lr": 1e-2}}
    exact, mixed = (
        [loss.item() for loss in fit(precision, net, max_steps=30)[0].losses]
        for precision in ("32-true", "bf16-mixed")
    )
    assert exact[-1] < 0.7 * exact[0]
    assert mixed == pytest.approx(exact, rel=0.01)
    assert mixed != exact
