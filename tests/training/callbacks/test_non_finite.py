"""Numbers that are not finite change no weight and reach no file."""

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning.errors import NonFiniteError
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.non_finite import gradient_norm


class Spoil(Callback):
    """Make a number what it must not be, in some of the steps; note what the weights were."""

    def __init__(self, what: str, value: float, *steps: int):
        self.what, self.value, self.steps = what, value, steps
        self.weights, self.losses = {}, []

    def put(self, trainer, what, tensor):
        if what == self.what and trainer.global_step in self.steps:
            tensor.data.view(-1)[0] = self.value

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.weights[trainer.global_step] = [p.detach().clone() for p in module.parameters()]

    def on_before_backward(self, trainer, module, loss):
        self.put(trainer, "loss", loss)

    def on_after_backward(self, trainer, module):
        self.put(trainer, "gradient", next(module.parameters()).grad)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(batch.index)
        self.put(trainer, "weight", next(module.parameters()))


@pytest.mark.parametrize(
    ("what", "value", "accumulate"),
    [("loss", "nan", 1), ("loss", "inf", 2), ("gradient", "nan", 2), ("gradient", "-inf", 1)],
)
def test_number_that_is_not_finite_stops_training_before_the_update(
    make_model, make_data, make_trainer, what, value, accumulate
):
    spoil, model = Spoil(what, float(value), 3), make_model()
    options = {"gradient_clip_val": 0.25, "accumulate_grad_batches": accumulate}
    trainer = make_trainer(limit_val_batches=0, callbacks=[spoil], **options)
    said = rf"step 4, segment {4 * accumulate - 1} of the training text: loss .*gradient norm .*; "
    with pytest.raises(NonFiniteError, match=said) as stop:
        trainer.fit(model, datamodule=make_data())
    assert stop.value.exit_code == 5
    assert trainer.global_step == 3
    assert all(map(torch.equal, model.parameters(), spoil.weights[3]))


def test_allowed_updates_are_skipped_with_the_memory_that_led_to_them(
    make_model, make_data, make_trainer
):
    class Memory(Callback):
        def __init__(self):
            self.filled = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            memory = module.memory_bank.committed.get(("train", 0))
            self.filled.append(None if memory is None else memory.filled_B.tolist()[0])

    spoil, memory = Spoil("gradient", float("nan"), 2, 4), Memory()
    model = make_model(optim={"max_skipped_updates": 2, "name": "muon", "weight_decay": 0.1})
    trainer = make_trainer(limit_val_batches=0, callbacks=[spoil, memory], max_steps=7)
    with pytest.warns(UserWarning, match=r"skipped \([12] of 2\)"):
        trainer.fit(model, datamodule=make_data())
    changed = [
        not all(map(torch.equal, spoil.weights[step], spoil.weights[step + 1])) for step in range(6)
    ]
    assert changed == [True, True, False, True, False, True]
    assert memory.filled == [None, 8, 12, None, 8, None, 8]
    assert spoil.losses == list(range(7))


def test_skipped_update_is_not_in_the_logged_mean(make_model, make_data, make_trainer):
    class Poison(Callback):
        """Remember something that is not a number, before the third step."""

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if trainer.global_step == 2:
                module.memory_bank.committed["train", 0].h_NBMD.fill_(float("nan"))

    model = make_model(optim={"max_skipped_updates": 1})
    options = {"limit_val_batches": 0, "log_every_n_steps": 2, "max_steps": 4}
    trainer = make_trainer(callbacks=[Poison()], **options)
    with pytest.warns(
        UserWarning, match=r"step 3, segment 2 .* loss nan, gradient norm nan; skipped"
    ):
        trainer.fit(model, datamodule=make_data())
    assert 5 < trainer.callback_metrics["train/nats"] < 6


