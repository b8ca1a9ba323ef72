"""What only a GPU can show: where there is one, python -m pytest -m gpu."""

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch._dynamo.utils import counters

from txl_lightning import LanguageModel
from txl_lightning.model.kernels import CUDA_KERNELS, KERNELS
from txl_lightning.training.callbacks.non_finite import NonFiniteGuard

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"),
    # The first scales of float16 are too great on purpose: torch then leaves out the step.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step:UserWarning"),
]

COMPUTE = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}


class Record(Callback):
    """Every loss, the scale of its gradients, and a checkpoint amid training."""

    def __init__(self, path=None, stop=None):
        self.path, self.stop = path, stop
        self.losses, self.scales = [], []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        self.scales.append(scaler.state_dict() if scaler else None)
        if trainer.global_step == self.stop:
            trainer.save_checkpoint(self.path)


@pytest.fixture
def fit(make_model, make_data, make_trainer):
    """Train on the GPU from the same weights; the record is made after the memory is kept."""

    def fit(record, *, compile=False, ckpt_path=None, net=(), **options) -> LanguageModel:
        seed_everything(3, verbose=False)
        made = make_model(optim={"schedule": "constant", "lr": 1e-2}, **dict(net))
        model = LanguageModel(made.net.config, made.optim, compile=compile)
        callbacks = [*model.configure_callbacks(), record]
        model.configure_callbacks = lambda: callbacks
        changes = {"accelerator": "gpu", "devices": 1, "limit_val_batches": 0}
        trainer = make_trainer(**changes | options)
        trainer.fit(model, datamodule=make_data(), ckpt_path=ckpt_path)
        return model

    return fit


@pytest.mark.parametrize("precision", COMPUTE)
def test_every_precision_learns_and_remembers_in_its_own(fit, precision):
    record = Record()
    model = fit(record, precision=precision, max_steps=30, net={"d_model": 32})
    memory = model.memory_bank.committed["train", 0]
    assert memory.h_NBMD.dtype == COMPUTE[precision]
    assert memory.h_NBMD.is_cuda
    assert memory.h_NBMD.isfinite().all()
    assert record.losses[-1] < 0.7 * record.losses[0]


def test_the_curve_of_bfloat16_is_that_of_float32(fit):
    exact, mixed = Record(), Record()
    fit(exact, precision="32-true", max_steps=30, net={"d_model": 32})
    fit(mixed, precision="bf16-mixed", max_steps=30, net={"d_model": 32})
    assert mixed.losses == pytest.approx(exact.losses, rel=0.01)


@pytest.mark.parametrize("precision", COMPUTE)
def test_interrupted_training_equals_uninterrupted_on_a_gpu(fit, tmp_path, precision):
    """Also the scale of float16's gradients, and what is dropped."""
    # Of the kernels, matmul alone adds in the same order every time.
    net = {"dropout": 0.2, "dropatt": 0.1, "kernel": "matmul"}
    options = {"precision": precision, "max_steps": 10, "gradient_clip_val": 0.25, "net": net}
    path, resumed = tmp_path / "mid.ckpt", Record()
    whole = Record(path, stop=6)
    model = fit(whole, **options)
    other = fit(resumed, ckpt_path=path, **options)
    assert resumed.losses == whole.losses[6:]
    assert resumed.scales == whole.scales[6:]
    assert (whole.scales[0] is not None) == (precision == "16-mixed")
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed"])
def test_compiled_for_a_gpu_it_has_one_graph_and_the_same_curve(fit, precision):
    plain, compiled = Record(), Record()
    fit(plain, precision=precision, max_steps=8)
    torch._dynamo.reset()
    counters.clear()
    fit(compiled, precision=precision, max_steps=8, compile=True)
    assert counters["stats"]["unique_graphs"] == 1
    limit = 1e-3 if precision == "32-true" else 0.01
    assert compiled.losses == pytest.approx(plain.losses, rel=limit)


class NeverWait(Callback):
    """From the end of the first step on, make waiting for the GPU an error."""

    def on_train_batch_end(self, *_):
        torch.cuda.set_sync_debug_mode("error")

    def on_train_end(self, *_):
        torch.cuda.set_sync_debug_mode("default")


@pytest.fixture
def guard_may_wait(monkeypatch):
    """The guard looks at loss and gradient before each update; nothing else may look."""
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
@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("kernel", [*KERNELS, *CUDA_KERNELS])
def test_a_step_waits_for_the_gpu_only_to_refuse_what_is_not_finite(fit, kernel):
    options = {"max_steps": 6, "log_every_n_steps": 100, "gradient_clip_val": 0.25}
    fit(NeverWait(), precision="bf16-mixed", net={"d_model": 32, "kernel": kernel}, **options)


@pytest.mark.filterwarnings("ignore:::torch")
@pytest.mark.parametrize("kernel", CUDA_KERNELS)
def test_a_kernel_for_cuda_has_the_curve_of_matmul(fit, kernel):
    plain, other = Record(), Record()
    fit(plain, max_steps=30, net={"d_model": 32, "kernel": "matmul"})
    fit(other, max_steps=30, net={"d_model": 32, "kernel": kernel})
    assert other.losses == pytest.approx(plain.losses, rel=1e-3)
