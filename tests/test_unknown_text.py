"""Text that a vocabulary does not know, and what is not text at all, are named where they count."""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from txl_lightning import CorpusDataModule
from txl_lightning.__main__ import require_utf8
from txl_lightning.commands.inputs import read_ids
from txl_lightning.commands.score import find_end
from txl_lightning.data.text_files import slice_file
from txl_lightning.data.vocab import Bytes, Characters, Words
from txl_lightning.data.vocab.subwords import (
    SubwordOptions,
    Subwords,
    cut_long_words,
    train_subwords,
)
from txl_lightning.data.vocab.words import WordOptions
from txl_lightning.errors import DataError
from txl_lightning.generation.prompts import echo_prompt, encode_start

WORDS = Words.from_list(["<unk>", "a", "b"], WordOptions(line_end="none", unknown="unk"))


def test_a_start_is_what_the_vocabulary_knows():
    assert encode_start(Bytes()).tolist() == [10]
    assert encode_start(Characters("ACGT")).tolist() == [0]
    assert encode_start(Characters(" ab")).tolist() == [0]
    assert encode_start(WORDS).tolist() == [1]
    assert (find_end(Bytes()), find_end(Characters("ACGT"))) == ("\n", "")


def test_training_warns_of_a_vocabulary_that_does_not_know_the_text(tmp_path):
    (tmp_path / "text.txt").write_text("one two three two one\n" * 200)
    (tmp_path / "words.txt").write_text("one\ntwo\n")
    settings = {"path": tmp_path / "text.txt", "data_dir": tmp_path}
    # A line has five words and its end.
    unknown = CorpusDataModule(**settings, vocab=tmp_path / "words.txt")
    with pytest.warns(UserWarning, match="17% of the tokens are unknown: their loss is small"):
        unknown.setup("fit")
    unknown.setup("test")
    share = ", vocabulary of 4 words, 16.67% of the tokens unknown"
    assert unknown.store.describe().endswith(share)
    known = CorpusDataModule(**settings, vocab="words")
    known.setup("fit")
    assert "unknown" not in known.store.describe()


@pytest.fixture
def words_run(accepted, small, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "known.txt").write_text("one two three two one\n" * 200)
    (tmp_path / "other.txt").write_text("one eins zwei drei two\n" * 20)
    options = ("--data.path=known.txt", "--data.vocab=words", "--trainer.default_root_dir=runs")
    accepted("fit", *small, *options)
    return "runs/version_0"


def test_the_share_of_unknown_words_stands_beside_the_loss(txl, words_run):
    _, output = txl("evaluate", words_run, "--path=other.txt")
    assert json.loads(output.out)["unknown_share"] == pytest.approx(0.5, abs=0.01)
    assert "50." in output.err or "49." in output.err
    assert "of the tokens, which makes their loss small" in output.err
    _, output = txl("evaluate", words_run, "--path=known.txt")
    assert json.loads(output.out)["unknown_share"] == 0
    assert "unknown" not in output.err
    _, output = txl("recl", words_run, "--path=other.txt", "--max_context=8", "--step=4")
    assert "of the tokens are unknown to the vocabulary" in output.err
    _, output = txl("generate", words_run, "eins", "--max_new_tokens=1")
    assert "the prompt has text that the vocabulary does not know" in output.err


def test_a_prompt_is_printed_as_given(txl, words_run):
    _, output = txl("generate", words_run, "two   eins  One ", "--max_new_tokens=1", "--seed=1")
    assert output.out.startswith("two   eins  One")
    assert not output.out.startswith("two   eins  One  ")


@pytest.mark.parametrize(
    ("given", "decoded", "expected"),
    [
        ("a  zed", "a <unk>", "a  zed"),
        ("a\n", "a\n", "a\n"),
        ("a ", "a", "a"),
        ("a\ufffd", "a", "a"),
        ("a", "", "a"),
        (None, "\n", "\n"),
    ],
)
def test_an_echo_leaves_out_only_what_is_printed_with_the_next_token(given, decoded, expected):
    assert echo_prompt(given, decoded) == expected


