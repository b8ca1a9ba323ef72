"""What is seen of a model is what the model does, and training does not notice."""

import numpy as np
import pytest
import torch

from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig, TransformerXLConfig
from txl_lightning.analysis.attention_distance import record_attention
from txl_lightning.data.stream import IGNORED
from txl_lightning.evaluation.scoring import segment_hidden
from txl_lightning.training import module as module_of
from txl_lightning.training.callbacks import validation_probe as looks_of
from txl_lightning.training.callbacks.validation_probe import ValidationProbe
from txl_lightning.training.callbacks.weight_averaging import WeightAverage


@pytest.fixture
def train(make_model, make_data, make_trainer):
    """Train with one who looks, and give the losses too."""

    def run(looks: ValidationProbe | None = None, optim=(), data=(), start=None, **options):
        losses, model = [], make_model(optim, dropout=0.1)
        model.on_train_batch_end = lambda outputs, *_: losses.append(outputs["loss"].item())
        options = {"val_check_interval": 3} | options
        trainer = make_trainer(callbacks=[looks] if looks else [], **options)
        trainer.fit(model, datamodule=make_data(**dict(data)), ckpt_path=start)
        return model, losses, trainer

    return run


def test_training_does_not_notice(train):
    torch.manual_seed(1)
    _, alone, _ = train()
    torch.manual_seed(1)
    _, seen, _ = train(ValidationProbe())
    assert seen == alone


def test_a_sample_goes_on_from_the_beginning_of_the_validation_text(train):
    looks = ValidationProbe(sample_len=50)
    _, _, trainer = train(looks, limit_val_batches=8)
    text = trainer.datamodule.store.ids("val")[:32].astype(np.uint8).tobytes().decode()
    assert [step for step, _ in looks.samples] == [3, 6]
    for _, sample in looks.samples:
        assert sample.startswith(text)
        assert len(sample) > looks.prompt == len(text) == 32


def test_without_a_length_there_is_no_sample(train):
    looks = ValidationProbe(sample_len=0)
    train(looks)
    assert looks.samples == []
    assert looks.nats


def test_nats_by_position_are_the_means_of_what_was_validated(train):
    looks, found = ValidationProbe(), []
    model, _, _ = train(looks, val_check_interval=6, limit_val_batches=3)
    step = model.validation_step
    model.validation_step = lambda *args: (found.append(step(*args)), found[-1])[1]
    trainer = model.trainer
    model.memory_bank.committed = {}
    trainer.validate(model, datamodule=trainer.datamodule, verbose=False)
    nats_L = torch.cat([nats_BL.double() for nats_BL in found]).nanmean(dim=0)
    assert [place for place, _ in looks.nats] == list(range(8))
    assert [nats for _, nats in looks.nats] == pytest.approx(nats_L.tolist(), rel=1e-6)


@pytest.mark.parametrize(
    ("data", "n_warm", "n_byte"),
    [
        ({}, 2, 6000),
        ({"eval_warmup_len": 16}, 4, 6000),
        ({"ext_len": 5}, 3, 6000),
        ({"eval_batch_size": 1}, 2, 860),
    ],
    ids=["no more", "warm-up", "read again", "short end"],
)
def test_attention_is_that_of_the_text_that_was_validated(train, text_file, data, n_warm, n_byte):
    """Counted by hand once the memory is full, in whole segments."""
    text_file.write_bytes(text_file.read_bytes()[:n_byte])
    looks = ValidationProbe()
    model, _, trainer = train(looks, data=data, val_check_interval=6, limit_val_batches=1.0)
    stream, net = trainer.val_dataloaders.stream, model.net.eval()
    memory, on_memory, n_query = net.empty_memory(1), torch.zeros(2, 2).double(), 0
    for index in range(min(len(stream), n_warm + 4)):
        row = stream.segment(index).rows(slice(1))
        with record_attention(net) as sums, torch.no_grad():
            _, memory = segment_hidden(net, row, memory, stream.ext_len)
        if index >= n_warm and row.new_len == 8:
            on_memory += torch.stack([each.memory_H for each in sums])
            n_query += sums[0].n_query
    assert n_query >= 16
    found = [row["on_memory"] for row in looks.attention]
    assert found == pytest.approx((on_memory / n_query).flatten().tolist())


def test_a_text_too_short_for_a_full_memory_says_nothing_of_attention(train):
    looks = ValidationProbe()
    train(looks, limit_val_batches=2)
    assert looks.attention == []
    assert looks.nats


def test_what_was_seen_is_kept_over_a_resume(train, tmp_path):
    first, second = ValidationProbe(20), ValidationProbe(20)
    _, _, trainer = train(first, max_steps=3)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    train(second, start=tmp_path / "a.ckpt")
    assert second.samples[: len(first.samples)] == first.samples
    assert [step for step, _ in second.samples] == [3, 6]


@pytest.fixture
def train_task(make_trainer, text_file):
    """Train on examples that do not see each other."""

    def run(looks: ValidationProbe, corpus: str, length: int, limit_val_batches: int):
        task = {"length": length, "n_symbol": 4, "n_eval": 64}
        sizes = {"tgt_len": 8, "batch_size": 4, "data_dir": text_file.parent}
        data = CorpusDataModule(corpus=corpus, task=task, **sizes)
        sizes = {"n_layer": 1, "n_head": 2, "d_model": 8, "mem_len": 8}
        model = LanguageModel(TransformerXLConfig(n_token=data.n_token, **sizes))
        how = {"val_check_interval": 6, "limit_val_batches": limit_val_batches}
        trainer = make_trainer(callbacks=[looks], **how)
        trainer.fit(model, datamodule=data)
        return trainer

    return run


