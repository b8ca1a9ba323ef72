"""Text that a vocabulary does not know, and what is not text at all, are named where they count."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from txl_lightning.__main__ import require_utf8
from txl_lightning.commands.score import find_end
from txl_lightning.data.documents import whole_file
from txl_lightning.data.vocab import Bytes, Characters, Words
from txl_lightning.data.vocab.subwords import SubwordOptions, cut_long_words, train_subwords
from txl_lightning.data.vocab.words import WordOptions
from txl_lightning.errors import DataError
from txl_lightning.generation.prompts import encode_start

WORDS = Words.from_list(["<unk>", "a", "b"], WordOptions(line_end="none", unknown="unk"))


def test_a_start_is_what_the_vocabulary_knows():
    assert encode_start(Bytes()).tolist() == [10]
    assert encode_start(Characters("ACGT")).tolist() == [0]
    assert encode_start(Characters(" ab")).tolist() == [0]
    assert encode_start(WORDS).tolist() == [1]
    assert (find_end(Bytes()), find_end(Characters("ACGT"))) == ("\n", "")


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
    documents = whole_file(tmp_path / "a.txt")
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