def test_the_share_of_unknown_words_is_that_of_the_ids_that_are_read(words_run, capsys):
    Path("late.txt").write_text("one two\n" * 5 + "eins\n" * 5)
    vocab = Words.from_list(["<unk>", "one", "two"], WordOptions())
    assert len(read_ids(SimpleNamespace(data_settings={}), vocab, "late.txt", None, 6)) == 6
    assert "unknown" not in capsys.readouterr().err
    read_ids(SimpleNamespace(data_settings={}), vocab, "late.txt", None)
    assert "20.0% of the tokens are unknown" in capsys.readouterr().err


def test_inspect_and_recl_write_the_share_of_unknown_words(txl, words_run):
    txl("recl", words_run, "--path=other.txt", "--max_context=8", "--step=4", "--out=recl")
    options = ("--tokens=400", "--batch_size=1", "--tgt_len=4", "--mem_lens=4")
    txl("inspect", words_run, "--path=other.txt", *options, "--out=inspect")
    for path in ("recl/recl.json", "inspect/memory.json"):
        assert '"unknown_share": 0.5' in Path(path).read_text()


@pytest.mark.parametrize("end", ["\n", " one", ""])
def test_words_stand_as_given_in_a_surprisal_whatever_the_end(txl, words_run, end):
    Path("c.jsonl").write_text('{"candidates": ["one eins zwei"]}')
    words = ("score", words_run, "--candidates=c.jsonl", "--surprisal=true", f"--end={end}")
    [spans] = json.loads(txl(*words)[1].out)["words"]
    assert "".join(word for word, _ in spans) == "one eins zwei" + end


@pytest.mark.parametrize("name", ["ids.csv", "ids", "ids.npz"])
def test_ids_are_written_only_to_an_npy(refused, words_run, name):
    code, message = refused("generate", words_run, "one", f"--out_ids={name}")
    assert (code, "expected a file whose name ends with .npy" in message) == (2, True)


def test_letters_of_an_added_token_are_decoded_as_they_are():
    vocab = train_subwords("bpe", [], SubwordOptions(n_token=257))
    content = json.loads(vocab.tokenizer)
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized", "special"), False)
    content["added_tokens"] = [{"id": vocab.n_token, "content": "Österreich", **flags}]
    added = Subwords.from_tokenizer(content)
    text = "in Österreich, ÖsterreichÖsterreich ist Öl 🙂"
    ids = added.encode_text(text).tolist()
    assert added.n_token - 1 in ids
    assert (added.decode(ids), "".join(added.decode_stream(ids))) == (text, text)


def test_a_word_that_is_not_utf8_is_named():
    word = os.fsdecode(b"caf\xe9")
    with pytest.raises(DataError, match=r"^caf: character 4 is not UTF-8 text; expected words"):
        require_utf8(word)
    require_utf8("café")


def test_long_words_are_cut_and_others_stay():
    usual = ["some words, as they are ", "and more\n" * 20, "-" * 99 + "https://a.b/" + "c/d1" * 30]
    assert [*cut_long_words(usual)] == usual
    pieces = [*cut_long_words(["x" * 150 + " a"])]
    assert "".join(pieces) == "x" * 150 + " a"
    assert [len(piece) for piece in pieces] == [64, 64, 24]


def test_a_vocabulary_of_a_large_text_is_that_of_a_small_process(tmp_path, monkeypatch):
    letters = np.random.default_rng(0).integers(97, 123, 5000).astype(np.uint8)
    (tmp_path / "a.txt").write_bytes(letters.tobytes().replace(b"e", b" "))
    documents = slice_file(tmp_path / "a.txt")
    here = train_subwords("bpe", documents, SubwordOptions(n_token=300))
    monkeypatch.setattr("txl_lightning.data.vocab.subwords.TRAINED_HERE", 0)
    assert train_subwords("bpe", documents, SubwordOptions(n_token=300)) == here


@pytest.mark.slow
def test_a_signal_ends_the_training_of_a_vocabulary(tmp_path):
    letters = np.random.default_rng(0).integers(97, 117, 3_000_000).astype(np.uint8)
    (tmp_path / "protein.txt").write_bytes(letters.tobytes())
    command = [sys.executable, "-m", "txl_lightning", "prepare", "protein.txt", "--vocab=unigram"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert "training a vocabulary" in process.stderr.readline()
        process.terminate()
        # Without it, the training takes longer than this.
        assert process.wait(10) == 143
