"""An average of the weights is measured, saved and used; training is as it would be without."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.callbacks import (
    EMAWeightAveraging,
    StochasticWeightAveraging,
    WeightAveraging,
)
from torch._dynamo.testing import CompileCounter

from txl_lightning import LanguageModel
from txl_lightning.checkpoints import load_run
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.weight_averaging import WeightAverage


class Record(Callback):
    """The weights after every step, the losses, the memory at the end, what validations found."""

    def __init__(self):
        self.weights, self.losses, self.found, self.memory = [], [], [], None

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step > self.step:
            self.weights.append(weights_of(module.net))
        self.losses.append(outputs["loss"].item())
        self.memory = module.memory_bank.committed.get(("train", 0))

    def on_validation_end(self, trainer, module):
        self.found.append(trainer.callback_metrics["val/nats"].item())


class Stop(Callback):
    """SIGTERM after a step, or in the validation after it."""

    def __init__(self, step: int, in_validation: bool):
        self.step, self.in_validation = step, in_validation

    def strike(self, trainer, in_validation: bool):
        if (trainer.global_step, in_validation) == (self.step, self.in_validation):
            os.kill(os.getpid(), signal.SIGTERM)

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.strike(trainer, in_validation=False)

    def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.strike(trainer, in_validation=True)


def weights_of(net) -> dict[str, torch.Tensor]:
    return {name: weight.clone() for name, weight in net.state_dict().items()}


def saved(path: Path, key: str = "state_dict") -> dict[str, torch.Tensor]:
    held = torch.load(path, weights_only=True)[key]
    return {name.removeprefix("net."): held[name] for name in held}


def same(a: dict, b: dict) -> bool:
    assert a.keys() == b.keys()
    return all(torch.equal(a[name], b[name]) for name in a)


def assert_close(a: dict, b: dict, atol=1e-6) -> None:
    torch.testing.assert_close(dict(a), b, rtol=0, atol=atol)


def mean(recorded: list[dict]) -> dict:
    return {name: torch.stack([each[name] for each in recorded]).mean(0) for name in recorded[0]}


@pytest.fixture
def fit(make_model, make_data, make_trainer, tmp_path):
    """Train; LastCheckpoint comes last, as in a run."""

    def run(*given, into="run", ckpt_path=None, compile=False, **options):
        seed_everything(3, verbose=False)
        made = make_model(dropout=0.2, optim={"schedule": "constant"})
        model = LanguageModel(made.net.config, made.optim, compile=compile)
        model.load_state_dict(made.state_dict())
        record = Record()
        changes = {"max_steps": 8, "val_check_interval": 4, "enable_checkpointing": True}
        changes |= {"default_root_dir": tmp_path / into, "callbacks": [*given, record]}
        changes["callbacks"].append(LastCheckpoint())
        trainer = make_trainer(**changes | options)
        trainer.fit(model, datamodule=make_data(), ckpt_path=ckpt_path)
        return record, trainer

    return run


@pytest.fixture
def last(tmp_path):
    return lambda into="run": tmp_path / into / "checkpoints" / "last.ckpt"


@pytest.mark.parametrize("accumulate", [1, 2])
def test_the_plain_mean_is_of_the_weights_after_every_step_from_the_first_that_counts(
    fit, last, accumulate
):
    options = {"accumulate_grad_batches": accumulate, "val_check_interval": 8}
    record, _ = fit(WeightAverage(decay=None, start_step=3), **options)
    assert_close(saved(last()), mean(record.weights[3:]))


def test_the_exponential_mean_starts_at_the_weights(fit, last):
    record, _ = fit(WeightAverage(decay=0.7))
    expected = record.weights[0]
    for now in record.weights[1:]:
        expected = {name: 0.7 * expected[name] + 0.3 * now[name] for name in now}
    assert_close(saved(last()), expected)


def test_training_is_as_it_is_without(fit):
    alone, _ = fit()
    averaged, _ = fit(WeightAverage(0.5), into="averaged")
    assert averaged.losses == alone.losses
    assert torch.equal(averaged.memory.h_NBMD, alone.memory.h_NBMD)
    assert averaged.found != alone.found


def test_validation_measures_the_average(fit, last, make_data, make_trainer):
    record, _ = fit(WeightAverage(0.5))
    options = {"datamodule": make_data(), "verbose": False, "ckpt_path": last()}
    [found] = make_trainer().validate(LanguageModel.load_from_checkpoint(last()), **options)
    assert found["val/nats"] == record.found[-1]


def test_until_there_is_one_validation_measures_the_weights(fit, last):
    alone, _ = fit()
    averaged, _ = fit(WeightAverage(start_step=8), into="late")
    assert averaged.found == alone.found
    assert "trained" not in torch.load(last("late"), weights_only=True)


@pytest.mark.parametrize("steps", [8, 7], ids=["just validated", "since a validation"])
def test_a_checkpoint_holds_the_average_for_all_verbs_and_the_weights_for_fit(fit, last, steps):
    record, trainer = fit(WeightAverage(decay=None), max_steps=steps)
    assert same(saved(last(), "trained"), record.weights[-1])
    average = saved(last())
    assert_close(average, mean(record.weights))
    assert same(load_run(last())[0].state_dict(), average)
    assert same(weights_of(trainer.lightning_module.net), average)


def test_what_follows_fit_measures_the_average_and_saves_both(fit, last, make_data):
    record, trainer = fit(WeightAverage(0.5))
    before = weights_of(trainer.lightning_module.net)
    for _ in range(2):
        [found] = trainer.validate(trainer.lightning_module, make_data(), verbose=False)
        assert found["val/nats"] == record.found[-1]
        assert same(weights_of(trainer.lightning_module.net), before)
    trainer.save_checkpoint(last("after"))
    assert same(saved(last("after")), before)
    assert same(saved(last("after"), "trained"), record.weights[-1])


def check_same_end(a: Path, b: Path) -> None:
    for key in ("state_dict", "trained"):
        assert same(saved(a, key), saved(b, key))


@pytest.mark.parametrize("precision", ["32-true", "64-true", "bf16-true"])
@pytest.mark.parametrize("decay", [0.5, None])
@pytest.mark.parametrize("steps", [4, 6], ids=["just validated", "since a validation"])
def test_a_run_that_goes_on_ends_as_one_that_never_stopped(fit, last, decay, steps, precision):
    options = {"precision": precision}
    whole, _ = fit(WeightAverage(decay), into="whole", **options)
    fit(WeightAverage(decay), into="part", max_steps=steps, **options)
    on, _ = fit(WeightAverage(decay), into="on", ckpt_path=last("part"), **options)
    check_same_end(last("on"), last("whole"))
    assert on.losses == whole.losses[steps:]
    assert on.found[-1] == whole.found[-1]


@pytest.mark.parametrize(("step", "in_validation"), [(3, False), (4, False), (4, True)])
def test_so_does_one_that_a_signal_has_stopped(fit, last, step, in_validation):
    fit(WeightAverage(0.5), into="whole")
    with pytest.raises(SystemExit):
        fit(Stop(step, in_validation), WeightAverage(0.5), into="part")
    fit(WeightAverage(0.5), into="on", ckpt_path=last("part"))
    check_same_end(last("on"), last("whole"))


def test_in_half_precision_the_average_is_wider_than_the_weights(fit, last):
    """A small part of a difference would be rounded away, and validation would round the rest."""
    record, _ = fit(WeightAverage(decay=None), precision="bf16-true", val_check_interval=2)
    wide = [{name: w.float() for name, w in each.items()} for each in record.weights]
    assert_close(saved(last()), mean(wide))
    assert {weight.dtype for weight in saved(last(), "trained").values()} == {torch.bfloat16}


def test_a_run_may_begin_to_average_when_it_goes_on(fit, last):
    fit(into="part", max_steps=4)
    record, _ = fit(WeightAverage(None), into="on", ckpt_path=last("part"))
    assert_close(saved(last("on")), mean(record.weights))


def test_a_run_that_averages_no_more_goes_on_from_the_weights_and_says_so(fit, last):
    whole, _ = fit(into="whole")
    fit(WeightAverage(0.5), into="part", max_steps=6)
    with pytest.warns(UserWarning, match="without the callback WeightAverage training goes on"):
        on, _ = fit(into="on", ckpt_path=last("part"))
    assert on.losses == whole.losses[6:]
    assert same(saved(last("on")), saved(last("whole")))


def test_a_second_fit_begins_anew(fit, make_data, make_trainer):
    average = WeightAverage(None)
    _, trainer = fit(average)
    model, record = trainer.lightning_module, Record()
    make_trainer(callbacks=[average, record], max_steps=2).fit(model, datamodule=make_data())
    assert_close(weights_of(model.net), mean(record.weights))


def test_a_compiled_network_computes_with_the_average(fit):
    torch._dynamo.reset()
    counter = CompileCounter()
    torch.compiler.set_default_backend(counter)
    try:
        plain, _ = fit(WeightAverage(0.5))
        compiled, _ = fit(WeightAverage(0.5), compile=True, into="compiled")
    finally:
        torch.compiler.set_default_backend(None)
        torch._dynamo.reset()
    assert (compiled.losses, compiled.found) == (plain.losses, plain.found)
    assert counter.frame_count == 2


def test_only_the_network_is_copied(fit):
    """Neither memories, nor gradients, nor anything that knows the trainer."""
    average = WeightAverage(0.5)
    _, trainer = fit(average)
    net = trainer.lightning_module.net
    for copied in (average.average, average.aside):
        assert type(copied) is type(net)
        assert all(p.grad is None for p in copied.parameters())
        assert copied.head.out.weight is copied.embedding.weight


@pytest.mark.parametrize(
    "other", [EMAWeightAveraging(), WeightAveraging(), StochasticWeightAveraging(1e-3)]
)
def test_lightnings_own_is_refused(fit, other):
    said = rf"invalid {type(other).__name__}; .*WeightAverage"
    with pytest.raises(ValueError, match=said):
        fit(other)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"decay": 1.0}, r"decay: invalid 1\.0; expected at least 0 and less than 1, or"),
        ({"start_step": -1}, "start_step: invalid -1; expected 0 or more"),
    ],
)
def test_an_impossible_number_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        WeightAverage(**options)


def test_a_file_asks_for_it_and_the_same_command_goes_on(txl, small, tmp_path):
    config = tmp_path / "average.yaml"
    config.write_text(
        "trainer:\n  callbacks:\n  - class_path: txl_lightning.training.callbacks.weight_averaging.WeightAverage\n"
        "    init_args: {decay: null, start_step: 2}\n"
    )
    command = ("fit", *small, f"--config={config}", "--resume=auto")
    for steps in (5, 7):
        code, output = txl(*command, f"--trainer.max_steps={steps}")
        assert code == 0, output.err
    path = Path("runs/version_1/checkpoints/last.ckpt")
    assert torch.load(path, weights_only=True)["callbacks"]["WeightAverage"] == {"count": 5}
    assert not same(saved(path), saved(path, "trained"))
    assert txl("test", *small, f"--ckpt_path={path}")[0] == 0
    assert txl("generate", f"--ckpt_path={path}", "--length=3")[0] == 0
