"""Vocabularies by name, and as files."""

import pytest
from tokenizers import Tokenizer, models

from txl_lightning.data.vocab import (
    BUILT_IN,
    SubwordOptions,
    Subwords,
    WordOptions,
    Words,
    build_vocabulary,
    load_vocabulary,
)
from txl_lightning.errors import DataError


@pytest.fixture
def build(document):
    """The vocabulary of a name, for a short text."""

    def make(name, text="the cat\nthe hat\n", words=None):
        return build_vocabulary(
            str(name), [document(text)], words or WordOptions(), SubwordOptions(260)
        )

    return make


@pytest.mark.parametrize(
    ("name", "unit", "n_token"),
    [
        ("bytes", "byte", 256),
        ("characters", "character", 7),
        ("words", "word", 5),
        ("bpe", "subword", 260),
        ("unigram", "subword", 256),
    ],
)
def test_each_name_has_its_vocabulary(build, name, unit, n_token):
    assert (build(name).unit, build(name).n_token) == (unit, n_token)


@pytest.mark.parametrize("name", BUILT_IN)
def test_a_saved_vocabulary_is_loaded_by_its_path(build, tmp_path, name):
    vocab = build(name)
    path = tmp_path / "vocab.json"
    path.write_text(vocab.to_json())
    assert load_vocabulary(path.read_text()) == vocab == build(path)
    assert build(path).fingerprint == vocab.fingerprint


def test_a_tokenizer_file_is_recognised_by_its_content(build, tmp_path):
    tokenizer = Tokenizer(models.WordLevel({"the": 0, "[UNK]": 1}, unk_token="[UNK]"))
    path = tmp_path / "any.name"
    tokenizer.save(str(path))
    vocab = build(path)
    assert isinstance(vocab, Subwords)
    assert vocab.encode_text("the").tolist() == [0]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 99\r\n\r\n cat\t3 x\nthe\n<S>", ("the", "cat", "<S>", "<UNK>", "<unk>")),
        ('{ 12\n} 9\n"a": 3\n<UNK> 1\n', ("{", "}", '"a":', "<UNK>", "<S>")),
        ("7", ("7", "<S>", "<unk>")),
        ('["a", "b"]', ("a", "b", "<S>", "<unk>")),
        ('{"b": 1, "a": 0}', ("a", "b", "<S>", "<unk>")),
    ],
)
def test_a_list_of_words_gives_the_ids_by_its_order(build, tmp_path, text, words):
    path = tmp_path / "words.txt"
    path.write_bytes(text.encode())
    expected = tuple(word for word in words if word != "<UNK>" or "<UNK>" in text)
    options = WordOptions(line_end="double_eos")
    assert build(path, words=options) == Words(expected, options)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("none.txt", None, "No such file or directory"),
        ("empty.txt", b" \n", "it has no words"),
        ("latin.txt", b"caf\xe9", "'utf-8' codec can't decode"),
        ("cut.json", b'{"kind": "wor', "is not one saved by this package"),
        ("number.json", b"7", "is not one saved by this package"),
        ("other.txt", b'{"a": "b"}', "is not one saved by this package"),
        ("number.txt", b'["a", 1]', "expected words without white space"),
        ("ids.txt", b'{"a": 0, "b": 2}', "its ids do not go from 0"),
        ("model.json", b'{"model": {"type": "none"}}', "`tokenizers` cannot read it"),
    ],
)
def test_a_file_that_is_no_vocabulary_is_refused_with_the_reason(
    build, tmp_path, file, text, reason
):
    path = tmp_path / file
    if text is not None:
        path.write_bytes(text)
    with pytest.raises(DataError) as caught:
        build(path)
    message = str(caught.value)
    assert message.startswith(f"data.vocab: invalid {path} (")
    assert reason in message
    assert "expected bytes, characters, words, bpe, unigram, or a file: a saved" in message
    assert "\n" not in message


@pytest.mark.parametrize(
    "text",
    [
        '{"alphabet": 3}',
        '{"kind": "words", "words": ["a"], "options": {"special": [], "none": 1}}',
        "[]",
        "words",
    ],
)
def test_json_of_another_form_is_not_a_vocabulary(text):
    with pytest.raises(DataError, match="is not one saved by this package"):
        load_vocabulary(text)
