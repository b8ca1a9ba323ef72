"""Training keeps memories, and each stage its own."""

import math
from contextlib import nullcontext

import pytest
import torch
from lightning.pytorch import Callback, Trainer, seed_everything

from txl_lightning import LanguageModel, stream_nats
from txl_lightning.training import callbacks
from txl_lightning.training.callbacks import LastCheckpoint, SaveNats, Throughput


class Losses(Callback):
    """The loss of every step, and the training memory around every validation."""

    def __init__(self):
        self.losses, self.before, self.same = [], None, []

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
        self.losses.append(outputs["loss"].item())

    def on_validation_start(self, trainer, module):
        memory = module.memories.get(("train", 0))
        self.before = None if memory is None else memory.h_NBMD.clone()

    def on_validation_end(self, trainer, module):
        memory = module.memories.get(("train", 0))
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
        memory = None if segment.fresh_B.all() else memory
        nats, memory = net.nats(segment.tokens_BL, segment.targets_BL, memory)
        optimizer.zero_grad()
        nats.mean().backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        losses.append(nats.mean().item())
    return losses


def test_it_takes_the_steps_of_a_loop_written_by_hand(make_model, make_data, make_trainer):
    data = make_data(split=(0.1, 0.45, 0.45))
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
    assert {stage for stage, _ in model.memories} == {"train"}


def test_the_sanity_check_leaves_no_memory(make_model, make_data, make_trainer):
    class Look(Callback):
        def on_train_start(self, trainer, module):
            self.found = dict(module.memories), dict(module.eval_nats)

    look = Look()
    trainer = make_trainer(num_sanity_val_steps=2, callbacks=[look])
    trainer.fit(make_model(), datamodule=make_data())
    assert look.found == ({}, {})


def test_validation_is_the_protocol_of_the_final_table(make_model, make_data, make_trainer):
    model, data = make_model(), make_data(eval_tgt_len=5)
    trainer = make_trainer(limit_val_batches=1.0, precision="64-true")
    found = trainer.validate(model, datamodule=data, verbose=False)[0]
    nats = stream_nats(model.net, data.store.ids("val"), batch_size=4, tgt_len=5)
    assert found["val/nats"] == pytest.approx(nats.mean().item(), rel=1e-6)
    assert found["val/bits_per_byte"] == pytest.approx(nats.mean().item() / math.log(2), rel=1e-6)
    assert found["val/perplexity"] == pytest.approx(nats.mean().exp().item(), rel=1e-6)


def test_memory_carries_over_segments_and_is_reset_with_each_pass(
    make_model, make_data, make_trainer
):
    class Filled(Callback):
        def __init__(self):
            self.filled = []

        def on_train_batch_start(self, trainer, module, batch, batch_idx):
            if module.memories:
                self.filled.append(module.memories["train", 0].filled_B.tolist())

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


@pytest.mark.parametrize("lost", ["memory", "position", "random numbers"])
def test_a_resume_that_lost_something_is_seen(make_model, make_data, make_trainer, tmp_path, lost):
    class Lose(Callback):
        def on_load_checkpoint(self, trainer, module, checkpoint):
            if lost == "memory":
                checkpoint["txl_lightning"].pop("h")
            elif lost == "random numbers":
                checkpoint["txl_lightning"]["rng"] = torch.Generator().manual_seed(9).get_state()
            else:
                loaders = checkpoint["loops"]["fit_loop"]["state_dict"]["combined_loader"]
                loaders[0]["consumed"] = 0

    seed_everything(3, verbose=False)
    options = {"max_steps": 10, "limit_val_batches": 0, "callbacks": [Lose()]}
    said = pytest.warns(match="holds no memory") if lost == "memory" else nullcontext()
    with said:
        whole, resumed, *_ = interrupted(
            make_model, make_data, make_trainer, tmp_path / "a.ckpt", 6, {"dropout": 0.2}, options
        )
    assert resumed != whole[6:]


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
    memory = longer.memories["train", 0]
    assert (memory.mem_len, memory.filled_B.tolist()) == (20, [20] * 4)


def test_validating_alone_and_then_training_works(make_model, make_data, make_trainer):
    model, data = make_model(), make_data()
    make_trainer().validate(model, datamodule=data, verbose=False)
    losses = fit(model, data, make_trainer())
    assert len(losses) == 6


def test_an_evaluation_memory_may_be_longer_than_the_trained_one(
    make_model, make_data, make_trainer
):
    model = make_model()
    longer = LanguageModel(model.net.config, eval_mem_len=40)
    longer.load_state_dict(model.state_dict())
    data = make_data()
    found = make_trainer().validate(longer, datamodule=data, verbose=False)[0]["val/nats"]
    ids = data.store.ids("val")[: 4 * 75]
    nats = stream_nats(model.net, ids, batch_size=4, tgt_len=8, mem_len=40)[:, :24]
    assert found == pytest.approx(nats.mean().item(), rel=1e-5)


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


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true"])
def test_every_precision_trains_and_counts_right(make_model, make_data, make_trainer, precision):
    data = make_data()
    trainer = make_trainer(precision=precision, limit_val_batches=1.0, gradient_clip_val=0.25)
    model = seeded(make_model)
    losses = fit(model, data, trainer)
    assert all(map(math.isfinite, losses))
    found = trainer.validate(model, datamodule=data, verbose=False)[0]["val/nats"]
    whole = stream_nats(model.net.float(), data.store.ids("val"), batch_size=4, tgt_len=8)
    assert found == pytest.approx(whole.mean().item(), rel=0.02)


def test_predict_writes_the_nats_of_every_token(make_model, make_data, make_trainer, tmp_path):
    import numpy as np

    model, data = make_model(), make_data()
    trainer = make_trainer(callbacks=[SaveNats()])
    trainer.predict(model, datamodule=data, return_predictions=False)
    found = np.load(tmp_path / "runs" / "nats.npy")
    nats = stream_nats(model.net, data.store.ids("test"), batch_size=4, tgt_len=8)
    np.testing.assert_allclose(found, nats.numpy(), rtol=1e-5, atol=1e-6)


def test_throughput_counts_training_and_not_validation(
    make_model, make_data, make_trainer, monkeypatch
):
    class Clock(Callback):
        now = 0.0

        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 1

        def on_validation_batch_end(self, trainer, module, outputs, batch, batch_idx):
            self.now += 100

    clock = Clock()
    monkeypatch.setattr(callbacks.time, "perf_counter", lambda: clock.now)
    options = {"log_every_n_steps": 4, "val_check_interval": 3, "max_steps": 8}
    trainer = make_trainer(callbacks=[clock, Throughput()], **options)
    trainer.fit(make_model(), datamodule=make_data())
    assert trainer.callback_metrics["train/tokens_per_second"] == 4 * 8


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
                self.found.append((metrics["train/tokens"].item(), metrics["train/nats"].item()))

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


def test_a_negative_evaluation_memory_is_refused():
    with pytest.raises(ValueError, match="eval_mem_len: -1 is not possible"):
        LanguageModel(eval_mem_len=-1)
