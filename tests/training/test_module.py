"""Training takes the steps of a loop by hand, and resumes bit for bit."""

import math
import random
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from txl_lightning import CorpusDataModule, LanguageModel
from txl_lightning.data.stream import IGNORED
from txl_lightning.data.tasks import TaskConfig


class Record(Callback):
    """Of every segment the loss, its number, what was remembered before it, its tokens, one of
    Python's random numbers; and whether validation leaves the training memory alone."""

    def __init__(self):
        self.losses, self.steps, self.tokens, self.draws, self.unchanged = [], [], [], [], []

    def on_train_batch_start(self, trainer, module, batch, batch_idx):
        memory = module.memory_bank.committed.get(("train", 0))
        filled = 0 if memory is None else int(memory.filled_B.min())
        self.steps.append((batch.index, filled))
        self.tokens.append((batch.tokens_BL.tolist(), batch.doc_pos_BL[0, 0].item()))

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())
        self.draws.append(random.random())

    def on_validation_start(self, trainer, module):
        memory = module.memory_bank.committed.get(("train", 0))
        self.before = None if memory is None else memory.h_NBMD.clone()

    def on_validation_end(self, trainer, module):
        if self.before is not None:
            memory = module.memory_bank.committed["train", 0]
            self.unchanged.append(torch.equal(memory.h_NBMD, self.before))


def fit(model, data, trainer: Trainer, **options) -> Record:
    record = Record()
    trainer.callbacks.append(record)
    trainer.fit(model, datamodule=data, **options)
    return record


@pytest.fixture
def seeded(make_model):
    def make(**changes) -> LanguageModel:
        seed_everything(3, verbose=False)
        return make_model(**changes)

    return make


def train_by_hand(model, data, steps: int) -> list[float]:
    net, losses, memory = model.net, [], None
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0)
    segments = iter(data.train_dataloader())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        segment = next(segments)
        memory = None if (segment.doc_pos_BL[:, 0] == 0).all() else memory
        n_reread = min(data.config.ext_len, segment.tokens_BL.size(1))
        nats, memory = net.loss(
            segment.tokens_BL, segment.targets_BL, memory, segment.doc_pos_BL, n_reread
        )
        loss = nats.sum() / (segment.targets_BL != IGNORED).sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.parametrize("ext_len", [0, 3, 20])
def test_fit_takes_the_steps_of_a_loop_written_by_hand(seeded, make_data, make_trainer, ext_len):
    data = make_data(split=(0.05, 0.45, 0.5), ext_len=ext_len)
    steps = len(data.train_dataloader().stream) + 3
    options = {"max_steps": steps, "gradient_clip_val": 0.25, "precision": "64-true"}
    record = fit(seeded().double(), data, make_trainer(limit_val_batches=0, **options))
    assert record.losses == pytest.approx(train_by_hand(seeded().double(), data, steps), abs=1e-12)


def test_validation_and_sanity_check_leave_training_unchanged(seeded, make_data, make_trainer):
    class Sanity(Callback):
        def on_train_start(self, trainer, module):
            self.left = dict(module.memory_bank.committed), dict(module.metrics)

    alone = fit(seeded(), make_data(), make_trainer(limit_val_batches=0, max_steps=4))
    model, sanity = seeded(), Sanity()
    options = {"val_check_interval": 2, "num_sanity_val_steps": 2, "callbacks": [sanity]}
    disturbed = fit(model, make_data(), make_trainer(max_steps=4, **options))
    assert disturbed.losses == alone.losses
    assert disturbed.unchanged == [True, True]
    assert sanity.left == ({}, {})
    assert {stage for stage, _ in model.memory_bank.committed} == {"train"}
    # Validated alone, a model can be trained.
    make_trainer().validate(model, datamodule=make_data(), verbose=False)
    assert len(fit(model, make_data(), make_trainer(max_steps=1)).losses) == 1


class Save(Callback):
    def __init__(self, path, step):
        self.path, self.step = path, step

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        if trainer.global_step == self.step and not self.path.exists():
            trainer.save_checkpoint(self.path)


@pytest.fixture
def interrupt(seeded, make_data, make_trainer, tmp_path):
    """Train with a checkpoint at a step, resume from it, and compare all losses and weights."""

    def run(step, same=True, data=(), optim=(), **options):
        path, changes = tmp_path / "mid.ckpt", {"dropout": 0.2, "dropatt": 0.1, "optim": optim}
        options = {"max_steps": 6, "val_check_interval": 2, "limit_val_batches": 1} | options
        data = {"split": (0.02, 0.49, 0.49)} | dict(data)
        model, record = seeded(**changes), Record()
        # After the model's own callbacks, where Lightning's checkpoints are written.
        configured = [*model.configure_callbacks(), record, Save(path, step)]
        model.configure_callbacks = lambda: configured
        make_trainer(**options).fit(model, datamodule=make_data(**data))
        other = seeded(**changes)
        resumed = fit(other, make_data(**data), make_trainer(**options), ckpt_path=path)
        left = (options["max_steps"] - step) * options.get("accumulate_grad_batches", 1)
        assert len(resumed.losses) == left
        assert (resumed.losses == record.losses[-left:]) is same
        assert all(map(torch.equal, model.parameters(), other.parameters())) is same
        assert resumed.draws == record.draws[-left:]

    return run


