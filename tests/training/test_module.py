"""Training takes the steps of a plain loop, and resumes bit for bit."""

import math

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch.optim.lr_scheduler import CosineAnnealingLR, ReduceLROnPlateau
from torch.utils.data import DataLoader

from txl_lightning import LanguageModel
from txl_lightning.data.stream import IGNORED, Stream
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.runs.folder import KEY
from txl_lightning.training.run_state import capture_state


def train_by_hand(model, data, steps: int) -> list[float]:
    net = model.net
    losses = []
    memory = None
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
def test_fit_takes_the_steps_of_a_plain_training_loop(fit, make_model, make_data, ext_len):
    changes = {"split": (0.05, 0.45, 0.5), "ext_len": ext_len}
    data = make_data(**changes)
    steps = len(data.train_dataloader().stream) + 3
    record = fit(data=changes, max_steps=steps, gradient_clip_val=0.25, precision="64-true")
    seed_everything(3, verbose=False)
    by_hand = train_by_hand(make_model().double(), data, steps)
    assert record.losses == pytest.approx(by_hand, abs=1e-12)


@pytest.mark.parametrize(("algorithm", "clip"), [("value", 1e-3), ("norm", 1e-2)])
def test_gradients_are_clipped_as_configured(fit, algorithm, clip):
    gradients = []
    look = Callback()
    look.on_before_zero_grad = lambda trainer, module, _: gradients.extend(
        parameter.grad for parameter in module.parameters() if parameter.grad is not None
    )
    fit(max_steps=2, callbacks=[look], gradient_clip_val=clip, gradient_clip_algorithm=algorithm)
    gradient = torch.cat([each.flatten() for each in gradients])
    size = gradient.abs().max() if algorithm == "value" else gradient.norm()
    assert size.item() == pytest.approx(clip, rel=1e-3)


def test_validation_and_sanity_check_leave_training_unchanged(fit, make_data, make_trainer):
    options = {"val_check_interval": 2, "num_sanity_val_steps": 2, "limit_val_batches": 3}
    disturbed = fit(max_steps=4, **options)
    assert disturbed.losses == fit(max_steps=4).losses
    assert disturbed.left == ({}, {})
    assert {stage for stage, _ in disturbed.model.memory_bank.committed} == {"train"}
    # A model can be trained after a validation without training.
    make_trainer().validate(disturbed.model, datamodule=make_data(), verbose=False)
    make_trainer(max_steps=1).fit(disturbed.model, datamodule=make_data())


@pytest.fixture
def interrupt(fit, tmp_path):
    """Train with a checkpoint at a step, and resume from it; return if it continues exactly."""

    def run(step, data=(), optim=(), **options) -> bool:
        path = tmp_path / "mid.ckpt"
        net = {"dropout": 0.2, "dropatt": 0.1, "optim": optim}
        options = {"max_steps": 6, "val_check_interval": 2, "limit_val_batches": 1} | options
        data = {"split": (0.02, 0.49, 0.49)} | dict(data)
        whole = fit(net, data, save=(path, step), **options)
        rest = fit(net, data, ckpt_path=path, **options)
        left = (options["max_steps"] - step) * options.get("accumulate_grad_batches", 1)
        assert len(rest.losses) == left
        return rest.continues(whole)

    return run


ON_GPU = [
    pytest.param(3, {"accelerator": "gpu", "precision": precision}, marks=pytest.mark.gpu)
    for precision in ("32-true", "bf16-mixed", "16-mixed")
]


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
        (4, {"data": {"order": "rolled", "segments": "varlen", "seed": 5}, "max_steps": 8}),
        (4, {"data": {"order": "shuffled", "document_unit": "lines"}, "max_steps": 8}),
        (4, {"data": {"ext_len": 20, "order": "rolled", "segments": "varlen"}, "max_steps": 8}),
        (4, {"data": {"micro_batches": 2}}),
        *ON_GPU,
    ],
    ids=str,
)
def test_resumed_training_equals_uninterrupted(interrupt, text_file, step, options):
    if data := options.get("data"):
        text = bytearray(text_file.read_bytes())
        text[::17] = b"\n" * len(text[::17])
        text_file.write_bytes(text)
        options = options | {"data": data | {"split": (0.1, 0.45, 0.45)}}
    assert interrupt(step, **options)


