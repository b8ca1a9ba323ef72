"""An average of the weights is validated, saved and used; it does not change training."""

import os
import signal
from pathlib import Path

import pytest
import torch
from lightning.pytorch import callbacks

from txl_lightning import LanguageModel
from txl_lightning.checkpoints import load_checkpoint
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.weight_averaging import WeightAverage
from txl_lightning.training.loops import set_last_step

Weights = dict[str, torch.Tensor]


def copy_weights_of(net) -> Weights:
    return {name: weight.clone() for name, weight in net.state_dict().items()}


def load(path: Path, key: str = "state_dict") -> Weights:
    weights = torch.load(path, weights_only=True)[key]
    return {name.removeprefix("net."): weights[name] for name in weights}


def are_equal(a: Weights, b: Weights) -> bool:
    return a.keys() == b.keys() and all(map(torch.equal, a.values(), b.values()))


def assert_mean(weights: Weights, recorded: list[Weights]) -> None:
    for name, weight in weights.items():
        wide = torch.promote_types(weight.dtype, torch.float32)
        mean = torch.stack([each[name].to(wide) for each in recorded]).mean(0)
        torch.testing.assert_close(weight, mean, rtol=0, atol=1e-6)


@pytest.fixture
def train(fit, tmp_path):
    """Train for 4 steps, validate after 2 and 4, and save."""

    def run(*callbacks, into="run", **options):
        changes = {"max_steps": 4, "val_check_interval": 2, "default_root_dir": tmp_path / into}
        fit(*callbacks, LastCheckpoint(), sizes={"dropout": 0.2}, **changes | options)
        return fit.record

    return run


@pytest.fixture
def last(tmp_path):
    return lambda into="run": tmp_path / into / "checkpoints" / "last.ckpt"


@pytest.mark.filterwarnings("ignore:.*cannot be verified")  # a plain Trainer wrote it
@pytest.mark.parametrize("accumulate", [1, 2])
def test_plain_mean_is_of_the_weights_after_every_counted_step(train, last, accumulate):
    options = {"accumulate_grad_batches": accumulate, "val_check_interval": 4}
    record = train(WeightAverage(decay=None, start_step=1), **options)
    assert_mean(load(last()), record.weights[1:])
    # fit ends with the average, other commands load it, and fit resumes from the weights.
    assert are_equal(load(last(), "trained"), record.weights[-1])
    assert are_equal(load_checkpoint(last()).build_network().state_dict(), load(last()))
    assert are_equal(copy_weights_of(record.model.net), load(last()))


def test_exponential_mean_starts_at_the_weights_and_does_not_change_training(train, last, capsys):
    alone = train(into="alone")
    record = train(WeightAverage(decay=0.7))
    expected = record.weights[0]
    for now in record.weights[1:]:
        expected = {name: 0.7 * expected[name] + 0.3 * now[name] for name in now}
    assert_mean(load(last()), [expected])
    assert record.losses == alone.losses
    assert torch.equal(record.memory.h_NBMD, alone.memory.h_NBMD)
    assert record.val_nats != alone.val_nats
    # Before there is an average, validation uses the weights.
    late = train(WeightAverage(start_step=4), into="late")
    assert late.val_nats == alone.val_nats
    assert "trained" not in torch.load(last("late"), weights_only=True)
    said = "WeightAverage.start_step 4: the run ends at step 4; nothing is averaged\n"
    assert capsys.readouterr().err.count(said) == 1


def test_validation_during_and_after_fit_measures_the_average(train, last, make_data, make_trainer):
    record = train(WeightAverage(0.5))
    fitted = (record.trainer, record.model)
    loaded = LanguageModel.load_from_checkpoint(last())
    before = copy_weights_of(record.model.net)
    for trainer, model in (fitted, fitted, (make_trainer(), loaded)):
        [results] = trainer.validate(model, datamodule=make_data(), verbose=False)
        assert results["val/nats"] == record.val_nats[1]
        assert are_equal(copy_weights_of(model.net), before)
    record.trainer.save_checkpoint(last("after"))
    assert are_equal(load(last("after")), before)
    assert are_equal(load(last("after"), "trained"), record.weights[-1])


@pytest.mark.parametrize(
    ("decay", "steps", "precision", "is_signalled"),
    [(0.5, 2, "32-true", True), (None, 3, "64-true", False), (None, 3, "bf16-true", False)],
)
def test_interrupted_run_ends_like_an_uninterrupted_one(
    train, last, decay, steps, precision, is_signalled
):
    options = {"precision": precision}
    whole = train(WeightAverage(decay), into="whole", **options)
    if decay is None:
        # Half precision would round a small difference to 0.
        assert_mean(load(last("whole")), whole.weights)
    if is_signalled:
        stop = callbacks.Callback()
        stop.on_validation_start = lambda *_: os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(SystemExit):
            train(stop, WeightAverage(decay), into="part", **options)
    else:
        train(WeightAverage(decay), into="part", max_steps=steps, **options)
    resumed = train(WeightAverage(decay), ckpt_path=last("part"), **options)
    for key in ("state_dict", "trained"):
        assert are_equal(load(last(), key), load(last("whole"), key))
    assert resumed.losses == whole.losses[steps:]
    assert resumed.val_nats[-1] == whole.val_nats[-1]


