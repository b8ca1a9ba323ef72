"""What memory saves is measured on the tokens that were validated, and training does not notice."""

import pytest
import torch
from lightning.pytorch import Callback

from txl_lightning import CorpusDataModule
from txl_lightning.data.stream import IGNORED
from txl_lightning.evaluation.scoring import segment_nats
from txl_lightning.training import module as module_of
from txl_lightning.training.callbacks import memory_gain as gain_of
from txl_lightning.training.callbacks.memory_gain import MemoryGain

NAME = "val/saved_by_memory"


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train; the model, its losses and the trainer."""

    def run(*callbacks, sizes=(), data=(), **options):
        torch.manual_seed(0)
        losses, model = [], make_model(dropout=0.1, **dict(sizes))
        with torch.no_grad():
            # Or what is remembered would change next to nothing.
            for parameter in model.net.parameters():
                parameter.mul_(8)
        model.on_train_batch_end = lambda outputs, *_: losses.append(outputs["loss"].item())
        options = {"val_check_interval": 6, "limit_val_batches": 1.0} | options
        trainer = make_trainer(callbacks=[*callbacks], **options)
        trainer.fit(model, datamodule=make_data(**dict(data)))
        return model, losses, trainer

    return run


def by_hand(net, stream, segments: range) -> float:
    """Read with a memory and without, where each layer's states are all computed again."""
    costs = torch.zeros(2).double()
    count = 0
    for at, mem_len in enumerate((0, net.config.mem_len)):
        memory = net.empty_memory(stream.batch_size, mem_len)
        for index in range(segments.stop):
            segment = stream.segment(index)
            nats_BL, memory = segment_nats(net, segment, memory, stream.ext_len)
            if index in segments:
                costs[at] += nats_BL[segment.targets_BL != IGNORED].sum()
                count += (segment.targets_BL != IGNORED).sum().item() * at
    return ((costs[0] - costs[1]) / count).item()


@pytest.mark.parametrize(
    ("data", "since"),
    [({}, 2), ({"eval_warmup_len": 16}, 4), ({"ext_len": 5}, 3)],
    ids=["no more", "warm-up", "read again"],
)
@torch.no_grad()
def test_it_is_what_the_same_tokens_cost_more_without_a_memory(train, monkeypatch, data, since):
    monkeypatch.setattr(gain_of, "SEGMENTS", 3)
    with torch.enable_grad():
        model, _, trainer = train(MemoryGain(), data=data)
    expected = by_hand(model.net.eval(), trainer.val_dataloaders.stream, range(since, since + 3))
    assert abs(expected) > 1e-2
    assert trainer.callback_metrics[NAME].item() == pytest.approx(expected, rel=1e-4)


def test_training_does_not_notice(train):
    _, alone, first = train(val_check_interval=3)
    _, seen, second = train(MemoryGain(), val_check_interval=3)
    assert seen == alone
    assert NAME in second.callback_metrics
    assert second.callback_metrics["val/nats"] == first.callback_metrics["val/nats"]


@pytest.mark.parametrize("changes", [{}, {"precision": "bf16-mixed"}, {"clamp": 2}], ids=str)
def test_before_anything_is_remembered_it_is_nothing(train, monkeypatch, changes):
    """The same computation, in the same precision and by the same distances, to the last bit."""
    monkeypatch.setattr(gain_of, "filling", lambda *_: 0)
    monkeypatch.setattr(gain_of, "SEGMENTS", 1)
    set_lengths = Callback()
    set_lengths.setup = lambda trainer, model, stage: setattr(
        model.memory_bank, "eval_lengths", (None, changes.get("clamp"), None)
    )
    options = {name: changes[name] for name in changes if name != "clamp"}
    _, _, trainer = train(set_lengths, MemoryGain(), **options)
    assert trainer.callback_metrics[NAME] == 0


def test_only_the_first_of_several_texts_is_read_so_and_only_in_training(train, monkeypatch):
    _, _, one = train(MemoryGain())
    loader = CorpusDataModule.val_dataloader
    other = CorpusDataModule.test_dataloader
    monkeypatch.setattr(
        CorpusDataModule, "val_dataloader", lambda self: [loader(self), other(self)]
    )
    model, _, two = train(MemoryGain())
    assert two.callback_metrics[NAME] == one.callback_metrics[NAME]
    two.validate(model, datamodule=two.datamodule, verbose=False)
    assert NAME not in two.callback_metrics


@pytest.mark.parametrize(
    "changes",
    [{"sizes": {"mem_len": 0}}, {"limit_val_batches": 2}],
    ids=["no memory", "never full"],
)
def test_where_there_is_nothing_to_compare_nothing_is_said(train, changes):
    _, _, trainer = train(MemoryGain(), **changes)
    assert "val/nats" in trainer.callback_metrics
    assert NAME not in trainer.callback_metrics


def test_a_compiled_model_is_not_asked(train, make_model, monkeypatch):
    monkeypatch.setattr(module_of, "compile_in_place", lambda net: None)
    model, _, trainer = train(MemoryGain())
    assert NAME in trainer.callback_metrics
    model.hparams["compile"] = True
    trainer.callback_metrics.clear()
    trainer.fit_loop.epoch_loop.max_steps = 12
    trainer.fit(model, datamodule=trainer.datamodule)
    assert "val/nats" in trainer.callback_metrics
    assert NAME not in trainer.callback_metrics
