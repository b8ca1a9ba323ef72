"""Evaluation results depend only on the weights, the text and the lengths of evaluation."""

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from txl_lightning import CorpusDataModule, LanguageModel, TransformerXLConfig, stream_nats
from txl_lightning.data.tasks import TaskConfig
from txl_lightning.training.callbacks.save_run import SaveNats


@pytest.fixture
def measure(make_trainer):
    """Return the results of a stage over the whole text, or over a few segments."""

    def run(model, data, stage="validate", limit=1.0, **options) -> dict[str, float]:
        options |= {f"limit_{'val' if stage == 'validate' else stage}_batches": limit}
        trainer = make_trainer(**options)
        [results] = getattr(trainer, stage)(model, datamodule=data, verbose=False)
        return results

    return run


def test_results_are_the_same_in_any_order_and_after_training(
    make_model, make_data, make_trainer, measure
):
    model = make_model()
    data = make_data()
    before = [measure(model, data, stage) for stage in ("validate", "test", "validate")]
    weights = {name: weight.clone() for name, weight in model.state_dict().items()}
    make_trainer(limit_val_batches=2, val_check_interval=2).fit(model, datamodule=data)
    changed = measure(model, data)
    model.load_state_dict(weights)
    after = [measure(model, data, stage) for stage in ("test", "validate")]
    assert before[0] == before[2] == after[1] != changed
    assert before[1] == after[0]


FAR = {"init_std": 0.3, "clamp_len": 4, "same_length": "mem_len"}  # nats depend on distances


@pytest.mark.parametrize(
    ("reading", "settings", "protocol"),
    [
        ({}, {}, {}),
        ({"ext_len": 7}, {}, {"ext_len": 7}),
        ({"ext_len": 3, "eval_ext_len": 0}, {}, {}),
        ({}, {"eval_mem_len": 40}, {"mem_len": 40}),
        ({}, {"eval_clamp_len": 9}, {"clamp_len": 9}),
        ({}, {"eval_same_length": "mem_len+1"}, {"same_length": "mem_len+1"}),
    ],
    ids=str,
)
def test_validation_is_the_protocol_of_the_final_table(
    make_model, make_data, measure, reading, settings, protocol
):
    net = FAR if settings else {"init_std": 0.3}
    model = make_model(settings=settings, **net)
    data = make_data(eval_tgt_len=5, **reading)
    results = measure(model, data, precision="64-true")
    ids = data.store.ids("val")
    default, expected = (
        stream_nats(model.net, ids, batch_size=4, tgt_len=5, **how).mean() for how in ({}, protocol)
    )
    assert results["val/nats"] == results["val/loss"] == pytest.approx(expected.item(), rel=1e-6)
    assert results["val/bits_per_byte"] == pytest.approx(expected.item() / math.log(2), rel=1e-6)
    assert results["val/perplexity"] == pytest.approx(expected.exp().item(), rel=1e-6)
    assert (expected.item() == pytest.approx(default.item(), rel=1e-5)) is (protocol == {})


def test_eval_lengths_do_not_change_training(fit):
    settings = {"eval_mem_len": 40, "eval_clamp_len": 9, "eval_same_length": "mem_len+1"}
    options = {"val_check_interval": 2, "limit_val_batches": 3, "max_steps": 3}
    alone, measured = (fit(FAR | {"settings": each}, **options) for each in ({}, settings))
    assert measured.losses == alone.losses


def test_omitted_eval_lengths_are_those_of_training():
    def lengths(config, **changes):
        model = LanguageModel(TransformerXLConfig(**config), **changes)
        return model.memory_bank.reader.empty_memory(1, model.memory_bank.eval_lengths)

    learned = {"positions": "learned", "clamp_len": 5}
    equal = {"same_length": "mem_len"}
    assert lengths(learned).clamp_len == 5
    assert lengths(learned, eval_clamp_len=1).clamp_len == 1
    assert lengths(equal).same_length == "mem_len"
    assert lengths(equal, eval_same_length="all").same_length is None
    assert lengths(equal, eval_same_length="mem_len+1").same_length == "mem_len+1"
    with pytest.raises(ValueError, match="eval_mem_len: invalid -1"):
        LanguageModel(eval_mem_len=-1)
    plain = TransformerXLConfig(n_layer=1, n_head=2, d_model=8, mem_len=0)
    with pytest.warns(UserWarning, match="eval_mem_len 8: evaluation reads a memory that"):
        LanguageModel(plain, eval_mem_len=8)


