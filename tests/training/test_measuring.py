"""Validation and test depend only on the weights, the text and the lengths of evaluation."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from lightning.pytorch import seed_everything

from txl_lightning import CorpusDataModule, LanguageModel, TransformerXLConfig, stream_nats
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.model import EvalLengths
from txl_lightning.training.callbacks.predictions import SaveNats


def test_a_measurement_repeats_in_any_order_and_after_training(
    make_model, make_data, make_trainer
):
    model, data = make_model(), make_data()

    def measured(stage: str) -> float:
        run = getattr(make_trainer(limit_val_batches=1.0), stage)
        [found] = run(model, datamodule=data, verbose=False)
        return found[f"{'val' if stage == 'validate' else stage}/nats"]

    before = [measured(stage) for stage in ("validate", "test", "validate")]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    trainer = make_trainer(limit_val_batches=2, val_check_interval=2)
    trainer.fit(model, datamodule=data)
    changed = measured("validate")
    model.load_state_dict(weights)
    after = [measured(stage) for stage in ("test", "validate")]
    assert before[0] == before[2] == after[1] != changed
    assert before[1] == after[0]


@pytest.mark.parametrize(
    ("lengths", "ext_len"),
    [({}, 0), ({"ext_len": 7}, 7), ({"ext_len": 3, "eval_ext_len": 0}, 0)],
    ids=str,
)
def test_validation_equals_stream_nats(
    make_model, make_data, make_trainer, lengths, ext_len
):
    model, data = make_model(), make_data(eval_tgt_len=5, **lengths)
    trainer = make_trainer(limit_val_batches=1.0, precision="64-true")
    found = trainer.validate(model, datamodule=data, verbose=False)[0]
    how = {"batch_size": 4, "tgt_len": 5, "ext_len": ext_len}
    nats = stream_nats(model.net, data.store.ids("val"), **how)
    assert found["val/nats"] == pytest.approx(nats.mean().item(), rel=1e-6)
    assert found["val/bits_per_byte"] == pytest.approx(nats.mean().item() / math.log(2), rel=1e-6)
    assert found["val/perplexity"] == pytest.approx(nats.mean().exp().item(), rel=1e-6)


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


EVAL_LENGTHS = [
    {"eval_clamp_len": 9},
    {"eval_same_length": "mem_len+1"},
    {"eval_mem_len": 20, "eval_clamp_len": 2, "eval_same_length": "mem_len+1"},
]


def far_reading(make_model, **lengths) -> LanguageModel:
    """A network to which distance matters, with the lengths of its evaluation."""
    seed_everything(3, verbose=False)
    net = make_model(init_std=0.3, clamp_len=4, same_length="mem_len").net.config
    return LanguageModel(net, **lengths)


@pytest.mark.parametrize("lengths", EVAL_LENGTHS, ids=str)
def test_validation_uses_its_own_lengths(
    make_model, make_data, make_trainer, lengths
):
    model, data = far_reading(make_model, **lengths), make_data()
    found = make_trainer().validate(model, datamodule=data, verbose=False)[0]["val/nats"]

    def read(mem_len, clamp_len, same_length) -> float:
        memory, nats = model.net.empty_memory(4, EvalLengths(mem_len, clamp_len, same_length)), []
        for _, segment in zip(range(3), data.val_dataloader(), strict=False):
            nats_BL, memory = model.net.loss(segment.tokens_BL, segment.targets_BL, memory)
            nats.append(nats_BL)
        return torch.cat(nats, dim=1).mean().item()

    trained = {"eval_mem_len": 12, "eval_clamp_len": 4, "eval_same_length": "mem_len"}
    assert found == pytest.approx(read(*(trained | lengths).values()), rel=1e-6)
    assert found != pytest.approx(read(*trained.values()), rel=1e-5)


@pytest.mark.parametrize("lengths", EVAL_LENGTHS, ids=str)
def test_training_does_not_use_the_lengths_of_evaluation(
    make_model, make_data, make_trainer, lengths
):
    models = far_reading(make_model), far_reading(make_model, **lengths)
    for model in models:
        make_trainer(val_check_interval=2).fit(model, datamodule=make_data())
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("ext_len", [0, 5])
def test_predict_writes_the_nats_of_every_token_once(
    make_model, make_data, make_trainer, tmp_path, ext_len
):
    model, data = make_model(), make_data(eval_ext_len=ext_len)
    trainer = make_trainer(callbacks=[SaveNats()])
    returned = trainer.predict(model, datamodule=data)
    found = np.load(tmp_path / "runs" / "nats.npy")
    whole = torch.cat(returned, dim=1).numpy()
    np.testing.assert_array_equal(found, whole[:, ~np.isnan(whole).any(axis=0)])
    how = {"batch_size": 4, "tgt_len": 8, "ext_len": ext_len}
    nats = stream_nats(model.net, data.store.ids("test"), **how)
    np.testing.assert_allclose(found, nats.numpy(), rtol=1e-5, atol=1e-6)


def test_a_negative_evaluation_memory_is_refused():
    with pytest.raises(ValueError, match="eval_mem_len: invalid -1"):
        LanguageModel(eval_mem_len=-1)


@pytest.mark.parametrize("ext_len", [0, 1, 4, 20])
def test_a_task_logs_token_and_answer_accuracy(make_trainer, ext_len):
    """A network that has learnt nothing but zeros always says the first symbol."""
    task = TaskConfig(length=2, n_symbol=2, n_eval=64)
    data = CorpusDataModule(corpus="copy", task=task, tgt_len=3, batch_size=4, ext_len=ext_len)
    sizes = {"n_token": 4, "n_layer": 1, "n_head": 1, "d_model": 4, "mem_len": 8}
    model = LanguageModel(TransformerXLConfig(**sizes))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    trainer = make_trainer(limit_val_batches=1.0)
    found = trainer.validate(model, datamodule=data, verbose=False)[0]
    examples = data.store.text("val")
    answers = np.array([examples.example(n)[3:] for n in range(64)])
    assert found["val/token_accuracy"] == pytest.approx((answers == 0).mean())
    assert found["val/answer_accuracy"] == pytest.approx((answers == 0).all(axis=1).mean())
    assert "val/bits_per_byte" not in found


def test_bits_per_byte_of_words_are_those_of_their_bytes(make_model, make_data, make_trainer):
    data = make_data(vocab="characters")
    Path(data.config.path).write_text("some words in a line\n" * 200)
    words = make_data(vocab="words")
    found = []
    for corpus in (data, words):
        model = make_model(n_token=corpus.n_token)
        trainer = make_trainer(limit_val_batches=1.0)
        values = trainer.validate(model, datamodule=corpus, verbose=False)[0]
        bits = values["val/nats"] / math.log(2) / corpus.bytes_per_token("val")
        assert values["val/bits_per_byte"] == pytest.approx(bits)
        found.append(corpus.bytes_per_token("val"))
    assert found[0] == 1


def test_a_warm_up_is_not_counted(make_model, make_data, make_trainer):
    warm = make_data(eval_warmup_len=20, eval_batch_size=3)
    model = make_model(mem_len=400)
    trainer = make_trainer(limit_val_batches=1.0, precision="64-true")
    found = trainer.validate(model, datamodule=warm, verbose=False)[0]["val/nats"]
    ids = warm.store.ids("val")
    expected = []
    for row in range(3):
        start = max(row * 100 - 20, 0)
        part = ids[start : (row + 1) * 100]
        nats = stream_nats(model.net, part, batch_size=1, tgt_len=8, mem_len=400)[0]
        expected.append(nats[row * 100 - start - 1 :] if row else nats)
    assert found == pytest.approx(torch.cat(expected).mean().item(), rel=1e-6)


def test_a_limit_within_the_warm_up_is_refused(make_model, make_data, make_trainer):
    data = make_data(eval_warmup_len=40)
    with pytest.raises(ValueError, match=r"data\.eval_warmup_len: nothing was scored"):
        make_trainer(limit_val_batches=2).validate(make_model(), datamodule=data, verbose=False)


def test_answers_in_the_warm_up_are_not_counted(make_model, make_trainer):
    task, found = TaskConfig(length=3, n_eval=16), []
    for warmup_len in (0, 7, 14):
        options = {"tgt_len": 7, "batch_size": 4, "eval_warmup_len": warmup_len}
        data = CorpusDataModule(corpus="copy", task=task, **options)
        seed_everything(3, verbose=False)
        model = make_model(n_token=12)
        # It always says the mark, which is no answer.
        torch.nn.init.zeros_(model.net.head.out.weight)
        model.net.head.out.bias.data[11] = 1.0
        trainer = make_trainer(limit_val_batches=1.0)
        found.append(trainer.validate(model, datamodule=data, verbose=False)[0])
    assert [values["val/answer_accuracy"] for values in found] == [0.0] * 3


def test_a_clamp_len_of_0_holds_in_evaluation_too():
    for given, expected in ((None, 0), (1, 1)):
        config = TransformerXLConfig(positions="learned", clamp_len=0)
        model = LanguageModel(config, eval_clamp_len=given)
        assert model.memory_bank.reader.empty_memory(1, model.eval_lengths).clamp_len == expected


def test_eval_same_length_all_lifts_the_limit_of_training():
    config = TransformerXLConfig(same_length="mem_len")
    for given, expected in ((None, "mem_len"), ("all", None), ("mem_len+1", "mem_len+1")):
        model = LanguageModel(config, eval_same_length=given)
        assert model.memory_bank.reader.empty_memory(1, model.eval_lengths).same_length == expected