@pytest.mark.parametrize(
    ("step", "options"),
    [
        (1, {}),
        (2, {"accumulate_grad_batches": 2}),
        (5, {"optim": {"name": "muon"}}),
        (3, {"optim": {"name": "lamb"}, "accumulate_grad_batches": 2}),
        (3, {"precision": "64-true"}),
        (3, {"precision": "bf16-mixed"}),
        (3, {"precision": "bf16-true"}),
    ],
    ids=str,
)
def test_resumed_training_equals_uninterrupted(interrupt, step, options):
    interrupt(step, **options)


@pytest.mark.parametrize(
    "data",
    [
        {"order": "rolled", "segments": "varlen", "seed": 5},
        {"order": "shuffled", "document_unit": "lines"},
        {"ext_len": 20, "order": "rolled", "segments": "varlen"},
    ],
    ids=str,
)
def test_resumed_training_equals_uninterrupted_in_every_order(interrupt, text_file, data):
    text = bytearray(text_file.read_bytes())
    text[::17] = b"\n" * len(text[::17])
    text_file.write_bytes(text)
    interrupt(4, data=data | {"split": (0.1, 0.45, 0.45)}, max_steps=8)


LOSE = {
    "memory": lambda checkpoint: checkpoint["txl_lightning"].pop("memory"),
    "random numbers": lambda checkpoint: checkpoint["txl_lightning"]["ranks"][0]["rng"].update(
        torch=torch.Generator().manual_seed(9).get_state()
    ),
    "position": lambda checkpoint: checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"][
        0
    ].update(consumed=0),
    "optimiser": lambda checkpoint: [
        moments["exp_avg"].zero_()
        for moments in checkpoint["optimizer_states"][0]["state"].values()
    ],
    "schedule": lambda checkpoint: checkpoint["lr_schedulers"][0].update(last_epoch=0),
}


@pytest.mark.parametrize("lost", LOSE)
def test_resume_that_lost_something_is_noticed(interrupt, lost):
    class Lose(Callback):
        def on_load_checkpoint(self, trainer, module, checkpoint):
            # Before anything of it is used.
            LOSE[lost](checkpoint)

    warning = pytest.warns(match="holds no memory") if lost == "memory" else nullcontext()
    with warning:
        interrupt(3, same=False, callbacks=[Lose()])


def test_asking_for_the_number_of_steps_keeps_the_position(interrupt, monkeypatch):
    answers, configure = [], LanguageModel.configure_optimizers

    def ask(model):
        answers.append(model.trainer.estimated_stepping_batches)
        return configure(model)

    monkeypatch.setattr(LanguageModel, "configure_optimizers", ask)
    interrupt(3, max_epochs=1)
    assert answers == [6, 6]


def test_resumed_run_trains_by_the_settings_given_now(
    make_model, make_data, make_trainer, tmp_path
):
    path, constant = tmp_path / "a.ckpt", {"schedule": "constant", "lr": 0.01, "weight_decay": 0.1}
    trainer = make_trainer(limit_val_batches=0, max_steps=3)
    trainer.fit(make_model(optim=constant), datamodule=make_data())
    trainer.save_checkpoint(path)
    trainer = make_trainer(limit_val_batches=0, max_steps=5)
    model = make_model(optim={**constant, "lr": 1e-4, "weight_decay": 0.2}, mem_len=20)
    trainer.fit(model, datamodule=make_data(), ckpt_path=path)
    decayed, rest = trainer.optimizers[0].param_groups
    assert (decayed["lr"], rest["lr"]) == (1e-4, 1e-4)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.2, 0.0)
    assert trainer.optimizers[0].state[decayed["params"][0]]["step"] == 5
    memory = model.memory_bank.committed["train", 0]
    assert (memory.mem_len, memory.filled_B.tolist()) == (20, [20] * 4)


def test_checkpoint_loads_without_running_anything(make_model, make_data, make_trainer, tmp_path):
    model, trainer, path = make_model(mem_len=5), make_trainer(max_steps=1), tmp_path / "a.ckpt"
    trainer.fit(model, datamodule=make_data())
    trainer.save_checkpoint(path)
    torch.load(path, weights_only=True)
    loaded = LanguageModel.load_from_checkpoint(path)
    assert (loaded.net.config, loaded.optim) == (model.net.config, model.optim)
    assert all(map(torch.equal, loaded.parameters(), model.parameters()))


