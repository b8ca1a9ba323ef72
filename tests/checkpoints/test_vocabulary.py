"""Vocabularies of other codes: the order gives the ids, and nothing is added."""

import json
import pickle

import pytest

from txl_lightning.checkpoints.contents import load_vocabulary_in, read_vocabulary
from txl_lightning.data.vocab import Bytes, Characters
from txl_lightning.errors import DataError

WORDS = ["<eos>", "the", "<unk>", "cat"]
FORMS = {
    "text": "\n".join(WORDS),
    "text with counts": "\n".join(f"{word} {n}" for n, word in enumerate(WORDS)) + "\n",
    "list": json.dumps(WORDS),
    "ids": json.dumps({word: n for n, word in reversed(list(enumerate(WORDS)))}),
}


@pytest.mark.parametrize("form", FORMS)
def test_words_are_the_same_in_every_format(tmp_path, form):
    (tmp_path / "words").write_text(FORMS[form])
    vocab = read_vocabulary(str(tmp_path / "words"), 4)
    assert list(vocab.words) == WORDS
    assert vocab.encode_text("the cat sat\nthe").tolist() == [1, 3, 2, 0, 1]


def test_lines_end_with_the_symbol_that_is_among_the_words(tmp_path):
    path = tmp_path / "words.txt"
    ends = {"<eos>\na": [1, 0, 1], "<S>\na": [0, 1, 0, 0, 1], "a\nb": [0, 0]}
    for words, expected in ends.items():
        path.write_text(words)
        vocab = read_vocabulary(str(path), 2)
        assert vocab.encode_text("a\na").tolist() == expected
        with pytest.raises(DataError, match="'c' is not among"):
            vocab.encode_text("c")


def test_saved_vocabulary_and_bytes_are_read(tmp_path):
    (tmp_path / "vocab.json").write_text(Characters("ab").to_json())
    assert read_vocabulary(str(tmp_path / "vocab.json"), 2) == Characters("ab")
    assert read_vocabulary("bytes", 256) == Bytes()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a\nb\nc", "it has 3 tokens; the network has 4"),
        (b"a\na\nb\nc", "it has 3 tokens; the network has 4"),
        (b'["a", "b", "c", 4]', "expected words"),
        (b"[" * 100_000, "it has 1 tokens"),
        (b"\xff\xfe", "byte 0 is not UTF-8 text"),
        (b"version https://git-lfs.github.com/spec/v1\nsize 9\n", "a Git LFS pointer in place"),
        (None, "No such file"),
    ],
)
def test_invalid_or_missing_vocabulary_file_is_refused_by_name(tmp_path, content, message):
    path = tmp_path / "words.txt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=rf"vocab: .*words\.txt.*{message}"):
        read_vocabulary(str(path), 4)


def test_pickled_vocabulary_is_refused_and_never_taken_from_a_folder(tmp_path):
    (tmp_path / "vocab.pkl").write_bytes(pickle.dumps({"idx2sym": WORDS}))
    with pytest.raises(DataError, match=r"vocab\.pkl: refused: .*json\.dump\(tokenizer\.idx2sym"):
        read_vocabulary(str(tmp_path / "vocab.pkl"), 4)
    assert load_vocabulary_in(tmp_path, 4) is None
    (tmp_path / "vocab.txt").write_text(FORMS["text"])
    assert load_vocabulary_in(tmp_path, 4).words == tuple(WORDS)
