"""Tests that need a GPU: python -m pytest -m gpu."""

from copy import deepcopy

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from experiments.gpu.candidates import KERNELS, use_kernel
from txl_lightning.training.callbacks.training_state import NonFiniteGuard
from txl_lightning.training.capture import capture_in_place

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore:::torch")]


class NeverWait(Callback):
    """After the first step, make waiting for the GPU an error."""

    def on_train_batch_end(self, *_):
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, *_):
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def guard_may_wait(monkeypatch):
    """Only the guard may read loss and gradient, before each update."""
    look = NonFiniteGuard.on_before_optimizer_step

    def look_and_forbid(*arguments):
        mode = torch.cuda.get_sync_debug_mode()
        torch.cuda.set_sync_debug_mode("default")
        look(*arguments)
        torch.cuda.set_sync_debug_mode(mode)

    monkeypatch.setattr(NonFiniteGuard, "on_before_optimizer_step", look_and_forbid)
    yield
    torch.cuda.set_sync_debug_mode("default")


@pytest.mark.usefixtures("guard_may_wait")
@pytest.mark.parametrize("kernel", KERNELS)
def test_a_step_synchronizes_the_gpu_only_for_the_non_finite_check(
    make_model, make_data, make_trainer, kernel
):
    options = {"precision": "bf16-mixed", "log_every_n_steps": 100, "gradient_clip_val": 0.25}
    # Not with `fit`, whose record reads every loss.
    trainer = make_trainer(
        accelerator="gpu", callbacks=[NeverWait()], limit_val_batches=0, **options
    )
    model = make_model(d_model=32)
    use_kernel(model.net, kernel)
    trainer.fit(model, datamodule=make_data())
    assert trainer.global_step == trainer.max_steps


def test_triton_has_the_curve_of_matmul(fit, make_model):
    curves = []
    for kernel in ("matmul", "triton"):
        # As in `fit`: the same weights each time.
        seed_everything(3, verbose=False)
        model = make_model({"lr": 1e-2, "schedule": "constant"}, d_model=32)
        use_kernel(model.net, kernel)
        curves.append(fit(model=model, accelerator="gpu", max_steps=30).losses)
    plain, other = curves
    assert other == pytest.approx(plain, rel=1e-3)


CAPTURED = {"settings": {"cuda_graph": True}}


@pytest.mark.parametrize("ways", [CAPTURED, {"settings": {"cuda_graph": True, "compile": True}}])
@pytest.mark.parametrize("change", [{}, {"cutoffs": (3, 6), "n_token": 256}])
def test_captured_training_has_the_losses_of_eager(fit, ways, change):
    options = {"accelerator": "gpu", "precision": "bf16-mixed", "max_steps": 8}
    net = {"d_model": 32, "kernel": "sdpa", "dropout": 0.0} | change
    eager = fit(net, accumulate_grad_batches=2, **options)
    captured = fit(net | ways, accumulate_grad_batches=2, **options)
    assert captured.losses == pytest.approx(eager.losses, rel=2e-2)
    assert captured.model.net.hidden.graphs


def test_a_captured_run_resumes_with_the_dropout_and_memory_of_an_uninterrupted_one(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    net = {"d_model": 32, "kernel": "matmul", "dropout": 0.2, "optim": {"schedule": "constant"}}
    options = {"accelerator": "gpu", "precision": "bf16-mixed", "deterministic": False}
    whole = fit(net | CAPTURED, max_steps=6, save=(path, 3), **options)
    resumed = fit(net | CAPTURED, ckpt_path=path, max_steps=6, **options)
    assert resumed.losses == pytest.approx(whole.losses[3:], rel=1e-3)


def test_a_memory_is_not_overwritten_by_the_next_captured_segment(make_net):
    net = make_net(d_model=32).cuda().float().train()
    capture_in_place(net)
    tokens_BL = torch.randint(11, (2, 5), device="cuda")
    _, first = net.loss(tokens_BL, tokens_BL, net.empty_memory(2))
    before = first.h_NBMD.clone()
    net.loss(tokens_BL, tokens_BL, first)
    assert torch.equal(first.h_NBMD, before)
    copied = deepcopy(net)
    assert copied.hidden.net is copied
    assert not copied.hidden.graphs
