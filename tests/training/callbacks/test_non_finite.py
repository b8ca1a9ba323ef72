"""Non-finite numbers change no weight and are in no file."""

import sys
from functools import partial
from itertools import pairwise
from resource import RUSAGE_SELF, getrusage

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import LambdaCallback
from torch.utils.data import DataLoader

from txl_lightning.errors import NonFiniteError
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint

NAN = float("nan")


class Spoil(Callback):
    """Replace a number in some of the steps; record the state before each step."""

    def __init__(self, what: str, value: float, *steps: int):
        self.what, self.value, self.steps = what, value, steps
        self.weights, self.filled, self.segments = {}, [], []

    def put(self, trainer, what, tensor):
        if what == self.what and trainer.global_step in self.steps:
            tensor.data.view(-1)[0] = self.value

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.weights[trainer.global_step] = [p.detach().clone() for p in module.parameters()]
        memory = module.memory_bank.committed.get(("train", 0))
        self.filled.append(memory and memory.filled_B.tolist()[0])
        self.segments.append(getattr(batch, "index", None))
        if memory:
            self.put(trainer, "memory", memory.h_NBMD)

    def on_before_backward(self, trainer, module, loss):
        self.put(trainer, "loss", loss)

    def on_after_backward(self, trainer, module):
        self.put(trainer, "gradient", next(module.parameters()).grad)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.put(trainer, "weight", next(module.parameters()))


@pytest.fixture
def train(fit):
    return partial(fit, limit_val_batches=0)


@pytest.mark.parametrize(
    ("what", "value", "accumulate"),
    [("loss", "nan", 1), ("loss", "inf", 2), ("gradient", "nan", 2), ("gradient", "-inf", 1)],
)
def test_non_finite_number_stops_training_before_the_update(fit, train, what, value, accumulate):
    spoil = Spoil(what, float(value), 3)
    where = f"step 4, segment {4 * accumulate - 1} of the training text"
    message = rf"{where}: loss .*, gradient norm .*; nothing was updated; lower model\.optim\.lr"
    with pytest.raises(NonFiniteError, match=message) as stop:
        train(spoil, gradient_clip_val=0.25, accumulate_grad_batches=accumulate)
    assert (stop.value.exit_code, fit.record.trainer.global_step) == (5, 3)
    assert all(map(torch.equal, fit.record.trainer.lightning_module.parameters(), spoil.weights[3]))


def test_skipped_updates_also_discard_their_memory(train):
    spoil = Spoil("gradient", NAN, 2, 4)
    optim = {"max_skipped_updates": 2, "name": "muon", "weight_decay": 0.1}
    with pytest.warns(UserWarning, match=r"skipped \([12] of 2\)"):
        train(spoil, optim=optim, max_steps=7)
    changed = [not all(map(torch.equal, *pair)) for pair in pairwise(spoil.weights.values())]
    assert changed == [True, True, False, True, False, True]
    assert spoil.filled == [None, 8, 12, None, 8, None, 8]
    assert spoil.segments == list(range(7))


def test_skipped_update_is_not_in_the_logged_mean(train):
    optim, options = {"max_skipped_updates": 1}, {"log_every_n_steps": 2, "max_steps": 4}
    message = r"step 3, segment 2 .* loss nan, gradient norm nan; skipped"
    with pytest.warns(UserWarning, match=message):
        trainer = train(Spoil("memory", NAN, 2), optim=optim, **options)
    assert 5 < trainer.callback_metrics["train/nats"] < 6


def test_skipped_updates_are_counted_over_a_resume(train, tmp_path):
    path, optim = tmp_path / "a.ckpt", {"max_skipped_updates": 1}
    with pytest.warns(UserWarning, match=r"skipped \(1 of 1\)"):
        train(Spoil("loss", NAN, 2), optim=optim, max_steps=4).save_checkpoint(path)
    with pytest.raises(NonFiniteError, match=r"step 6, .*allow some with model\.optim\.max_skip"):
        train(Spoil("loss", NAN, 5), optim=optim, ckpt_path=path, max_steps=8)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_non_finite_number_in_a_plain_loader_s_batch_names_the_batch(make_model, make_trainer):
    pairs = [[torch.zeros(4, 8).long()] * 2] * 3
    message = r"step 3, batch 2: loss nan, gradient norm .*; nothing was updated"
    trainer = make_trainer(callbacks=[Spoil("loss", NAN, 2)], limit_val_batches=0)
    with pytest.raises(NonFiniteError, match=message):
        trainer.fit(make_model(), *[DataLoader(pairs, batch_size=None)] * 2)


@pytest.mark.parametrize("occasion", [{"val_check_interval": 4}, {"limit_val_batches": 0}])
def test_non_finite_weights_are_in_no_checkpoint(fit, tmp_path, occasion):
    """An update can make them from finite gradients; the previous file stays."""
    # Set by hand after step 4, just before a checkpoint: at a validation, or at the end.
    callbacks = Spoil("weight", NAN, 4), LastCheckpoint(3)
    options = {"max_steps": 4 if "limit_val_batches" in occasion else 6} | occasion
    with pytest.raises(NonFiniteError, match="step 4: a weight is not finite; nothing is saved"):
        fit(*callbacks, enable_checkpointing=True, **options)
    [last] = (tmp_path / "runs" / "checkpoints").glob("*.ckpt")
    kept = torch.load(last, weights_only=True)
    assert (last.name, kept["global_step"]) == ("last.ckpt", 3)
    assert all(weight.isfinite().all() for weight in kept["state_dict"].values())


def test_logged_gradient_norm_and_memory_bytes_are_right(fit, train):
    expected, before = [], getrusage(RUSAGE_SELF).ru_maxrss
    look = LambdaCallback(
        on_before_optimizer_step=lambda trainer, module, _: expected.append(
            sum(p.grad.double().square().sum() for p in module.parameters()).sqrt().item()
        )
    )
    train(look, log_every_n_steps=1)
    norms, n_byte, peaks = (
        [values[f"train/{name}"] for values in fit.record.logged]
        for name in ("grad_norm", "memory_bytes", "peak_memory_bytes")
    )
    assert norms == pytest.approx(expected, rel=1e-5)
    assert set(n_byte) == {fit.record.memory.h_NBMD.nbytes}
    assert peaks == sorted(peaks)
    kilobyte = 1 if sys.platform == "darwin" else 1024
    after = getrusage(RUSAGE_SELF).ru_maxrss
    assert before * kilobyte <= peaks[0] <= peaks[-1] <= after * kilobyte


def test_out_of_memory_is_exit_code_7_and_names_what_to_lower(txl, small):
    code, output = txl("fit", *small, "--model.net.d_inner=100000000000")
    assert code == 7
    settings = "data.batch_size 4, data.tgt_len 8, model.net.mem_len 8"
    assert f"error: out of memory with {settings}; lower one of them, or set " in output.err
