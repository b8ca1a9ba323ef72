"""The text that a checkpoint is measured on: its run's, by splits, or another file."""

import re
from pathlib import Path

import pytest

from txl_lightning.checkpoints import load_run
from txl_lightning.commands.dataset import read_ids


def test_text_ids_are_those_of_the_run_or_of_a_file(run_folder, checkpoint, tmp_path):
    _, vocab = load_run(checkpoint)
    whole = (run_folder.parent / "letters.txt").read_bytes()
    parts = {"train": whole[:5400], "val": whole[5400:5700], "test": whole[5700:]}
    for split, text in parts.items():
        assert read_ids(str(checkpoint), vocab, None, split).tobytes() == text
    other = tmp_path / "other.txt"
    other.write_bytes(b"another text")
    assert read_ids(str(checkpoint), vocab, str(other), "val").tobytes() == b"another text"


@pytest.fixture
def words_checkpoint(txl, small, text_file):
    """A run on words."""
    text_file.write_text("ab cd\n" * 500)
    assert txl("fit", *small, "--data.vocab=words")[0] == 0
    return Path("runs", "version_0", "checkpoints", "last.ckpt")


def test_words_are_read_with_the_checkpoints_vocabulary(words_checkpoint):
    _, vocab = load_run(words_checkpoint)
    Path("other.txt").write_text("cd ab\nxy\n")
    ids = read_ids(str(words_checkpoint), vocab, "other.txt", "val")
    assert vocab.decode(ids.tolist()).split() == ["cd", "ab", "<unk>"]
    ids = read_ids(str(words_checkpoint), vocab, None, "val")
    assert set(vocab.decode(ids.tolist()).split()) == {"ab", "cd"}


def test_text_with_a_changed_vocabulary_is_refused(txl, words_checkpoint, text_file):
    text_file.write_text("ab xy\n" * 500)
    code, output = txl("inspect", words_checkpoint)
    assert code == 3
    assert re.search(r"the checkpoint's is \w{16}, this text's \w{16}", output.err)
