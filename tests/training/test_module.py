"""Training keeps memories, and each stage its own."""

import math
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from txl_lightning import CorpusDataModule, LanguageModel
from txl_lightning.data.stream import IGNORED
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.model.flops import flops_per_token
from txl_lightning.training.callbacks import throughput
from txl_lightning.training.callbacks.checkpointing import LastCheckpoint
from txl_lightning.training.callbacks.throughput import Throughput


class Losses(Callback):
    """The loss of every step, and the training memory around every validation."""

    def __init__(self):
        self.losses, self.before, self.same = [], None, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_validation_start(self, trainer, module):
        memory = module.memory_bank.committed.get(("train", 0))
        self.before = None if memory is None else memory.h_NBMD.clone()

    def on_validation_end(self, trainer, module):
        memory = module.memory_bank.committed.get(("train", 0))
        if memory is not None:
            self.same.append(torch.equal(memory.h_NBMD, self.before))


def fit(model, data, trainer: Trainer, **options) -> list[float]:
    record = Losses()
    trainer.callbacks.append(record)
    trainer.fit(model, datamodule=data, **options)
    return record.losses


def seeded(make_model, **changes) -> LanguageModel:
    seed_everything(3, verbose=False)
    return make_model(**changes)


def by_hand(model, data, steps: int) -> list[float]:
    """The same training as a loop that anyone can read."""
    net, losses, memory = model.net, [], None
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3, weight_decay=0.0)
    reading = iter(data.train_dataloader())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * 0.5 * (1 + math.cos(math.pi * step / steps))
        segment = next(reading)
        memory = None if (segment.doc_pos_BL[:, 0] == 0).all() else memory
        again = {"n_reread": min(data.ext_len, segment.tokens_BL.size(1))}
        nats, memory = net.loss(segment.tokens_BL, segment.targets_BL, memory, **again)
        nats = nats[:, segment.n_context :]
        optimizer.zero_grad()
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        losses.append(nats.mean().item())
    return losses


@pytest.mark.parametrize("ext_len", [0, 3, 20])
def test_it_takes_the_steps_of_a_loop_written_by_hand(make_model, make_data, make_trainer, ext_len):
    data = make_data(split=(0.1, 0.45, 0.45), ext_len=ext_len)
    steps = 2 * len(data.train_dataloader().stream) + 3
    options = {"max_steps": steps, "gradient_clip_val": 0.25, "precision": "64-true"}
    found = fit(seeded(make_model).double(), data, make_trainer(**options))
    expected = by_hand(seeded(make_model).double(), data, steps)
    assert found == pytest.approx(expected, abs=1e-12)


def test_validation_and_the_sanity_check_leave_training_as_it_was(
    make_model, make_data, make_trainer
):
    alone = fit(seeded(make_model), make_data(), make_trainer(limit_val_batches=0))
    record = Losses()
    trainer = make_trainer(val_check_interval=2, num_sanity_val_steps=2, callbacks=[record])
    model = seeded(make_model)
    disturbed = fit(model, make_data(), trainer)
    assert disturbed == alone
    assert record.same == [True, True, True]
    assert {stage for stage, _ in model.memory_bank.committed} == {"train"}


def test_the_sanity_check_leaves_no_memory(make_model, make_data, make_trainer):
    class Look(Callback):
        def on_train_start(self, trainer, module):
            self.found = dict(module.memory_bank.committed), dict(module.metrics)

    look = Look()
    trainer = make_trainer(num_sanity_val_steps=2, callbacks=[look])
    trainer.fit(make_model(), datamodule=make_data())
    assert look.found == ({}, {})


def test_memory_carries_over_segments_and_is_reset_with_each_pass(
    make_model, make_data, make_trainer
):
    class Filled(Callback):
        def __init__(self):
            self.filled = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if module.memory_bank.committed:
                self.filled.append(module.memory_bank.committed["train", 0].filled_B.tolist())

    record, data = Filled(), make_data(split=(0.02, 0.49, 0.49))
    assert len(data.train_dataloader().stream) == 4
    make_trainer(limit_val_batches=0, callbacks=[record]).fit(make_model(), datamodule=data)
    assert [filled[0] for filled in record.filled] == [8, 12, 12, 12, 8]


