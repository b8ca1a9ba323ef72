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

from tests.helpers.late_device import LateDevice
from txl_lightning.errors import NonFiniteError
from txl_lightning.training.callbacks import always
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.run_state import find_callbacks

NAN = float("nan")


class Spoil(Callback):
    """Replace a number in some of the steps; record the state before each step."""

    def __init__(self, what: str, value: float, *steps: int):
        self.what = what
        self.value = value
        self.steps = steps
        self.weights = {}
        self.filled = []
        self.segments = []

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
    optim = {"max_skipped_updates": 1}
    options = {"log_every_n_steps": 2, "max_steps": 4}
    message = r"step 3, segment 2 .* loss nan, gradient norm nan; skipped"
    with pytest.warns(UserWarning, match=message):
        trainer = train(Spoil("memory", NAN, 2), optim=optim, **options)
    assert 5 < trainer.callback_metrics["train/nats"] < 6


def test_skipped_updates_are_counted_over_a_resume(train, tmp_path):
    path = tmp_path / "a.ckpt"
    optim = {"max_skipped_updates": 1}
    with pytest.warns(UserWarning, match=r"skipped \(1 of 1\)"):
        train(Spoil("loss", NAN, 2), optim=optim, max_steps=4).save_checkpoint(path)
    with pytest.raises(NonFiniteError, match=r"step 6, .*allow some with model\.optim\.max_skip"):
        train(Spoil("loss", NAN, 5), optim=optim, ckpt_path=path, max_steps=8)


LATE = {"kernel": "sdpa"}


class NeverWait(Callback):
    """Make reading a number an error in the steps that log nothing; count these steps."""

    def __init__(self):
        self.n_step = 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.mode = LateDevice(forbids=not module.is_logged_step(trainer.global_step + 1))
        self.n_step += self.mode.forbids
        self.mode.__enter__()

    def on_train_batch_end(self, *_):
        self.mode.__exit__(None, None, None)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("cutoffs", [(), (100, 110)])
def test_no_step_waits_for_a_number_of_its_device_but_to_log_a_line(
    make_model, make_data, make_trainer, accumulate, cutoffs
):
    wait = NeverWait()
    options = {"gradient_clip_val": 0.25, "accumulate_grad_batches": accumulate}
    options |= {"log_every_n_steps": 3, "max_steps": 7, "limit_val_batches": 0}
    # Not with `fit`, whose record reads every loss.
    make_trainer(callbacks=[wait], **options).fit(make_model(**LATE), datamodule=make_data())
    assert wait.n_step == 5 * accumulate


@pytest.fixture
def late():
    """Let a CPU seem to be a device whose numbers are awaited."""
    with LateDevice():
        yield


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize("what", ["gradient", "loss", "memory"])
@pytest.mark.parametrize(("clip", "late_every"), [(0.0, 7), (0.25, 7), (1e9, 4)])
def test_updates_that_the_device_skips_are_those_that_the_host_would_skip(
    fit, train, what, clip, late_every
):
    """Weights, optimizer, memory and mean; the host looks once in some steps, or in each."""

    def run(every):
        optim = {"max_skipped_updates": 2, "weight_decay": 0.1}
        options = {"max_steps": 7, "log_every_n_steps": every, "gradient_clip_val": clip}
        with pytest.warns(UserWarning, match=r"step [35], segment [24] .*skipped \([12] of 2\)"):
            trainer = train(Spoil(what, NAN, 2, 4), sizes=LATE, optim=optim, **options)
        [optimizer] = trainer.optimizers
        moments = [each for state in optimizer.state.values() for each in state.values()]
        [guard] = find_callbacks(trainer, "NonFiniteGuard")
        return fit.record, [*fit.record.memory.tensors().values(), *moments], guard.n_skipped

    (late, tensors, n_late) = run(late_every)
    (whole, others, n_whole) = run(1)
    assert n_late == n_whole == 2
    assert late.losses == pytest.approx(whole.losses, rel=0, abs=0, nan_ok=True)
    for ours, theirs in zip(late.weights, whole.weights, strict=True):
        assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    assert all(map(torch.equal, tensors, others))
    # The mean after the last skipped step before a line was logged.
    counted = late.losses[5:7] if late_every == 7 else late.losses[3:4]
    assert late.logged[-1]["train/nats"] == pytest.approx(sum(counted) / len(counted))


@pytest.mark.usefixtures("late")
@pytest.mark.parametrize(
    ("options", "last"),
    [({"log_every_n_steps": 5}, 4), ({"val_check_interval": 5}, 5), ({}, 6)],
)
def test_after_one_bad_update_too_many_the_device_updates_nothing_until_the_host_looks(
    fit, tmp_path, options, last
):
    """The host looks where a line is logged, before a validation, and at the end."""
    spoil = Spoil("gradient", NAN, 2)
    options = {"log_every_n_steps": 100, "enable_checkpointing": True} | options
    with pytest.raises(NonFiniteError, match=r"step 3, segment 2 .*; nothing was updated"):
        fit(spoil, LastCheckpoint(), sizes=LATE, **options)
    assert fit.record.trainer.global_step == last
    assert all(map(torch.equal, fit.record.model.parameters(), spoil.weights[2]))
    assert not list(tmp_path.glob("runs/**/*.ckpt"))


@pytest.mark.usefixtures("late")
def test_a_checkpoint_counts_the_updates_that_the_device_has_skipped(train, tmp_path):
    path = tmp_path / "a.ckpt"
    options = {"log_every_n_steps": 100, "sizes": LATE, "optim": {"max_skipped_updates": 1}}
    with pytest.warns(UserWarning, match=r"skipped \(1 of 1\)"):
        train(Spoil("loss", NAN, 1), save=(path, 3), **options)
    assert torch.load(path, weights_only=True)["txl_lightning"]["n_skipped"] == 1
    with pytest.raises(NonFiniteError, match="step 5, "):
        train(Spoil("loss", NAN, 4), ckpt_path=path, **options)


@pytest.mark.usefixtures("late")
def test_the_host_looks_after_many_steps_where_nothing_is_logged(fit, train, monkeypatch):
    monkeypatch.setattr(always, "MOST_UNSEEN", 3)
    with pytest.raises(NonFiniteError, match="step 2, "):
        train(Spoil("loss", NAN, 1), sizes=LATE, log_every_n_steps=0)
    assert fit.record.trainer.global_step == 2


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
    expected = []
    before = getrusage(RUSAGE_SELF).ru_maxrss
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
