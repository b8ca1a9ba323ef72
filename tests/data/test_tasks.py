"""Generated tasks, whose answers need a memory."""

import numpy as np
import pytest
import torch

from txl_lightning import CorpusDataModule
from txl_lightning.data.stream import IGNORED, Stream
from txl_lightning.data.tasks import TaskConfig, TaskStore
from txl_lightning.data.tokens import FixedLengths


def example(name: str, **sizes) -> list[str]:
    store = TaskStore(name, TaskConfig(**sizes))
    return [store.vocab.words[index] for index in store.text("train").draw_example(0)]


def test_answers_are_sorted_or_copied_digits_or_the_value_of_the_key():
    symbols = example("sort", length=12)
    assert symbols[12:] == sorted(symbols[:12])
    assert len(set(symbols)) > 3
    symbols = example("copy", length=4, distance=3)
    assert symbols[4:] == [".", ".", ".", ">", *symbols[:4]]
    symbols = example("recall", length=5, distance=2)
    assert symbols[10:13] == [".", ".", ">"]
    values = dict(zip(symbols[0:10:2], symbols[1:10:2], strict=True))
    assert len(values) == 5
    assert symbols[14] == values[symbols[13]]


def test_recall_asks_for_a_pair_at_any_place():
    examples = TaskStore("recall", TaskConfig(length=5)).text("train")
    asked = [examples.draw_example(nth) for nth in range(40)]
    assert {ids[0:10:2].tolist().index(ids[-2]) for ids in asked} == set(range(5))


@pytest.mark.parametrize(("name", "tgt_len"), [("sort", 1), ("copy", 4), ("recall", 63)])
def test_only_answers_are_targets_and_each_example_attends_only_to_itself(name, tgt_len):
    store = TaskStore(name, TaskConfig(length=3, distance=2, n_eval=10))
    tokens = store.text("val")
    segments = list(Stream(tokens, 2, FixedLengths(tgt_len)))
    targets = torch.cat([segment.targets_BL for segment in segments], dim=1)
    answers = [tokens.draw_example(n)[-tokens.answer_len :] for n in range(10)]
    assert targets[targets != IGNORED].tolist() == np.concatenate(answers).tolist()
    doc_pos = torch.cat([segment.doc_pos_BL for segment in segments], dim=1)
    assert torch.equal(doc_pos, (torch.arange(doc_pos.size(1)) % store.example_len).expand(2, -1))


def test_splits_and_seeds_have_their_own_constant_examples():
    def first(split, seed):
        return TaskStore("sort", TaskConfig(seed=seed)).text(split).draw_example(0).tolist()

    drawn = [first(split, seed) for split in ("train", "val", "test") for seed in (1, 2)]
    assert len({tuple(example) for example in drawn}) == 6
    assert first("val", 2) == first("val", 2)


def test_training_examples_repeat_only_if_n_train_is_given():
    config = TaskConfig(length=2, n_train=6)
    stream = Stream(TaskStore("sort", config).text("train"), 2, FixedLengths(11))
    assert torch.equal(stream.segment(0).tokens_BL, stream.segment(1).tokens_BL)
    endless = TaskStore("sort", TaskConfig(length=2)).text("train")
    assert Stream(endless, 3, FixedLengths(11)).segment(10**9).tokens_BL.shape == (3, 11)
    assert len(endless) > 10**12


@pytest.mark.parametrize("name", ["length", "n_symbol", "distance", "n_train", "n_eval"])
def test_invalid_sizes_are_refused(name):
    with pytest.raises(ValueError, match=f"{name}: invalid -1; expected at least"):
        TaskConfig(**{name: -1})


@pytest.mark.parametrize("n_row", [4, 10, 16])
def test_evaluation_of_a_task_scores_all_of_its_examples(n_row):
    sizes = {"n_eval": 10, "length": 5}
    data = CorpusDataModule(corpus="sort", task=sizes, eval_batch_size=n_row, tgt_len=7)
    for loader in (data.val_dataloader(), data.test_dataloader()):
        assert sum((segment.targets_BL >= 0).sum().item() for segment in loader) == 10 * 5


def test_task_read_out_of_order_or_in_too_many_rows_is_refused():
    for change in ({"order": "rolled"}, {"segments": "varlen", "tgt_len": 8}):
        with pytest.raises(ValueError, match=r"data\.\w+: invalid \w+; expected \w+ for a task"):
            CorpusDataModule(corpus="copy", **change).train_dataloader()
    task = TaskConfig(n_train=10, n_eval=10)
    data = CorpusDataModule(corpus="copy", task=task, batch_size=16, tgt_len=20)
    with pytest.raises(ValueError, match=r"410 tokens are too few .*whole examples of 41"):
        data.train_dataloader()