@pytest.mark.parametrize("accumulate", [1, 3])
def test_logged_tokens_and_means_are_of_the_steps_since(
    make_model, make_data, make_trainer, accumulate
):
    class Logged(Callback):
        values = ()

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if module.is_logged(trainer.global_step, batch_idx):
                names = ("tokens_seen", "nats", "loss", "lr", "mem_filled")
                values = [trainer.callback_metrics[f"train/{name}"].item() for name in names]
                self.values = (*self.values, values)

    logged, window = Logged(), 2 * accumulate
    options = {"log_every_n_steps": 2, "accumulate_grad_batches": accumulate, "max_steps": 4}
    trainer = make_trainer(callbacks=[logged], limit_val_batches=0, **options)
    losses = fit(make_model(optim={"schedule": "constant"}), make_data(), trainer).losses
    first, second = sum(losses[:window]) / 2, sum(losses[window:]) / 2
    lr, mem_filled = pytest.approx(3e-3), 12
    for n, (nats, values) in enumerate(zip((first, second), logged.values, strict=True)):
        nats = pytest.approx(nats, rel=1e-5)
        assert values == [(n + 1) * window * 32, nats, nats, lr, mem_filled]


IN_ORDER = [(0, 0), (1, 8), (2, 12), (3, 12), (4, 12), (5, 12)]


@pytest.mark.parametrize(
    ("flags", "steps"),
    [
        ({"limit_train_batches": 4, "val_check_interval": 2}, IN_ORDER),
        ({"limit_val_batches": 0.5, "val_check_interval": 4}, IN_ORDER),
        ({"fast_dev_run": 3}, IN_ORDER[:3]),
        ({"overfit_batches": 2}, [*IN_ORDER[:3], (3, 8), (4, 12), (5, 8)]),
    ],
    ids=str,
)
def test_position_and_memory_are_right_under_lightnings_flags(
    seeded, make_data, make_trainer, flags, steps
):
    model, trainer = seeded(), make_trainer(**flags)
    assert fit(model, make_data(), trainer).steps == steps
    assert trainer.train_dataloader.consumed == len(steps)
    assert {stage for stage, _ in model.memory_bank.committed} == {"train"}


def test_memory_starts_empty_with_each_pass(seeded, make_data, make_trainer):
    data = make_data(split=(0.02, 0.49, 0.49))
    assert len(data.train_dataloader().stream) == 4
    steps = fit(seeded(), data, make_trainer(limit_val_batches=0)).steps
    assert [filled for _, filled in steps] == [0, 8, 12, 12, 12, 8]


def test_overfit_batches_trains_on_the_same_segments(seeded, make_data, make_trainer):
    trainer = make_trainer(overfit_batches=2)
    record = fit(seeded(optim={"lr": 1e-2}), make_data(), trainer)
    assert record.tokens[:2] == record.tokens[2:4] == record.tokens[4:]
    assert [position for _, position in record.tokens[:2]] == [0, 8]
    assert record.losses[4] < record.losses[0]
    # Also a part of a pass.
    trainer = make_trainer(overfit_batches=0.5, limit_val_batches=0, max_steps=1)
    fit(seeded(), make_data(split=(0.02, 0.49, 0.49)), trainer)
    assert trainer.train_dataloader.n_segment == 2


def test_loss_is_the_mean_of_scored_targets(seeded, make_trainer):
    data = CorpusDataModule(corpus="copy", task=TaskConfig(length=3), tgt_len=7, batch_size=4)
    model, net = (seeded(n_token=12, mem_len=0) for _ in range(2))
    [loss] = fit(model, data, make_trainer(max_steps=1, limit_val_batches=0)).losses
    segment = data.train_dataloader().stream.segment(0)
    nats, _ = net.net.loss(segment.tokens_BL, segment.targets_BL, doc_pos_BL=segment.doc_pos_BL)
    scored_BL = segment.targets_BL != IGNORED
    assert scored_BL.sum() == 12
    assert loss == pytest.approx(nats[scored_BL].mean().item(), rel=1e-6)


def test_segment_without_scored_targets_has_loss_zero(seeded, make_trainer):
    data = CorpusDataModule(corpus="sort", task=TaskConfig(length=8), tgt_len=7, batch_size=2)
    assert data.train_dataloader().stream.segment(0).loss_denominator == 0
    losses = fit(seeded(n_token=10), data, make_trainer(limit_val_batches=0, max_steps=3)).losses
    assert losses[0] == 0.0
    assert all(map(math.isfinite, losses))
