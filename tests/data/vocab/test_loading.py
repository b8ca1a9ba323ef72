"""Vocabularies by name, and as files."""

import pytest
from tokenizers import Tokenizer, models

from txl_lightning.data.vocab import (
    BUILT_IN,
    SubwordOptions,
    WordOptions,
    Words,
    build_vocabulary,
    load_vocabulary,
)
from txl_lightning.errors import DataError

NOT_OURS = "is not one saved by this package"
UNKNOWN_OPTION = b'{"kind": "words", "words": [], "options": {"special": [], "n": 1}}'


@pytest.fixture
def build(document):
    """The vocabulary of a name, for a short text."""

    def make(name, options=None):
        text = document("the cat\nthe hat\n")
        options = options or WordOptions()
        return build_vocabulary(str(name), [text], options, SubwordOptions(260))

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
def test_vocabulary_is_built_by_its_name_and_loaded_by_its_path(
    build, tmp_path, name, unit, n_token
):
    vocab = build(name)
    path = tmp_path / "any.name"
    path.write_text(vocab.to_json())
    assert name in BUILT_IN
    assert (vocab.unit, vocab.n_token) == (unit, n_token)
    assert load_vocabulary(path.read_text()) == vocab == build(path)
    assert build(path).fingerprint == vocab.fingerprint
    if unit == "subword":
        path.write_text(vocab.tokenizer)
        assert build(path) == vocab


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("the 99\r\n\r\n cat\t3 x\nthe\n<S>", ("the", "cat", "<S>", "<unk>")),
        ('{ 12\n} 9\n"a": 3\n<UNK> 1\n', ("{", "}", '"a":', "<UNK>", "<S>")),
        ("7", ("7", "<S>", "<unk>")),
        ('["a", "b"]', ("a", "b", "<S>", "<unk>")),
        ('{"b": 1, "a": 0}', ("a", "b", "<S>", "<unk>")),
    ],
)
def test_list_of_words_gives_the_ids_by_its_order(build, tmp_path, text, words):
    path = tmp_path / "words.txt"
    path.write_bytes(text.encode())
    options = WordOptions(line_end="double_eos")
    assert build(path, options) == Words(words, options)


@pytest.mark.parametrize(
    ("file", "text", "reason"),
    [
        ("none.txt", None, "No such file or directory"),
        ("empty.txt", b" \n", "it has no words"),
        ("latin.txt", b"caf\xe9", "'utf-8' codec can't decode"),
        ("cut.json", b'{"kind": "wor', NOT_OURS),
        ("number.json", b"7", NOT_OURS),
        ("other.txt", b'{"a": "b"}', NOT_OURS),
        ("kind.txt", b'{"kind": "characters", "alphabet": 3}', NOT_OURS),
        ("option.txt", UNKNOWN_OPTION, NOT_OURS),
        ("number.txt", b'["a", 1]', "expected words without white space"),
        ("ids.txt", b'{"a": 0, "b": 2}', "its ids do not go from 0"),
        ("model.json", b'{"model": {"type": "none"}}', "`tokenizers` cannot read it"),
        ("no_token.json", Tokenizer(models.BPE()).to_str().encode(), "has no tokens"),
    ],
)
def test_file_that_is_no_vocabulary_is_refused_with_the_reason(build, tmp_path, file, text, reason):
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