@pytest.mark.parametrize("ext_len", [0, 5])
def test_predict_writes_the_nats_of_every_token_once(
    make_model, make_data, make_trainer, tmp_path, ext_len
):
    model = make_model()
    data = make_data(eval_ext_len=ext_len)
    returned = make_trainer(callbacks=[SaveNats(tmp_path / "runs")]).predict(model, datamodule=data)
    actual = np.load(tmp_path / "runs" / "nats.npy")
    whole = torch.cat(returned, dim=1).numpy()
    np.testing.assert_array_equal(actual, whole[:, ~np.isnan(whole).any(axis=0)])
    how = {"batch_size": 4, "tgt_len": 8, "ext_len": ext_len}
    nats = stream_nats(model.net, data.store.ids("test"), **how)
    np.testing.assert_allclose(actual, nats.numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("ext_len", [0, 1, 20])
def test_task_reports_the_accuracy_of_answers(measure, ext_len):
    """A network of zeros always answers with the first symbol."""
    task = TaskConfig(length=2, n_symbol=2, n_eval=64)
    data = CorpusDataModule(corpus="copy", task=task, tgt_len=3, batch_size=4, ext_len=ext_len)
    sizes = {"n_token": 4, "n_layer": 1, "n_head": 1, "d_model": 4, "mem_len": 8}
    model = LanguageModel(TransformerXLConfig(**sizes))
    for parameter in model.parameters():
        torch.nn.init.zeros_(parameter)
    results = measure(model, data)
    examples = data.store.text("val")
    answers = np.array([examples.draw_example(n)[3:] for n in range(64)])
    assert results["val/token_accuracy"] == pytest.approx((answers == 0).mean())
    assert results["val/answer_accuracy"] == pytest.approx((answers == 0).all(axis=1).mean())
    assert "val/bits_per_byte" not in results


def test_bits_per_byte_of_words_are_those_of_their_bytes(make_model, make_data, measure):
    data = make_data(vocab="characters")
    Path(data.config.path).write_text("some words in a line\n" * 200)
    for corpus in (data, make_data(vocab="words")):
        values = measure(make_model(n_token=corpus.n_token), corpus)
        bits = values["val/nats"] / math.log(2) / corpus.bytes_per_token("val")
        assert values["val/bits_per_byte"] == pytest.approx(bits)
    assert data.bytes_per_token("val") == 1 < corpus.bytes_per_token("val")


def test_warmup_is_not_scored_and_a_split_without_scored_tokens_is_refused(
    make_model, make_data, measure
):
    data = make_data(eval_warmup_len=20, eval_batch_size=3)
    model = make_model(mem_len=400)
    actual = measure(model, data, precision="64-true")["val/nats"]
    ids = data.store.ids("val")
    expected = []
    for row in range(3):
        start = max(row * 100 - 20, 0)
        part = ids[start : (row + 1) * 100]
        nats = stream_nats(model.net, part, batch_size=1, tgt_len=8, mem_len=400)[0]
        expected.append(nats[row * 100 - start - 1 :] if row else nats)
    assert actual == pytest.approx(torch.cat(expected).mean().item(), rel=1e-6)
    with pytest.raises(ValueError, match=r"data\.eval_warmup_len: nothing was scored"):
        measure(model, make_data(eval_warmup_len=40), limit=2)


@pytest.mark.parametrize("warmup_len", [0, 7, 14])
def test_answers_in_the_warmup_are_not_counted(make_model, measure, warmup_len):
    options = {"tgt_len": 7, "batch_size": 4, "eval_warmup_len": warmup_len}
    data = CorpusDataModule(corpus="copy", task=TaskConfig(length=3, n_eval=16), **options)
    model = make_model(n_token=12)
    # It always predicts the mark, which is never an answer.
    torch.nn.init.zeros_(model.net.head.out.weight)
    model.net.head.out.bias.data[11] = 1.0
    assert measure(model, data)["val/answer_accuracy"] == 0.0
