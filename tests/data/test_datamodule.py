"""A corpus by name or a user's own text, as segments."""

import re
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from lightning.pytorch import Trainer

from txl_lightning import CorpusDataModule
from txl_lightning.data import datamodule
from txl_lightning.errors import DataError

LEAST = dict.fromkeys(("tgt_len", "batch_size", "eval_tgt_len", "eval_batch_size"), 1)
LEAST |= {"micro_batches": 1, "ext_len": 0, "eval_ext_len": 0, "eval_warmup_len": 0}


def test_own_text_is_read_in_rows_whatever_the_corpus(make_data, text_file):
    data = make_data(corpus="sort")
    text = text_file.read_bytes()
    segment = next(iter(data.train_dataloader()))
    assert data.bytes_per_token("train") == 1.0
    row_len = int(0.9 * len(text)) // 4
    assert segment.tokens_BL.tolist() == [list(text[n * row_len :][:8]) for n in range(4)]
    assert segment.to("meta").doc_pos_BL.device == torch.device("meta")


def test_the_text_is_prepared_where_python_leaves_out_asserts(text_file):
    path = Path(datamodule.__file__)
    names = {"__name__": datamodule.__name__, "__package__": datamodule.__package__}
    exec(compile(path.read_text(), path, "exec", optimize=1), names)
    names["CorpusDataModule"](path=text_file, data_dir=text_file.parent / "data").prepare_data()
    assert len([*text_file.parent.glob("data/prepared/*/train.ids")]) == 1


def test_hyperparameters_name_the_text_whose_settings_may_be_plain_values(make_data, text_file):
    text_file.write_text("AB ab\n" * 800 + "abcde\n" * 100 + "abcdefghijk\n" * 50)
    words = {"vocab": "words", "words": {"lower_case": True}, "split": (0.8, 0.1, 0.1)}
    data = make_data(**words)
    # The words of val are not in the training text.
    with pytest.warns(UserWarning, match="50% of the tokens are unknown"):
        data.setup("fit")
    assert (data.vocab.unit, data.n_token) == ("word", 3)
    sizes = [data.bytes_per_token(stage) for stage in ("train", "val", "test", "predict")]
    assert sizes == [2.0, 3.0, 6.0, 6.0]
    hparams = data.hparams["data"]
    assert hparams["fingerprint"] == data.store.fingerprint
    assert (hparams["eval_batch_size"], hparams["python"][:2]) == (4, "3.")


def test_evaluation_may_have_its_own_shape(make_data):
    data = make_data(eval_batch_size=1, eval_tgt_len=33, ext_len=3)
    assert next(iter(data.val_dataloader())).tokens_BL.shape == (1, 33)
    assert next(iter(data.train_dataloader())).tokens_BL.shape == (4, 8)
    assert data.val_dataloader().ext_len == 3
    assert make_data(ext_len=3, eval_ext_len=0).val_dataloader().ext_len == 0


@pytest.mark.parametrize(
    ("changes", "added"),
    [
        ({"ext_len": 3}, {"ext_len": 3}),
        ({"order": "rolled"}, {"order": "rolled", "seed": 1}),
        ({"segments": "varlen"}, {"segments": "varlen", "seed": 1}),
        ({"eval_ext_len": 3, "micro_batches": 2, "seed": 5}, {}),
    ],
    ids=str,
)
def test_position_depends_on_how_training_reads(make_data, changes, added):
    data = make_data(**changes)
    assert len(next(iter(data.train_dataloader())).tokens_BL) == 4
    assert data.list_reading_settings() == make_data().list_reading_settings() | added


def test_a_text_after_its_first_segments_alone_is_read_from_its_beginning(make_data):
    data = make_data()
    data.trainer = SimpleNamespace(overfit_batches=3, global_rank=0, world_size=1)
    data.trainer.lightning_module = None
    before = data.train_dataloader()
    before.commit([*islice(before, 10)][-1])
    after = make_data().train_dataloader()
    message = "from the start of the text: overfit_batches was 3, is None"
    with pytest.warns(UserWarning, match=message):
        after.load_state_dict(before.state_dict())
    assert after.consumed == 0