def test_a_place_where_nothing_is_scored_is_left_out_and_moves_no_other(train_task):
    looks = ValidationProbe(sample_len=0)
    trainer = train_task(looks, "copy", length=3, limit_val_batches=1)
    scored = trainer.val_dataloaders.stream.segment(0).targets_BL.ne(IGNORED).any(dim=0)
    assert 0 < scored.sum() < 8
    assert [place for place, _ in looks.nats] == scored.nonzero().flatten().tolist()


def test_heads_do_not_look_into_another_text(train_task):
    """An example that is a segment long remembers nothing of its own."""
    looks = ValidationProbe(sample_len=0)
    train_task(looks, "sort", length=4, limit_val_batches=5)
    assert [row["on_memory"] for row in looks.attention] == [0, 0]
    train_task(looks, "sort", length=8, limit_val_batches=5)
    assert all(0 < row["on_memory"] < 0.5 for row in looks.attention)


def test_attention_is_that_of_the_lengths_that_validation_has(make_data, make_trainer):
    """Heads that see the same four states alike look half way back."""
    looks, sizes = (
        ValidationProbe(sample_len=0),
        {"n_token": 256, "n_layer": 1, "n_head": 2, "d_model": 8},
    )
    config = TransformerXLConfig(**sizes, mem_len=12)
    still = OptimConfig(lr=1e-9)
    model = LanguageModel(config, still, eval_mem_len=4, eval_same_length="mem_len")
    with torch.no_grad():
        for parameter in [*model.net.positions.parameters()]:
            parameter.zero_()
        for layer in model.net.layers:
            layer.attention.q_net.weight.zero_()
    trainer = make_trainer(callbacks=[looks], val_check_interval=6, limit_val_batches=5)
    trainer.fit(model, datamodule=make_data())
    assert [row["mean"] for row in looks.attention] == pytest.approx([1.5, 1.5], rel=1e-4)


def test_a_warm_up_is_no_text_to_go_on_from(train):
    looks = ValidationProbe(sample_len=10)
    _, _, trainer = train(looks, data={"eval_warmup_len": 16}, limit_val_batches=8)
    text = trainer.datamodule.store.ids("val")[:32].astype(np.uint8).tobytes().decode()
    assert looks.samples[0][1].startswith(text)


def test_it_looks_at_the_weights_that_were_measured(train, make_model, make_data, make_trainer):
    seen = {}

    class Compared(ValidationProbe):
        def sample(self, trainer, pl_module, text_T):
            weights = pl_module.net.state_dict()
            mean = average.average.state_dict()
            seen[trainer.global_step] = all(weights[k].equal(mean[k]) for k in weights)
            return super().sample(trainer, pl_module, text_T)

    average = WeightAverage(decay=0.5)
    # As the command line has them: those of a config first.
    trainer = make_trainer(callbacks=[average, Compared(5)], val_check_interval=3)
    trainer.fit(make_model(), datamodule=make_data())
    assert seen == {3: True, 6: True}


def test_only_the_first_of_several_texts_is_looked_at(train, make_data, monkeypatch):
    one, two = ValidationProbe(0), ValidationProbe(0)
    train(one)
    loader = CorpusDataModule.val_dataloader
    monkeypatch.setattr(CorpusDataModule, "val_dataloader", lambda self: [loader(self)] * 2)
    torch.manual_seed(0)
    train(two)
    assert [place for place, _ in two.nats] == [place for place, _ in one.nats]
    assert two.nats[0][1] > 0


@pytest.mark.parametrize(
    "sizes", [{"mem_len": 0}, {"positions": "absolute_sinusoidal"}], ids=["no memory", "absolute"]
)
def test_a_model_that_cannot_remember_goes_on_from_what_it_reads_again(
    make_model, make_data, make_trainer, sizes, monkeypatch
):
    given = []
    generate = looks_of.generate
    monkeypatch.setattr(
        looks_of,
        "generate",
        lambda *args, **how: (given.append(how["ext_len"]), generate(*args, **how))[1],
    )
    trainer = make_trainer(callbacks=[ValidationProbe(5)], val_check_interval=6)
    trainer.fit(make_model(**{"mem_len": 0} | sizes), datamodule=make_data())
    assert given == [looks_of.PROMPT]


def test_a_compiled_model_is_not_asked_to_write(make_data, make_trainer, monkeypatch):
    monkeypatch.setattr(module_of, "compile_in_place", lambda net: None)
    looks, sizes = ValidationProbe(5), {"n_token": 256, "n_layer": 1, "n_head": 2, "d_model": 8}
    model = LanguageModel(TransformerXLConfig(**sizes, mem_len=8), compile=True)
    trainer = make_trainer(callbacks=[looks], val_check_interval=6)
    trainer.fit(model, datamodule=make_data())
    assert (looks.samples, looks.attention) == ([], [])
    assert looks.nats


def test_all_that_was_seen_is_in_the_checkpoint(train, tmp_path):
    first, second = ValidationProbe(20), ValidationProbe(20)
    _, _, trainer = train(first, limit_val_batches=5)
    trainer.save_checkpoint(tmp_path / "a.ckpt")
    [kept] = [
        state
        for state in torch.load(tmp_path / "a.ckpt", weights_only=True)["callbacks"].values()
        if "samples" in state
    ]
    second.load_state_dict(kept)
    assert second.state_dict() == first.state_dict()
    assert all(first.state_dict().values())