def test_resume_of_a_run_whose_optimizer_was_not_fused_is_exact(interrupt):
    def unfuse(trainer, module, checkpoint):
        for group in checkpoint["optimizer_states"][0]["param_groups"]:
            assert group.pop("fused")
            group["fused"] = None

    old = Callback()
    old.on_load_checkpoint = unfuse
    assert interrupt(3, callbacks=[old], optim={"name": "muon"})


@pytest.mark.parametrize("kind", [ReduceLROnPlateau, CosineAnnealingLR, None])
def test_schedule_that_a_resume_would_not_continue_exactly_is_refused(fit, make_model, kind):
    class Own(LanguageModel):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.1)
            options = {"T_max": 9} if kind is CosineAnnealingLR else {}
            schedule = kind and {"scheduler": kind(optimizer, **options), "monitor": "val/nats"}
            return {"optimizer": optimizer} | ({"lr_scheduler": schedule} if schedule else {})

    name = kind.__name__ if kind else "no scheduler"
    with pytest.raises(ValueError, match=f"^configure_optimizers: invalid {name}; expected one La"):
        fit(model=Own(make_model().hparams["net"]))


def test_reading_the_number_of_steps_keeps_the_position(interrupt, monkeypatch):
    answers = []
    configure = LanguageModel.configure_optimizers

    def ask(model):
        answers.append(model.trainer.estimated_stepping_batches)
        return configure(model)

    monkeypatch.setattr(LanguageModel, "configure_optimizers", ask)
    assert interrupt(3, max_epochs=2)
    assert answers == [6, 6]


def test_resumed_run_uses_the_new_settings(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    optim = {"schedule": "constant", "warmup_steps": 8, "lr": 0.01, "weight_decay": 0.1}
    fit({"optim": optim}, max_steps=3, save=(path, 3))
    now = {"optim": optim | {"lr": 1e-4, "weight_decay": 0.2}, "mem_len": 20}
    resumed = fit(now, max_steps=5, ckpt_path=path, log_every_n_steps=1)
    [optimizer] = resumed.trainer.optimizers
    memory = resumed.memory
    # After the resume, step 4 of the 8 warm-up steps is the first.
    assert [each["train/lr"] for each in resumed.logged] == pytest.approx([0.5e-4, 0.625e-4])
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.2, 0.0]
    assert {state["step"].item() for state in optimizer.state.values()} == {5}
    assert (memory.mem_len, memory.filled_B.tolist()) == (20, [20] * 4)


def test_run_resumed_with_more_steps_goes_on_along_the_longer_schedule(fit, tmp_path):
    path = tmp_path / "a.ckpt"
    optim = {"schedule": "cosine", "warmup_steps": 2, "lr": 0.01}
    options = {"log_every_n_steps": 1}
    fit({"optim": optim}, max_steps=6, save=(path, 6), **options)
    resumed = fit({"optim": optim}, max_steps=12, ckpt_path=path, **options)
    expected = [0.005 * (1 + math.cos(math.pi * (step - 2) / 10)) for step in range(6, 12)]
    assert [each["train/lr"] for each in resumed.logged] == pytest.approx(expected)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_logged_tokens_and_means_cover_the_steps_since_the_last_log(fit, accumulate):
    options = {"log_every_n_steps": 2, "accumulate_grad_batches": accumulate, "max_steps": 4}
    record = fit({"optim": {"schedule": "constant"}}, **options)
    window = 2 * accumulate
    names = [f"train/{name}" for name in ("tokens_seen", "nats", "loss", "lr", "mem_filled")]
    for n in (1, 2):
        nats = sum(record.losses[(n - 1) * window : n * window]) / 2
        actual = [record.logged[n * window - 1][name] for name in names]
        assert actual == pytest.approx([n * window * 32, nats, nats, 3e-3, 12], rel=1e-5)