@pytest.mark.parametrize("name", ["path", "ids", "store", "vocab", "data_dir"])
@pytest.mark.parametrize("given", ["", "  "])
def test_an_empty_path_is_refused(name, given):
    expected = rf"{name}: invalid '{given}'; expected a path, not an empty text"
    with pytest.raises(ValueError, match=expected):
        _ = CorpusDataModule(**{name: given}).store


def test_an_empty_path_among_three_is_refused(text_file):
    with pytest.raises(ValueError, match="path: invalid ''; expected a path"):
        CorpusDataModule(path=[str(text_file), "", str(text_file)])


def test_tilde_is_the_home_folder_in_all_paths_of_a_text(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    settings = {"tgt_len": 4, "batch_size": 2, "data_dir": "~/data"}
    first = CorpusDataModule.from_texts(["a b c d"] * 20, "~/a.jsonl", vocab="bytes", **settings)
    assert len(first.store.text("train"))
    (tmp_path / "vocab.json").write_text(first.vocab.to_json())
    second = CorpusDataModule(path="~/a.jsonl", vocab="~/vocab.json", **settings)
    assert second.vocab == first.vocab
    assert {path.name for path in tmp_path.iterdir()} == {"a.jsonl", "data", "vocab.json"}


def test_the_home_of_nobody_is_no_folder(text_file):
    name = "~no_such_user_75/a"
    for settings in ({"vocab": name}, {"path": name}, {"store": name}):
        with pytest.raises(ValueError, match="no_such_user_75/a"):
            _ = CorpusDataModule(**{"path": str(text_file)} | settings).store


def test_text_too_short_for_the_rows_is_refused(make_data):
    train = r"train: 5400 tokens are too few for 4 rows of 2000 \+ 1 \(4 x 2001 = 8004\); lower"
    with pytest.raises(ValueError, match=train):
        make_data(tgt_len=2000).train_dataloader()
    # Evaluation needs only one target in each row.
    [segment] = make_data(tgt_len=80).val_dataloader()
    assert segment.targets_BL.shape == (4, 74)
    assert make_data(eval_batch_size=150).test_dataloader()
    with pytest.raises(ValueError, match=r"test: 300 tokens are too few for 151 rows of 1 \+ 1"):
        make_data(eval_batch_size=151).test_dataloader()


@pytest.mark.parametrize("names", [("train.txt", "val.txt"), ("1.txt", "2.txt")])
def test_a_split_without_a_text_is_named_with_what_gives_it_one(make_data, tmp_path, names):
    (tmp_path / "books").mkdir()
    for name in names:
        (tmp_path / "books" / name).write_text("ab\n" * 300)
    data = make_data(path=str(tmp_path / "books"))
    with pytest.raises(DataError, match=r"books, test: no text; give more documents, three texts"):
        data.test_dataloader()


def test_a_device_without_a_row_is_refused_in_training_only(make_data):
    class FourDevices(Trainer):
        world_size = 4
        global_rank = 3

    data = make_data(batch_size=3, eval_batch_size=3)
    data.trainer = FourDevices(logger=False, accelerator="cpu", enable_checkpointing=False)
    refusal = r"data\.batch_size: invalid 3; expected at least 4, the number of devices"
    with pytest.raises(ValueError, match=refusal):
        data.train_dataloader()
    assert not next(iter(data.val_dataloader())).targets_BL.ge(0).any()


def test_checkpoint_of_another_vocabulary_or_text_is_refused_with_both_fingerprints(
    make_data, text_file
):
    letters = make_data(vocab="characters")
    state = letters.state_dict()
    assert make_data(vocab="characters", batch_size=2).load_state_dict(state) is None
    sizes = r"vocab: the checkpoint's is \w{16}, this text's \w{16}; .*have 26 and 256 tokens; pass"
    for allowed in (False, True):
        with pytest.raises(DataError, match=sizes):
            make_data(allow_mismatch=allowed).load_state_dict(state)
    text_file.write_bytes(text_file.read_bytes()[::-1])
    changed = make_data(vocab="characters")
    both = rf"letters\.txt\): .*is {letters.store.fingerprint}, .*'s {changed.store.fingerprint};"
    with pytest.raises(DataError, match=both):
        changed.load_state_dict(state)
    with pytest.warns(UserWarning, match=r"data\.allow_mismatch is true"):
        make_data(vocab="characters", allow_mismatch=True).load_state_dict(state)


def test_shuffled_documents_begin_where_doc_pos_is_0(make_data, tmp_path):
    (tmp_path / "texts").mkdir()
    for n in range(40):
        (tmp_path / "texts" / f"{n:02}.txt").write_bytes(bytes([65 + n]) * (n + 3))
    options = {"path": str(tmp_path / "texts"), "batch_size": 2, "order": "shuffled"}
    for segment in islice(make_data(**options).train_dataloader(), 80):
        changes = segment.tokens_BL[:, 1:] != segment.tokens_BL[:, :-1]
        assert torch.equal(changes, segment.doc_pos_BL[:, 1:] == 0)
    with pytest.raises(DataError, match=r"data\.order: invalid shuffled"):
        make_data(**options, document_unit="none").train_dataloader()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        *(({n: v - 1}, f"{n}: invalid {v - 1}; expected at least {v}") for n, v in LEAST.items()),
        ({"tgt_len": 4, "segments": "varlen"}, "tgt_len: invalid 4; expected at least 5"),
        ({"split": (0.5, 0.1, 0.1)}, "split: invalid [0.5, 0.1, 0.1]; expected three fractions"),
        ({"batchsize": 4}, "batchsize: unknown key; did you mean batch_size?"),
        ({"colour": 4}, "colour: unknown key; see "),
        ({"vocab": 256}, "vocab: invalid 256; expected a text or null"),
        ({"path": [1]}, "path: invalid [1]; expected a text, a list of texts or null"),
        ({"split": ("a", "b", "c")}, "split: invalid ('a', 'b', 'c'); expected a list"),
        ({"words": "lower"}, "words: invalid 'lower'; expected WordOptions"),
    ],
    ids=str,
)
def test_misspelt_and_wrong_settings_are_refused_before_anything_is_read(changes, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        CorpusDataModule(**{"path": "not there"} | changes)


def test_texts_of_a_program_are_documents_in_a_file(tmp_path):
    path = tmp_path / "lines.jsonl"
    texts = (f"text {n}\n" * 3 for n in range(40))
    data = CorpusDataModule.from_texts(texts, path, batch_size=1, data_dir=tmp_path / "data")
    assert data.store.manifest["n_document"] == {"train": 37, "val": 2, "test": 1}
    sizes = "40 documents, 930 bytes, 930 tokens (858 train, 48 val, 24 test)"
    assert data.store.describe() == f"{sizes}, vocabulary of 256 bytes"
    [segment] = data.test_dataloader()
    assert data.vocab.decode(segment.tokens_BL[0])[:14] == "text 39\ntext 3"
    assert CorpusDataModule(path=path, data_dir=tmp_path / "data").store == data.store
    for wrong, message in ((["a", 5], "invalid 5; expected texts"), ("ab", "invalid one text")):
        with pytest.raises(ValueError, match=message):
            CorpusDataModule.from_texts(wrong, path)
    with pytest.raises(ValueError, match=r"path: invalid .*a\.txt; expected a file whose name"):
        CorpusDataModule.from_texts(["a"], tmp_path / "a.txt")
    assert CorpusDataModule(path=path, data_dir=tmp_path / "data").store == data.store
