"""A segment in chunks is the segment: the same steps, with less memory for each."""

import csv
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything
from lightning.pytorch.callbacks import Checkpoint, GradientAccumulationScheduler
from lightning.pytorch.loggers import CSVLogger

from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.history import History
from txl_lightning.training.callbacks.throughput import Throughput
from txl_lightning.training.micro_batches import in_chunks

EXACT = {"precision": "64-true", "gradient_clip_val": 0.25, "limit_val_batches": 0}


# Another number of chunks is exact to rounding, and says so.
pytestmark = pytest.mark.filterwarnings("ignore:the order of the text is exact")


class Steps(Callback):
    """The loss of every optimiser step, as the sum of what its batches add to it."""

    def __init__(self):
        self.losses = {}

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.step = trainer.global_step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses[self.step] = self.losses.get(self.step, 0.0) + outputs["loss"].item()


class OneMemory(Callback):
    """What would be without a memory for each chunk: all continue from the last one's."""

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        kept = list(module.memories.values()) + list(module.pending.values())
        for chunk in range(batch.n_chunk):
            module.memories["train", chunk] = kept[-1]


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train in n_chunk chunks: the losses by step, and the model."""

    def run(n_chunk, trainer, net=(), fit=(), **reading):
        seed_everything(3, verbose=False)
        steps, model = Steps(), make_model(**dict(net))
        trainer = in_chunks(make_trainer(**trainer), n_chunk)
        trainer.callbacks.append(steps)
        trainer.fit(model, datamodule=make_data(batch_chunks=n_chunk, **reading), **dict(fit))
        return steps.losses, model

    return run


def assert_same(found, expected, tolerance=1e-10):
    (losses, model), (expected_losses, expected_model) = found, expected
    assert losses == pytest.approx(expected_losses, rel=tolerance)
    pairs = zip(model.parameters(), expected_model.parameters(), strict=True)
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.fixture
def documents(text_file):
    """Lines of many lengths, so that not every row has as much to predict."""
    text = bytearray(text_file.read_bytes())
    text[:3000:5] = b"\n" * len(text[:3000:5])
    text[3000::37] = b"\n" * len(text[3000::37])
    text_file.write_bytes(text)


READINGS = [
    {},
    {"order": "rolled", "segments": "varied"},
    {"order": "shuffled", "document_unit": "lines"},
    {"overfit_batches": 3},
    {"order": "rolled", "segments": "varied", "ext_len": 5},
]


@pytest.mark.parametrize(("accumulate", "mem_len"), [(1, 5), (1, 12), (2, 12)])
@pytest.mark.parametrize("reading", READINGS, ids=str)
def test_a_step_in_chunks_is_the_step_of_the_whole_batch(
    train, documents, accumulate, mem_len, reading
):
    limits = {name: reading[name] for name in ("overfit_batches",) if name in reading}
    trainer = {**EXACT, "accumulate_grad_batches": accumulate, **limits, "max_steps": 7}
    how = {name: value for name, value in reading.items() if name not in limits}
    net, short = {"mem_len": mem_len}, {"split": (0.04, 0.48, 0.48)}
    whole, two, four = (train(n_chunk, trainer, net, **how, **short) for n_chunk in (1, 2, 4))
    assert len(whole[0]) == 7
    assert_same(two, whole)
    assert_same(four, whole)


def test_one_memory_for_all_chunks_would_be_seen(train):
    whole = train(1, EXACT)
    mixed = train(2, {**EXACT, "callbacks": [OneMemory()]})
    assert mixed[0][0] == pytest.approx(whole[0][0])
    assert abs(mixed[0][2] / whole[0][2] - 1) > 1e-6


def test_each_chunk_has_a_memory_of_its_own_rows(train):
    model = train(2, EXACT)[1]
    whole = train(1, EXACT)[1].memories["train", 0]
    chunks = [model.memories["train", chunk] for chunk in range(2)]
    torch.testing.assert_close(torch.cat([chunk.h_NBMD for chunk in chunks], dim=1), whole.h_NBMD)
    assert set(model.memories) == {("train", 0), ("train", 1)}


class Stop(Callback):
    """Break off before a batch, or within its step."""

    def __init__(self, at, within):
        self.at, self.within, self.n_seen = at, within, 0

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        self.stop_if(not self.within)

    def on_after_backward(self, trainer, module):
        self.stop_if(self.within)
        self.n_seen += 1

    def stop_if(self, here):
        if here and self.n_seen == self.at:
            raise RuntimeError("stopped")


class Validated(Callback):
    """At which steps there was a validation, and what was logged then."""

    def __init__(self):
        self.steps = []

    def on_validation_start(self, trainer, module):
        self.steps.append(trainer.global_step)


class Save(Checkpoint):
    """A checkpoint after a batch, as Lightning's own are written."""

    def __init__(self, path, at):
        self.path, self.at = path, at

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if batch_idx + 1 == self.at:
            trainer.save_checkpoint(self.path)