@pytest.mark.parametrize(
    ("flags", "filled"),
    [
        ({"limit_train_batches": 4, "val_check_interval": 2}, [0, 8, 12, 12, 12, 12]),
        ({"limit_val_batches": 0.5, "val_check_interval": 4}, [0, 8, 12, 12, 12, 12]),
        ({"fast_dev_run": 3}, [0, 8, 12]),
        ({"overfit_batches": 2}, [0, 8, 12, 8, 12, 8]),
        # A pass has four segments, and the memory starts empty with each.
        ({"data": {"split": (0.02, 0.49, 0.49)}}, [0, 8, 12, 12, 12, 8]),
    ],
    ids=str,
)
def test_position_and_memory_are_correct_with_lightnings_flags(fit, flags, filled):
    record = fit(**{"limit_val_batches": 3} | flags)
    assert record.filled == filled
    assert [segment.index for segment in record.segments] == [*range(len(filled))]
    assert record.trainer.train_dataloader.consumed == len(filled)
    assert {stage for stage, _ in record.model.memory_bank.committed} == {"train"}


def test_overfit_batches_trains_on_the_same_segments(fit):
    record = fit({"optim": {"lr": 1e-2}}, overfit_batches=2, limit_val_batches=3)
    tokens = [segment.tokens_BL.tolist() for segment in record.segments]
    assert tokens[:2] == tokens[2:4] == tokens[4:]
    assert [segment.doc_pos_BL[0, 0] for segment in record.segments[:2]] == [0, 8]
    assert record.losses[4] < record.losses[0]
    # Also with a fraction of a pass.
    part = fit(data={"split": (0.02, 0.49, 0.49)}, overfit_batches=0.5, max_steps=1)
    assert part.trainer.train_dataloader.n_segment == 2


def test_a_limit_of_the_gradient_below_0_is_none_as_in_lightning(fit):
    losses = [fit(gradient_clip_val=limit).losses for limit in (None, -1.0)]
    assert losses[0] == losses[1]


