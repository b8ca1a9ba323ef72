"""A corpus by name or one's own text, as segments."""

import pytest
import torch

from txl_lightning import CorpusDataModule
from txl_lightning.errors import DataError


def own(text_file, **changes) -> CorpusDataModule:
    options = {"path": str(text_file), "data_dir": str(text_file.parent / "data")}
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


@pytest.mark.parametrize(("given", "evaluated"), [({}, 3), ({"eval_ext_len": 0}, 0)])
def test_evaluation_reads_again_what_training_does_unless_given(text_file, given, evaluated):
    data = own(text_file, ext_len=3, **given)
    streams = [loader().stream for loader in (data.train_dataloader, data.val_dataloader)]
    assert [stream.ext_len for stream in streams] == [3, evaluated]


def test_the_position_means_something_with_what_is_read_again(text_file):
    assert own(text_file, ext_len=3).read_as() != own(text_file).read_as()
    assert own(text_file, eval_ext_len=3).read_as() == own(text_file).read_as()


def test_the_vocabulary_is_the_corpuss_own_unless_named(text_file):
    assert own(text_file).unit == "byte"
    assert own(text_file, vocab="characters").n_token == 26


def test_hyperparameters_say_which_text_it_was(text_file):
    data = own(text_file)
    data.setup("fit")
    assert data.hparams["data"]["fingerprint"] == data.store.fingerprint
    assert data.hparams["data"]["python"].startswith("3.")


def test_a_text_too_short_for_one_segment_is_refused(text_file):
    with pytest.raises(ValueError, match=r"train: 5400 tokens are too few for 4 rows of 2000 \+ 1"):
        own(text_file, tgt_len=2000).train_dataloader()


def test_an_evaluation_text_needs_only_one_target_in_each_row(text_file):
    segments = list(own(text_file, tgt_len=80).val_dataloader())
    assert [segment.targets_BL.shape for segment in segments] == [(4, 74)]
    with pytest.raises(ValueError, match=r"test: 300 tokens are too few for 151 rows of 1 \+ 1"):
        own(text_file, eval_batch_size=151).test_dataloader()


def test_a_checkpoint_of_another_vocabulary_or_text_is_refused_with_both_fingerprints(text_file):
    letters = own(text_file, vocab="characters")
    state = letters.state_dict()
    assert own(text_file, vocab="characters").load_state_dict(state) is None
    assert own(text_file, vocab="characters", batch_size=2).load_state_dict(state) is None
    said = (
        r"vocab: the checkpoint's is \w{16}, this text's \w{16}; .*of 26 and 256 tokens; pass the"
    )
    for accepted in (False, True):
        with pytest.raises(ValueError, match=said):
            own(text_file, allow_mismatch=accepted).load_state_dict(state)
    text_file.write_bytes(text_file.read_bytes()[::-1])
    changed = own(text_file, vocab="characters")
    said = rf"letters\.txt\): .*is {letters.store.fingerprint}, .*'s {changed.store.fingerprint};"
    with pytest.raises(ValueError, match=said):
        changed.load_state_dict(state)
    accepted = own(text_file, vocab="characters", allow_mismatch=True)
    with pytest.warns(UserWarning, match=r"data\.allow_mismatch is true"):
        accepted.load_state_dict(state)


def test_settings_may_be_plain_values(text_file):
    text_file.write_text("AB ab\n" * 500)
    data = own(text_file, vocab="words", words={"lower_case": True}, task={"length": 3})
    assert data.n_token == 3
    assert data.text.task.length == 3


def test_documents_are_read_as_given(tmp_path):
    for n in range(40):
        path = tmp_path / "texts" / f"{n:02}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes([65 + n]) * (n + 3))
    options = {"path": str(tmp_path / "texts"), "data_dir": str(tmp_path / "data"), "batch_size": 2}
    data = CorpusDataModule(tgt_len=8, order="shuffled", **options)
    stream = data.train_dataloader().stream
    for index in range(2 * len(stream)):
        segment = stream.segment(index)
        begins = segment.doc_pos_BL == 0
        again = segment.tokens_BL[:, 1:] != segment.tokens_BL[:, :-1]
        assert torch.equal(again, begins[:, 1:])
    with pytest.raises(DataError, match=r"data\.order: invalid shuffled"):
        CorpusDataModule(order="shuffled", document_unit="none", **options).train_dataloader()


def test_bits_per_byte_know_how_many_bytes_a_token_stands_for(text_file):
    text_file.write_text("ab cd\n" * 500)
    data = own(text_file, vocab="words")
    assert data.bytes_per_token("train") == 2.0
    text_file.write_text("ab cd\n" * 900 + "abcdefghijk\n" * 50)
    data = own(text_file, vocab="words", split=(0.9, 0.0, 0.1))
    assert (data.bytes_per_token("train"), data.bytes_per_token("test")) == (2.0, 6.0)
    assert own(text_file).bytes_per_token("train") == 1.0


@pytest.mark.parametrize("order", ["ordered", "rolled"])
@pytest.mark.parametrize("segments", ["fixed", "varlen"])
def test_every_order_and_length_is_a_choice(text_file, order, segments):
    data = own(text_file, order=order, segments=segments)
    assert next(iter(data.train_dataloader())).tokens_BL.size(0) == 4
    drawn = order == "rolled" or segments == "varlen"
    assert ("seed" in data.read_as()) == drawn


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tgt_len": -3}, "tgt_len: invalid -3"),
        ({"batch_size": 0}, "batch_size: invalid 0"),
        ({"eval_batch_size": 0}, "eval_batch_size: invalid 0"),
        ({"ext_len": -1}, "ext_len: invalid -1; expected at least 0"),
        ({"eval_ext_len": -2}, "eval_ext_len: invalid -2"),
        ({"eval_warmup_len": -1}, "eval_warmup_len: invalid -1"),
        ({"tgt_len": 4, "segments": "varlen"}, "tgt_len: invalid 4; .* at least 5"),
        ({"micro_batches": 0}, "micro_batches: invalid 0; expected at least 1"),
        ({"split": (0.5, 0.1, 0.1)}, "three fractions that add up to 1"),
    ],
)
def test_impossible_numbers_are_refused_before_anything_is_read(changes, message):
    with pytest.raises(ValueError, match=message):
        CorpusDataModule(path="not there", **changes)


def test_a_segment_moves_as_one(text_file):
    segment = next(iter(own(text_file).val_dataloader())).to("meta")
    assert segment.tokens_BL.device == segment.doc_pos_BL.device == torch.device("meta")