def test_averaging_can_begin_or_end_at_a_resume(train, last):
    whole = train(into="whole")
    train(into="part", max_steps=2)
    record = train(WeightAverage(None), into="begun", ckpt_path=last("part"))
    assert_mean(load(last("begun")), record.weights)
    train(WeightAverage(0.5), into="averaged", max_steps=3)
    with pytest.warns(UserWarning, match="without the callback WeightAverage training continues"):
        ended = train(into="ended", ckpt_path=last("averaged"))
    assert ended.losses == whole.losses[3:]
    assert are_equal(load(last("ended")), load(last("whole")))


def test_second_fit_has_its_own_average_and_only_the_network_is_copied(train):
    average = WeightAverage(None)
    trainer = train(average).trainer
    model = trainer.lightning_module
    record = train(average, model=model, max_steps=2, into="second")
    assert_mean(copy_weights_of(model.net), record.weights)
    for copied in (average.average, average.trained):
        assert type(copied) is type(model.net)
        assert all(p.grad is None for p in copied.parameters())
        assert copied.head.out.weight is copied.embedding.weight


class Look(callbacks.Callback):
    """Copies of the weights at the start of each training."""

    def on_train_start(self, trainer, module):
        self.weights = copy_weights_of(module.net)


def test_a_trainer_that_goes_on_trains_the_weights_and_not_their_average(train):
    look = Look()
    average = WeightAverage(None)
    trainer = train(average, look, max_steps=2).trainer
    model = trainer.lightning_module
    trained = copy_weights_of(average.trained)
    mean = copy_weights_of(model.net)
    assert not are_equal(trained, mean)
    # No step is left: what is tested and saved is the average.
    trainer.fit(model, datamodule=trainer.datamodule)
    assert are_equal(copy_weights_of(model.net), mean)
    set_last_step(trainer, 3)
    trainer.fit(model, datamodule=trainer.datamodule)
    assert trainer.global_step == average.n_averaged == 3
    assert are_equal(look.weights, trained)


@pytest.mark.parametrize("n_check", [0, 2])
def test_a_trainer_that_goes_on_has_the_weights_that_are_given_it(train, make_model, n_check):
    look = Look()
    average = WeightAverage(None, start_step=1)
    options = {"max_steps": 2, "val_check_interval": 1, "num_sanity_val_steps": n_check}
    trainer = train(average, look, **options).trainer
    model = trainer.lightning_module
    given = {name: weight + 1 for name, weight in model.net.state_dict().items()}
    model.net.load_state_dict(given)
    set_last_step(trainer, 3)
    trainer.fit(model, datamodule=trainer.datamodule)
    assert are_equal(look.weights, given)
    # Of another model, another average.
    other = make_model()
    before = copy_weights_of(other.net)
    set_last_step(trainer, 5)
    trainer.fit(other, datamodule=trainer.datamodule)
    assert are_equal(look.weights, before)
    assert average.n_averaged == 2


def test_a_trainer_that_loads_a_checkpoint_has_the_average_of_that(train, last, tmp_path):
    average = WeightAverage(0.9, start_step=1)
    look = Look()
    train(WeightAverage(0.9, start_step=1), max_steps=1, into="short")
    trainer = train(average, look, max_steps=3).trainer
    first = load(last("short"))
    set_last_step(trainer, 2)
    model = trainer.lightning_module
    trainer.fit(model, datamodule=trainer.datamodule, ckpt_path=last("short"))
    assert are_equal(look.weights, first)
    # An average begins with the first weights that it has.
    assert are_equal(copy_weights_of(average.average), copy_weights_of(average.trained))
    assert average.n_averaged == 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64, torch.bool])
def test_average_is_validated_and_saved_with_the_present_buffers(make_model, train, last, dtype):
    model = make_model()
    model.net.register_buffer("statistics", torch.zeros(3).to(dtype))
    validated = []

    class Run(callbacks.Callback):
        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            module.net.statistics.add_(torch.ones(3).to(dtype))

        def on_validation_batch_start(self, trainer, module, *_):
            validated.append(module.net.statistics.clone())

    options = {"accumulate_grad_batches": 2, "max_steps": 2, "val_check_interval": 3}
    train(Run(), WeightAverage(0.5), model=model, **options)
    assert torch.equal(load(last())["statistics"], torch.full((3,), 4).to(dtype))
    assert torch.equal(validated[-1], torch.full((3,), 3).to(dtype))


def test_other_averages_and_invalid_numbers_are_refused(train):
    means = callbacks.EMAWeightAveraging(), callbacks.WeightAveraging()
    for other in (*means, callbacks.StochasticWeightAveraging(1e-3)):
        message = rf"trainer\.callbacks: invalid {type(other).__name__}; expected WeightAverage"
        with pytest.raises(ValueError, match=message):
            train(other)
    for name, value in (("decay", 1.0), ("decay", -0.1), ("start_step", -1)):
        with pytest.raises(ValueError, match=rf"{name}: invalid {value}; expected"):
            WeightAverage(**{name: value})