def test_loss_is_the_mean_of_scored_targets(fit, make_model):
    net = {"n_token": 12, "mem_len": 0}
    data = {"path": None, "corpus": "copy", "task": TaskConfig(length=3), "tgt_len": 7}
    record = fit(net, data, max_steps=1)
    [segment] = record.segments
    seed_everything(3, verbose=False)
    nats, _ = make_model(**net).net.loss(
        segment.tokens_BL, segment.targets_BL, doc_pos_BL=segment.doc_pos_BL
    )
    scored_BL = segment.targets_BL != IGNORED
    assert scored_BL.sum() == 12
    assert record.losses == pytest.approx([nats[scored_BL].mean().item()], rel=1e-6)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_any_loader_of_tokens_and_targets_can_be_used_in_any_order(make_model, make_trainer):
    ids_NT = torch.randint(256, (24, 9))
    pairs = [(ids_T[:-1], ids_T[1:]) for ids_T in ids_NT]
    seed_everything(3, verbose=False)
    options = {"check_val_every_n_epoch": 1, "log_every_n_steps": 1}
    model = make_model()
    trainer = make_trainer(max_epochs=2, max_steps=-1, **options)
    with torch.no_grad():
        nats_NL, _ = model.net.loss(ids_NT[:, :-1], ids_NT[:, 1:])
    loaders = {"num_workers": 0, "batch_size": 6}
    [before] = trainer.validate(model, DataLoader(pairs, **loaders), verbose=False)
    assert before["val/loss"] == pytest.approx(nats_NL[:18].mean().item(), rel=1e-5)
    assert before.keys() == {
        f"val/{name}" for name in ("loss", "nats", "bits_per_token", "perplexity")
    }
    trainer.fit(model, DataLoader(pairs, shuffle=True, **loaders), DataLoader(pairs, **loaders))
    assert trainer.global_step == 8
    # The end of the schedule.
    assert trainer.optimizers[0].param_groups[0]["lr"] == pytest.approx(0, abs=1e-9)
    trainer.test(model, DataLoader(pairs, **loaders), verbose=False)
    assert len(trainer.predict(model, DataLoader(pairs, **loaders))) == 4


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_a_loader_of_segments_keeps_memory_in_training_and_predict(make_model, make_trainer):
    ids = np.random.default_rng(0).integers(256, size=83)
    segments = [*Stream.from_tokens(ids, batch_size=2, tgt_len=14)]
    loader = DataLoader(segments, batch_size=None)
    # The memory is longer than a row, so that segments have the losses of whole rows.
    model = make_model(n_layer=1, mem_len=64, init_std=1.0)
    trainer = make_trainer(max_steps=len(segments))
    rows_BT = torch.from_numpy(ids[:82].reshape(2, 41))
    with torch.no_grad():
        nats_BL, _ = model.net.loss(rows_BT[:, :-1], rows_BT[:, 1:])
        without = [model.net.loss(each.tokens_BL, each.targets_BL)[0] for each in segments]
    predicted_BL = torch.cat(trainer.predict(model, loader), 1)
    torch.testing.assert_close(predicted_BL, nats_BL, rtol=1e-4, atol=1e-4)
    assert (torch.cat(without, 1) - nats_BL)[:, 14:].abs().median() > 0.1
    trainer.fit(model, loader, loader)
    assert model.memory_bank.committed["train", 0].filled_B.tolist() == [40, 40]


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
def test_batches_of_another_kind_are_refused(make_model, make_trainer):
    zeros = torch.zeros(2, 3)
    for batch, words in (
        (zeros.long(), "a Tensor"),
        ((zeros, zeros), "a list"),
        ({"tokens": zeros.long()}, "a dict"),
        ([zeros[0].long()] * 2, "shapes \\[3\\] and \\[3\\]"),
    ):
        loader = DataLoader([batch], batch_size=None)
        for use, loaders in (("validate", [loader]), ("fit", [loader] * 2)):
            with pytest.raises(ValueError, match=rf"batch: invalid {words}; expected .tokens, tar"):
                getattr(make_trainer(), use)(make_model(), *loaders)


@pytest.mark.filterwarnings("ignore:.*does not have many workers")
@pytest.mark.parametrize(("added", "ids"), [((256, 0), "0 to 256"), ((0, -1), "-1 to 0")])
def test_ids_outside_the_vocabulary_are_refused(make_model, make_trainer, added, ids):
    loader = DataLoader([[torch.zeros(2, 3).long() + n for n in added]], batch_size=None)
    with pytest.raises(ValueError, match=f"batch: invalid ids from {ids}; expected ids from 0 to"):
        make_trainer().validate(make_model(), loader)


def test_vocabulary_larger_than_the_networks_is_refused(fit):
    message = r"net\.n_token: invalid 26; expected at least 256, the tokens in the data's vocab"
    with pytest.raises(ValueError, match=message):
        fit({"n_token": 26})


def test_segment_without_scored_targets_has_loss_zero(fit):
    task = {"path": None, "corpus": "sort", "task": TaskConfig(length=8), "tgt_len": 7}
    record = fit({"n_token": 10}, task | {"batch_size": 2}, max_steps=3)
    assert record.segments[0].loss_denominator == 0
    assert record.losses[0] == 0.0
    assert all(map(math.isfinite, record.losses))


def test_random_numbers_of_the_training_device_are_saved_after_the_weights_have_left_it(
    fit, monkeypatch
):
    record = fit(max_steps=1)
    monkeypatch.setattr(type(record.trainer.strategy), "root_device", torch.device("cuda"))
    # Stand-ins, because there may be no GPU here.
    monkeypatch.setattr(torch.cuda, "get_rng_state", lambda device: f"state of {device.type}")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    state = {"loops": {"fit_loop": record.trainer.fit_loop.state_dict()}}
    capture_state(record.trainer, record.model, state)
    assert record.model.device.type == "cpu"
    assert state[KEY]["ranks"][0]["rng"]["cuda"] == "state of cuda"
    assert state[KEY]["environment"]["device"] == "a GPU"
