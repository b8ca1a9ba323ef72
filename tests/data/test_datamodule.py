"""A corpus by name or one's own text, as segments."""

import pytest
import torch

from txl_lightning import CorpusDataModule
from txl_lightning.data import DataError


def own(text_file, **changes) -> CorpusDataModule:
    options = {"path": str(text_file), "root": str(text_file.parent / "data")}
    return CorpusDataModule(**options | {"tgt_len": 8, "batch_size": 4} | changes)


def test_ones_own_text_is_read_in_rows(text_file):
    data = own(text_file)
    segment = next(iter(data.train_dataloader()))
    text = text_file.read_bytes()
    row_len = int(0.9 * len(text)) // 4
    expected = [list(text[row * row_len : row * row_len + 8]) for row in range(4)]
    assert segment.tokens_BL.tolist() == expected


def test_evaluation_may_have_its_own_shape(text_file):
    data = own(text_file, eval_batch_size=1, eval_tgt_len=33)
    assert next(iter(data.val_dataloader())).tokens_BL.shape == (1, 33)
    assert next(iter(data.train_dataloader())).tokens_BL.shape == (4, 8)


def test_the_vocabulary_is_the_corpuss_own_unless_named(text_file):
    assert own(text_file).unit == "byte"
    assert own(text_file, vocab="characters").n_token == 26


def test_hyperparameters_say_which_text_it_was(text_file):
    data = own(text_file)
    data.setup("fit")
    assert data.hparams["data"]["sha256"] == data.store.sha256
    assert data.hparams["data"]["python"].startswith("3.")


def test_a_text_too_short_for_one_segment_is_refused(text_file):
    with pytest.raises(DataError, match=r"train: 5400 tokens are too few for 4 rows of 2000 \+ 1"):
        own(text_file, tgt_len=2000).train_dataloader()


def test_an_evaluation_text_needs_only_one_target_in_each_row(text_file):
    segments = list(own(text_file, tgt_len=80).val_dataloader())
    assert [segment.targets_BL.shape for segment in segments] == [(4, 74)]
    with pytest.raises(DataError, match=r"test: 300 tokens are too few for 151 rows of 1 \+ 1"):
        own(text_file, eval_batch_size=151).test_dataloader()


def test_a_checkpoint_with_another_vocabulary_is_refused(text_file):
    letters = own(text_file, vocab="characters")
    with pytest.raises(DataError, match="is not the checkpoint's vocabulary"):
        own(text_file).load_state_dict(letters.state_dict())
    assert own(text_file, vocab="characters").load_state_dict(letters.state_dict()) is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt_len": -3}, "tgt_len: -3 is not possible"),
        ({"batch_size": 0}, "batch_size: 0 is not possible"),
        ({"eval_batch_size": 0}, "eval_batch_size: 0 is not possible"),
        ({"split": (0.5, 0.1, 0.1)}, "three fractions that add up to 1"),
    ],
)
def test_impossible_numbers_are_refused_before_anything_is_read(changes, message):
    with pytest.raises(ValueError, match=message):
        CorpusDataModule(path="not there", **changes)


def test_a_segment_moves_as_one(text_file):
    segment = next(iter(own(text_file).val_dataloader())).to("meta")
    assert segment.tokens_BL.device == segment.fresh_B.device == torch.device("meta")