def interrupted(make_model, make_data, make_trainer, path, stop, changes, options):
    """The losses and weights of a run that saves at `stop`, and of one that resumes there."""

    class Save(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step == stop and not path.exists():
                trainer.save_checkpoint(path)

    data, model, record = make_data(split=(0.02, 0.49, 0.49)), make_model(**changes), Losses()
    # After the model's own callbacks, where Lightning's checkpoints are written.
    configured = [*model.configure_callbacks(), record, Save()]
    model.configure_callbacks = lambda: configured
    make_trainer(**options).fit(model, datamodule=data)
    other = make_model(**changes)
    losses = fit(other, data, make_trainer(**options), ckpt_path=path)
    return record.losses, losses, model, other


@pytest.mark.parametrize("stop", [1, 4, 7])
@pytest.mark.parametrize("name", ["adamw", "muon"])
@pytest.mark.parametrize("accumulate", [1, 2])
def test_interrupted_training_equals_uninterrupted(
    make_model, make_data, make_trainer, tmp_path, stop, name, accumulate
):
    seed_everything(3, verbose=False)
    options = {"max_steps": 10, "val_check_interval": 3, "accumulate_grad_batches": accumulate}
    changes = {"dropout": 0.2, "dropatt": 0.1, "optim": {"name": name}}
    path = tmp_path / "mid.ckpt"
    whole, resumed, model, other = interrupted(
        make_model, make_data, make_trainer, path, stop, changes, options
    )
    assert resumed == whole[-len(resumed) :]
    assert len(resumed) == (10 - stop) * accumulate
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("precision", ["64-true", "bf16-mixed", "bf16-true"])
def test_it_does_so_in_every_precision(make_model, make_data, make_trainer, tmp_path, precision):
    seed_everything(3, verbose=False)
    options = {"max_steps": 10, "limit_val_batches": 0, "precision": precision}
    whole, resumed, model, other = interrupted(
        make_model, make_data, make_trainer, tmp_path / "a.ckpt", 6, {"dropout": 0.2}, options
    )
    assert resumed == whole[6:]
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


LOSSES_OF = {
    "memory": lambda held: held["txl_lightning"].pop("memory"),
    "random numbers": lambda held: held["txl_lightning"]["ranks"][0]["rng"].update(
        torch=torch.Generator().manual_seed(9).get_state()
    ),
    "position": lambda held: held["loops"]["fit_loop"]["state_dict"]["combined_loader"][0].update(
        consumed=0
    ),
    "optimiser": lambda held: [
        moments["exp_avg"].zero_() for moments in held["optimizer_states"][0]["state"].values()
    ],
    "schedule": lambda held: held["lr_schedulers"][0].update(last_epoch=0),
}


@pytest.mark.parametrize("lost", LOSSES_OF)
def test_a_resume_that_lost_something_is_seen(make_model, make_data, make_trainer, tmp_path, lost):
    class Lose(Callback):
        def on_load_checkpoint(self, trainer, module, checkpoint):
            # Before anything of it is used.
            LOSSES_OF[lost](checkpoint)

    seed_everything(3, verbose=False)
    options = {"max_steps": 10, "limit_val_batches": 0, "callbacks": [Lose()]}
    said = pytest.warns(match="holds no memory") if lost == "memory" else nullcontext()
    with said:
        whole, resumed, *_ = interrupted(
            make_model, make_data, make_trainer, tmp_path / "a.ckpt", 6, {"dropout": 0.2}, options
        )
    assert resumed != whole[6:]


def test_a_resumed_run_trains_by_the_settings_given_now(
    make_model, make_data, make_trainer, tmp_path
):
    constant = {"schedule": "constant", "lr": 0.01, "weight_decay": 0.1}
    trainer = make_trainer(limit_val_batches=0, max_steps=3)
    trainer.fit(make_model(optim=constant), datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    trainer = make_trainer(limit_val_batches=0, max_steps=5)
    changed = make_model(optim={**constant, "lr": 1e-4, "weight_decay": 0.2})
    trainer.fit(changed, datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")
    decayed, rest = trainer.optimizers[0].param_groups
    assert (decayed["lr"], rest["lr"]) == (1e-4, 1e-4)
    assert (decayed["weight_decay"], rest["weight_decay"]) == (0.2, 0.0)
    moments = trainer.optimizers[0].state[decayed["params"][0]]
    assert moments["step"] == 5


def test_the_end_of_training_is_saved_and_goes_on(make_model, make_data, make_trainer, tmp_path):
    def run(folder, steps, **options):
        model = seeded(make_model, optim={"schedule": "constant"})
        changes = {"enable_checkpointing": True, "val_check_interval": 2, "max_steps": steps}
        changes["default_root_dir"] = str(tmp_path / folder)
        trainer = make_trainer(callbacks=[LastCheckpoint()], **changes)
        return fit(model, make_data(), trainer, **options)

    whole, first = run("whole", 9), run("first", 5)
    last = tmp_path / "first" / "checkpoints" / "last.ckpt"
    assert torch.load(last, weights_only=True)["global_step"] == 5
    assert first + run("second", 9, ckpt_path=last) == whole


def test_a_resume_with_another_mem_len_has_it(make_model, make_data, make_trainer, tmp_path):
    trainer = make_trainer(limit_val_batches=0)
    trainer.fit(make_model(), datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    longer = make_model(mem_len=20)
    options = {"limit_val_batches": 0, "max_steps": 8}
    make_trainer(**options).fit(longer, datamodule=make_data(), ckpt_path=tmp_path / "a.ckpt")
    memory = longer.memory_bank.committed["train", 0]
    assert (memory.mem_len, memory.filled_B.tolist()) == (20, [20] * 4)


def test_validating_alone_and_then_training_works(make_model, make_data, make_trainer):
    model, data = make_model(), make_data()
    make_trainer().validate(model, datamodule=data, verbose=False)
    losses = fit(model, data, make_trainer())
    assert len(losses) == 6


def test_checkpoints_load_without_running_anything(make_model, make_data, make_trainer, tmp_path):
    model = make_model(mem_len=5)
    trainer = make_trainer()
    trainer.fit(model, datamodule=make_data())
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    torch.load(tmp_path / "a.ckpt", weights_only=True)
    loaded = LanguageModel.load_from_checkpoint(tmp_path / "a.ckpt")
    assert loaded.net.config == model.net.config
    assert loaded.optim == model.optim
    for a, b in zip(loaded.parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("ext_len", [0, 5])
def test_throughput_counts_what_training_reads_first_and_not_validation(
    make_model, make_data, make_trainer, monkeypatch, ext_len
):
    class Clock(Callback):
        now = 0.0

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 1

        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 100

    clock = Clock()
    monkeypatch.setattr(throughput.time, "perf_counter", lambda: clock.now)
    options = {"log_every_n_steps": 4, "val_check_interval": 3, "max_steps": 8}
    trainer = make_trainer(callbacks=[clock, Throughput()], **options)
    trainer.fit(make_model(), datamodule=make_data(ext_len=ext_len))
    assert trainer.callback_metrics["train/tokens_per_second"] == 4 * 8
    each = flops_per_token(trainer.lightning_module.net, 8)
    found = trainer.callback_metrics["train/model_flops_per_second"].item()
    assert found == pytest.approx(4 * 8 * each)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_logged_tokens_and_means_are_those_of_the_steps_since(
    make_model, make_data, make_trainer, accumulate
):
    class Logged(Callback):
        def __init__(self):
            self.losses, self.found = [], []

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.losses.append(outputs["loss"].item() * accumulate)
            if module.is_logged(trainer.global_step, batch_idx):
                metrics = trainer.callback_metrics
                self.found.append(
                    (metrics["train/tokens_seen"].item(), metrics["train/nats"].item())
                )

    logged = Logged()
    options = {"log_every_n_steps": 2, "accumulate_grad_batches": accumulate}
    trainer = make_trainer(callbacks=[logged], limit_val_batches=0, **options)
    trainer.fit(make_model(), datamodule=make_data())
    window = 2 * accumulate
    for n, (tokens, nats) in enumerate(logged.found):
        assert tokens == (n + 1) * window * 32
        mean = sum(logged.losses[n * window : (n + 1) * window]) / window
        assert nats == pytest.approx(mean, rel=1e-5)
    assert len(logged.found) == 3


def seen_by_fit(model, data, trainer) -> list[tuple[int, int]]:
    """For each step, which segment it was and how much of it was remembered before."""

    class Seen(Callback):
        def __init__(self):
            self.steps = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            memory = module.memory_bank.committed.get(("train", 0))
            filled = 0 if memory is None else int(memory.filled_B.min())
            self.steps.append((batch.index, filled))

    seen = Seen()
    trainer.callbacks.append(seen)
    trainer.fit(model, datamodule=data)
    return seen.steps


IN_ORDER = [(0, 0), (1, 8), (2, 12), (3, 12), (4, 12), (5, 12)]


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, IN_ORDER),
        ({"limit_train_batches": 2}, IN_ORDER),
        ({"limit_train_batches": 4, "val_check_interval": 2}, IN_ORDER),
        ({"val_check_interval": 1, "limit_val_batches": 1.0}, IN_ORDER),
        ({"limit_val_batches": 0.5, "val_check_interval": 4}, IN_ORDER),
        ({"fast_dev_run": 3}, IN_ORDER[:3]),
        ({"overfit_batches": 2}, [*IN_ORDER[:3], (3, 8), (4, 12), (5, 8)]),
    ],
    ids=str,
)
def test_lightnings_flags_leave_position_and_memory_right(
    make_model, make_data, make_trainer, flags, expected
):
    data, model = make_data(), seeded(make_model)
    trainer = make_trainer(**flags)
    assert seen_by_fit(model, data, trainer) == expected
    loader = trainer.train_dataloader
    assert loader.consumed == len(expected)
    assert {stage for stage, _ in model.memory_bank.committed} == {"train"}


def test_overfit_batches_trains_on_the_same_segments_from_an_empty_memory(
    make_model, make_data, make_trainer
):
    class Read(Callback):
        def __init__(self):
            self.read = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            self.read.append((batch.tokens_BL.tolist(), batch.doc_pos_BL[0, 0].item()))

    record, model = Read(), seeded(make_model, optim={"lr": 1e-2})
    losses = fit(model, make_data(), make_trainer(overfit_batches=2, callbacks=[record]))
    assert record.read[0] == record.read[2] == record.read[4]
    assert record.read[1] == record.read[3] == record.read[5]
    assert [past for _, past in record.read] == [0, 8, 0, 8, 0, 8]
    assert losses[4] < losses[0]


def test_asking_for_the_number_of_steps_does_not_lose_the_position(
    make_model, make_data, make_trainer, tmp_path, monkeypatch
):
    asked, configure = [], LanguageModel.configure_optimizers

    def ask(model):
        asked.append(model.trainer.estimated_stepping_batches)
        return configure(model)

    monkeypatch.setattr(LanguageModel, "configure_optimizers", ask)
    seed_everything(3, verbose=False)
    options = {"max_steps": 10, "max_epochs": 1, "limit_val_batches": 0}
    whole, resumed, *_ = interrupted(
        make_model, make_data, make_trainer, tmp_path / "a.ckpt", 6, {}, options
    )
    assert asked == [10, 10]
    assert resumed == whole[6:]


@pytest.mark.parametrize(
    "reading",
    [
        {"order": "rolled"},
        {"segments": "varlen"},
        {"order": "rolled", "segments": "varlen", "seed": 5},
        {"order": "shuffled", "document_unit": "lines"},
        {"ext_len": 5},
        {"ext_len": 20, "order": "rolled", "segments": "varlen"},
    ],
    ids=str,
)
def test_interrupted_training_equals_uninterrupted_in_every_order(
    make_model, make_data, make_trainer, tmp_path, text_file, reading
):
    text = bytearray(text_file.read_bytes())
    text[::17] = b"\n" * len(text[::17])
    text_file.write_bytes(text)
    seed_everything(3, verbose=False)

    def make(**changes):
        return make_data(**changes, **reading)

    options = {"max_steps": 12, "val_check_interval": 3}
    changes = {"dropout": 0.2}
    path = tmp_path / "mid.ckpt"
    whole, resumed, model, other = interrupted(
        make_model, make, make_trainer, path, 7, changes, options
    )
    assert resumed == whole[7:]
    for a, b in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_loss_is_the_mean_of_what_is_scored(make_model, make_trainer):
    data = CorpusDataModule(corpus="copy", task=TaskConfig(length=3), tgt_len=7, batch_size=4)
    model = seeded(make_model, n_token=12, mem_len=0)
    loss = fit(model, data, make_trainer(max_steps=1, limit_val_batches=0))[0]
    segment = data.train_dataloader().stream.segment(0)
    fresh = seeded(make_model, n_token=12, mem_len=0)
    nats, _ = fresh.net.loss(segment.tokens_BL, segment.targets_BL, doc_pos_BL=segment.doc_pos_BL)
    scored_BL = segment.targets_BL != IGNORED
    assert scored_BL.sum() == 12
    assert loss == pytest.approx(nats[scored_BL].mean().item(), rel=1e-6)


def test_a_segment_without_anything_to_score_changes_nothing(make_model, make_trainer):
    data = CorpusDataModule(corpus="sort", task=TaskConfig(length=8), tgt_len=7, batch_size=2)
    assert data.train_dataloader().stream.segment(0).loss_denominator == 0
    losses = fit(seeded(make_model, n_token=10), data, make_trainer(limit_val_batches=0))
    assert losses[0] == 0.0
    assert all(map(math.isfinite, losses))


def test_a_part_of_a_pass_can_be_overfitted(make_model, make_data, make_trainer):
    data = make_data(split=(0.02, 0.49, 0.49))
    trainer = make_trainer(overfit_batches=0.5, limit_val_batches=0)
    fit(make_model(), data, trainer)
    assert trainer.train_dataloader.n_segment == 2