GOING_ON = {**EXACT, "max_steps": 9, "val_check_interval": 3, "limit_val_batches": 1}


def assert_goes_on(train, last, then, finished, validated, **options):
    """A run that finished some steps goes on in `then` chunks as if it had never stopped."""
    whole, seen = train(1, GOING_ON), Validated()
    options = {**GOING_ON, **options, "callbacks": [seen]}
    losses, model = train(then, options, fit={"ckpt_path": last})
    assert min(losses) == finished
    assert_same(({**whole[0], **losses}, model), whole)
    assert seen.steps == validated


@pytest.mark.parametrize(
    ("at", "within"), [(8, False), (9, False), (9, True), (11, True), (12, False)]
)
@pytest.mark.parametrize("then", [2, 4, 1])
def test_a_run_that_breaks_off_anywhere_goes_on_at_a_whole_segment(
    train, tmp_path, at, within, then
):
    saved = {"enable_checkpointing": True, "default_root_dir": str(tmp_path)}
    callbacks = [LastCheckpoint(), Stop(at, within)]
    with pytest.raises(RuntimeError, match="stopped"):
        train(2, {**GOING_ON, **saved, "callbacks": callbacks})
    [reached] = (tmp_path / "checkpoints").glob("crash-*.ckpt")
    with pytest.warns(match="saved in mid-step"):
        assert_goes_on(train, reached, then, at // 2, [6, 9][at // 12 :])


@pytest.mark.parametrize("at", [8, 9, 10, 12])
@pytest.mark.parametrize("then", [2, 4, 1])
def test_a_run_saved_after_any_batch_goes_on_at_a_whole_segment(train, tmp_path, at, then):
    path, logger = tmp_path / "a.ckpt", CSVLogger(tmp_path, name="", version="log")
    saved = {"callbacks": [Save(path, at)], "enable_checkpointing": True}
    train(2, {**GOING_ON, **saved})
    # Of a step that was saved before its validation, Lightning leaves that out.
    validated = [6, 9][at // 12 :]
    amid = pytest.warns(match="saved in mid-step") if at % 2 else nullcontext()
    with amid:
        assert_goes_on(train, path, then, at // 2, validated, logger=logger, log_every_n_steps=1)
    if at % 2 == 0:
        with (tmp_path / "log" / "metrics.csv").open() as file:
            steps = [int(row["step"]) for row in csv.DictReader(file) if row["train/nats"]]
        assert steps == list(range(at // 2, 9))


class Logged(Callback):
    """What was logged at which step."""

    def __init__(self):
        self.found = []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if module.is_logged(trainer.global_step, batch_idx):
            names = ("train/tokens", "train/nats", "train/lr")
            values = [trainer.callback_metrics[name].item() for name in names]
            self.found.append((trainer.global_step, *values))


@pytest.mark.parametrize("accumulate", [1, 2])
def test_what_is_logged_is_that_of_the_whole_batch(train, accumulate):
    found = []
    for n_chunk in (1, 2, 4):
        logged, curve, validated = Logged(), History(), Validated()
        options = {"log_every_n_steps": 2, "val_check_interval": 2 * accumulate, "max_steps": 6}
        options |= {**EXACT, "limit_val_batches": 1, "accumulate_grad_batches": accumulate}
        train(n_chunk, {**options, "callbacks": [logged, curve, validated, Throughput()]})
        kept = [curve.training("bits_per_byte"), curve.validation("bits_per_byte")]
        points = [value for kind in kept for point in kind for value in point]
        found.append([value for line in logged.found for value in line] + points + validated.steps)
    assert validated.steps == [2, 4, 6]
    assert [line[:2] for line in logged.found] == [(n, n * 32 * accumulate) for n in (2, 4, 6)]
    assert found[1] == pytest.approx(found[0], rel=1e-6)
    assert found[2] == pytest.approx(found[0], rel=1e-6)


@pytest.mark.parametrize(
    "options",
    [{"accumulate_grad_batches": 3}, {"limit_train_batches": 3}, {"overfit_batches": 1}],
    ids=str,
)
def test_a_trainer_that_would_stop_within_a_segment_is_refused(
    make_model, make_data, make_trainer, options
):
    name, value = next(iter(options.items()))
    trainer = make_trainer(**{"accumulate_grad_batches": 2} | options)
    with pytest.raises(ValueError, match=rf"{name}: invalid {value} .* expected a multiple of 2"):
        trainer.fit(make_model(), datamodule=make_data(batch_chunks=2))


def test_accumulation_on_a_schedule_may_be_of_whole_segments(make_model, make_data, make_trainer):
    def fit(factor):
        schedule = GradientAccumulationScheduler({0: factor})
        trainer = make_trainer(callbacks=[schedule], limit_val_batches=0, max_steps=2)
        trainer.fit(make_model(), datamodule=make_data(batch_chunks=2))
        return trainer.train_dataloader.consumed

    assert fit(4) == 4
    with pytest.raises(ValueError, match="accumulate_grad_batches: invalid 3"):
        fit(3)


def test_rows_that_devices_and_chunks_cannot_share_are_refused(make_data, make_trainer):
    class Two(Trainer):
        world_size = 2

    data = make_data(batch_size=6, batch_chunks=2)
    data.trainer = Two(logger=False, accelerator="cpu", enable_checkpointing=False)
    said = r"data\.batch_size.*: 6 rows .* 2 devices in data\.batch_chunks 2 each; .* multiple of 4"
    with pytest.raises(ValueError, match=said):
        data.train_dataloader()
    assert next(iter(data.val_dataloader())).tokens_BL.size(0) == 3


@pytest.mark.parametrize(
    ("options", "counts", "limit_val"),
    [
        ({}, (1, 7, 1.0, 0.0), 3),
        ({"accumulate_grad_batches": 2, "limit_train_batches": 5}, (2, 7, 5, 0.0), 3),
        ({"overfit_batches": 2}, (1, 7, 2, 2), 2),
        ({"fast_dev_run": 2}, (1, 1.0, 2, 0.0), 2),
        ({"val_check_interval": "00:00:01:00"}, (1, 1.0, 1.0, 0.0), 3),
    ],
    ids=str,
)
def test_only_whole_numbers_of_training_batches_count_segments(
    make_trainer, options, counts, limit_val
):
    trainer = in_chunks(make_trainer(**{"val_check_interval": 7} | options), 3)
    accumulate, interval, limit, overfit = counts
    assert trainer.accumulate_grad_batches == 3 * accumulate
    assert trainer.limit_train_batches == (3 * limit if isinstance(limit, int) else limit)
    assert trainer.overfit_batches == (3 * overfit if isinstance(overfit, int) else overfit)
    assert trainer.limit_val_batches == limit_val
    if isinstance(interval, int):
        assert trainer.val_check_interval == 3 * interval
