"""Losses are exact in every precision, and memory has the precision of the products."""

import math

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.plugins import MixedPrecision

from txl_lightning import stream_nats

COMPUTE = {"32-true": torch.float32, "64-true": torch.float64}
COMPUTE |= dict.fromkeys(("bf16-mixed", "bf16-true"), torch.bfloat16)


class Precisions(Callback):
    """Records the precisions of losses, of nats, and of the memory of each segment."""

    def __init__(self):
        self.losses = set()
        self.memories = []

    def on_train_start(self, trainer, module):
        bank = module.memory_bank
        get = module.memory_bank.get

        def note(stage, *args):
            memory = get(stage, *args)
            # A memory of keys and values has their precision once it has any.
            if stage == "train" or memory.n_kept:
                [dtype] = {x.dtype for x in memory.tensors().values() if x.is_floating_point()}
                self.memories.append((stage, dtype))
            return memory

        bank.get = note

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.add(outputs["loss"].dtype)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.add(outputs.dtype)


@pytest.mark.parametrize("precision", COMPUTE)
def test_losses_are_of_at_least_float32_and_memory_of_the_precision_of_the_products(
    fit, make_data, make_trainer, precision
):
    precisions = Precisions()
    dtype = COMPUTE[precision]
    options = {"max_steps": 2, "val_check_interval": 2, "limit_val_batches": 2}
    record = fit(precision=precision, callbacks=[precisions], **options)
    assert precisions.memories == [("train", dtype)] * 2 + [("val", dtype)]
    assert record.memory.h_NBMD.dtype == dtype
    assert all(map(math.isfinite, record.losses))
    assert precisions.losses == {torch.float64 if precision == "64-true" else torch.float32}
    trainer = make_trainer(precision=precision, limit_val_batches=1.0)
    data = make_data()
    [values] = trainer.validate(record.model, datamodule=data, verbose=False)
    ids = data.store.ids("val")
    whole = stream_nats(record.model.net.float(), ids, batch_size=4, tgt_len=8)
    assert values["val/nats"] == pytest.approx(whole.mean().item(), rel=0.02)


def test_memory_of_a_checkpoint_gets_the_precision_of_training(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    precisions = Precisions()
    fit(max_steps=3, save=(path, 3))
    with pytest.warns(match="precision: was 32-true, is bf16-mixed"):
        record = fit(precision="bf16-mixed", ckpt_path=path, max_steps=5, callbacks=[precisions])
    assert precisions.memories == [("train", torch.bfloat16)] * 2
    assert record.memory.filled_B.tolist() == [12] * 4


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true"])
def test_half_precision_distinguishes_all_distances(make_model, make_data, make_trainer, precision):
    """In bfloat16, 257 is 256."""
    terms = []
    model = make_model(mem_len=600)
    model.net.positions.register_forward_hook(lambda *args: terms.append(args[-1][0].r_THK))
    trainer = make_trainer(precision=precision, max_steps=1, limit_val_batches=0)
    trainer.fit(model, datamodule=make_data())
    assert terms[0].dtype == torch.bfloat16
    assert len(terms[0].flatten(1).unique(dim=0)) == len(terms[0]) == 600 + 8 + 1


WIDE = {"d_model": 32, "optim": {"lr": 1e-2, "schedule": "constant"}}


@pytest.mark.parametrize("accelerator", ["cpu", pytest.param("gpu", marks=pytest.mark.gpu)])
def test_curve_of_mixed_precision_is_that_of_float32(fit, accelerator):
    options = {"accelerator": accelerator, "max_steps": 30}
    exact, mixed = (
        fit(WIDE, precision=precision, **options).losses for precision in ("32-true", "bf16-mixed")
    )
    assert exact[-1] < 0.7 * exact[0]
    assert mixed == pytest.approx(exact, rel=0.01)
    assert mixed != exact


@pytest.mark.gpu
# The first loss scales of float16 are too large on purpose: torch then skips the step.
@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
def test_every_precision_of_a_gpu_trains_with_memory_in_that_precision(fit, precision):
    record = fit(WIDE, precision=precision, accelerator="gpu", max_steps=30)
    h_NBMD = record.memory.h_NBMD
    assert h_NBMD.dtype == COMPUTE.get(precision, torch.float16)
    assert h_NBMD.is_cuda
    assert h_NBMD.isfinite().all()
    assert record.losses[-1] < 0.7 * record.losses[0]


@pytest.fixture
def fit_scaled(fit):
    """Train in half precision on a CPU, from a loss scale that may be too large."""

    def run(scale: float, **options):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=3)
        net = {"dropout": 0.2, "optim": {"schedule": "constant"}}
        plugins = [MixedPrecision("16-mixed", "cpu", scaler)]
        return fit(net, plugins=plugins, gradient_clip_val=1.0, **options)

    return run


def test_scale_and_its_count_continue_after_a_resume(fit_scaled, tmp_path):
    whole = fit_scaled(2.0**10, max_steps=10, save=(tmp_path / "a.ckpt", 5))
    rest = fit_scaled(1.0, max_steps=10, ckpt_path=tmp_path / "a.ckpt")
    assert rest.continues(whole)
    assert len({state["scale"] for state in whole.scales}) == 4
    assert {state["_growth_tracker"] for state in whole.scales} == {0, 1, 2}


def test_gradient_overflow_lowers_the_scale_and_training_continues(fit_scaled):
    # The schedule continues although no weight was updated.
    with pytest.warns(UserWarning, match=r"`lr_scheduler\.step\(\)` before"):
        record = fit_scaled(2.0**31, max_steps=30)
    assert record.trainer.global_step == 30
    scales = [state["scale"] for state in record.scales]
    assert scales[0] == 2.0**30
    assert min(scales) < 2.0**28
    assert record.losses[-1] < record.losses[0]