def test_skipped_updates_are_counted_over_a_resume(make_model, make_data, make_trainer, tmp_path):
    def run(*steps, **options):
        spoil = Spoil("loss", float("nan"), *steps)
        model = make_model(optim={"max_skipped_updates": 1, "schedule": "constant"})
        trainer = make_trainer(limit_val_batches=0, callbacks=[spoil], **options)
        return trainer, model

    trainer, model = run(2, max_steps=4)
    with pytest.warns(UserWarning, match=r"skipped \(1 of 1\)"):
        trainer.fit(model, datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer, model = run(5, max_steps=8)
    with pytest.raises(NonFiniteError, match=r"step 6, .*allow some with model\.optim\.max_skip"):
        trainer.fit(model, datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")


@pytest.mark.parametrize("occasion", [{"val_check_interval": 4}, {"limit_val_batches": 0}])
def test_weights_that_are_not_finite_are_in_no_checkpoint(
    make_model, make_data, make_trainer, tmp_path, occasion
):
    """Such as an update makes of finite gradients; the file from before stays."""
    # By hand after step 6, and at once saved: at a validation, or at the end.
    spoil = Spoil("weight", float("nan"), 4)
    steps = 4 if "limit_val_batches" in occasion else 6
    options = {"callbacks": [spoil, LastCheckpoint(3)], "enable_checkpointing": True}
    trainer = make_trainer(max_steps=steps, **occasion, **options)
    with pytest.raises(NonFiniteError, match="step 4: a weight is not finite; nothing is saved"):
        trainer.fit(make_model(), datamodule=make_data())
    [last] = (tmp_path / "runs" / "checkpoints").glob("*.ckpt")
    kept = torch.load(last, weights_only=True)
    assert (last.name, kept["global_step"]) == ("last.ckpt", 3)
    assert all(weight.isfinite().all() for weight in kept["state_dict"].values())


def test_logged_gradient_norm_and_memory_bytes_are_right(make_model, make_data, make_trainer):
    class Norms(Callback):
        def __init__(self):
            self.expected, self.logged = [], []

        def on_before_optimizer_step(self, trainer, module, optimizer):
            square = sum(p.grad.double().square().sum() for p in module.parameters())
            self.expected.append(square.sqrt().item())

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            values = {name: float(value) for name, value in trainer.callback_metrics.items()}
            self.logged.append(values)

    norms, model = Norms(), make_model()
    trainer = make_trainer(limit_val_batches=0, log_every_n_steps=1, callbacks=[norms])
    trainer.fit(model, datamodule=make_data())
    logged = [values["train/grad_norm"] for values in norms.logged]
    assert logged == pytest.approx(norms.expected, rel=1e-5)
    n_byte = model.memory_bank.committed["train", 0].h_NBMD.nbytes
    assert {values["train/memory_bytes"] for values in norms.logged} == {n_byte}
    peaks = [values["train/peak_memory_bytes"] for values in norms.logged]
    assert peaks == sorted(peaks)
    assert 5e7 < peaks[0] < 1e11


def test_gradient_norm_is_of_all_gradients_together():
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(3)]
    parameters[0].grad, parameters[1].grad = torch.tensor([3.0, 0.0]), torch.tensor([0.0, 4.0])
    assert gradient_norm(parameters).item() == 5.0


def test_exploding_learning_rate_is_exit_code_5(txl, small):
    options = ["--model.optim.lr=1e30", "--model.optim.warmup_steps=0", "--trainer.max_steps=30"]
    code, output = txl("fit", *small, *options, "--trainer.val_check_interval=30")
    assert code == 5
    assert "is not finite" in output.err or "nothing was updated" in output.err
    assert "lower model.optim.lr" in output.err


def test_out_of_memory_is_exit_code_7_and_names_what_to_lower(txl, small):
    code, output = txl("fit", *small, "--model.net.d_inner=100000000000")
    assert code == 7
    [said] = [line for line in output.err.splitlines() if line.startswith("error: ")]
    asked = "data.batch_size 4, data.tgt_len 8, model.net.mem_len 8, trainer.precision 32-true"
    assert said.startswith(f"error: out of memory with {asked}; lower one of them, or set ")
