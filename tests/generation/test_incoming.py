"""A text that comes in parts has the tokens of the whole text, each with its place in it."""

import json
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers

from txl_lightning.data.text_files import FileSlice
from txl_lightning.data.vocab import (
    Bytes,
    Characters,
    Ids,
    Subwords,
    WordOptions,
    Words,
    pieces,
    spans,
    train_subwords,
)
from txl_lightning.data.vocab.subwords import SubwordOptions
from txl_lightning.errors import DataError
from txl_lightning.generation.incoming import IncomingText

ALPHABET = "the king's 12!\n\t\r\x1c\x85\u3000é🙂"
TEXTS = st.text(st.sampled_from(ALPHABET), max_size=50)
TRAINING = "The king said: it's 1066, 'tis naïve!\n\n  And so…\tthey left. " * 9


@cache
def make_vocab(kind: str):
    options = WordOptions(line_end=kind) if kind in ("eos", "double_eos", "none") else None
    match kind:
        case "bytes":
            return Bytes()
        case "characters":
            return Characters("".join(sorted(set(ALPHABET))))
        case "bpe" | "unigram":
            folder = Path(__file__)
            document = FileSlice(folder, 0, len(TRAINING.encode()), text=TRAINING.encode())
            return train_subwords(kind, [document], SubwordOptions(n_token=300))
        case "punctuated":
            return make_punctuated()
        case "metaspace":
            return make_metaspace()
    return Words.from_list(["the", "king's", "12!"], options)


def make_punctuated() -> Subwords:
    """Return a tokenizer that joins a line end to the punctuation before it, as Llama 3 does."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    ids = {token: n for n, token in enumerate([*sorted(letters), "!Ċ"])}
    tokenizer = Tokenizer(models.BPE(ids, [("!", "Ċ")]))
    rule = Regex(r" ?\w+| ?[^\s\w]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
    words = pre_tokenizers.Split(rule, "isolated")
    letters_alone = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([words, letters_alone])
    return Subwords.from_tokenizer(json.loads(tokenizer.to_str()))


def make_metaspace() -> Subwords:
    """Return a tokenizer that adds a space at the beginning, and knows few characters."""
    tokens = ["<unk>", "▁", *"theking's12!", "▁the", "▁k"]
    merges = [("t", "h"), ("th", "e"), ("▁", "the"), ("▁", "k")]
    ids = {token: n for n, token in enumerate([*tokens, "th", "the"])}
    tokenizer = Tokenizer(models.BPE(ids, merges, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    return Subwords.from_tokenizer(json.loads(tokenizer.to_str()))


def feed(vocab, parts):
    incoming = IncomingText()
    tokens = []
    for part in parts:
        new, incoming = incoming.add(part, vocab)
        tokens += new
    return tokens + incoming.flush(vocab)[0]


def cut(content, sizes):
    while content:
        size = sizes.pop() if sizes else len(content)
        yield content[:size]
        content = content[size:]


KINDS = ["bytes", "characters", "eos", "double_eos", "none", "bpe", "unigram", "metaspace"]
KINDS += ["punctuated"]


@pytest.mark.parametrize("kind", KINDS)
def test_text_in_any_parts_has_the_tokens_of_the_whole(kind):
    vocab = make_vocab(kind)

    @settings(max_examples=40)
    @given(TEXTS, st.lists(st.integers(1, 9), max_size=20), st.booleans())
    def check(text, sizes, as_bytes):
        tokens = feed(vocab, cut(text.encode() if as_bytes else text, sizes))
        ids = vocab.encode_text(text).tolist()
        if text or vocab.n_start == 0:
            assert [token.id for token in tokens] == ids
        assert all(text[token.start : token.stop] == token.text for token in tokens)
        starts = [token.start for token in tokens]
        assert starts == sorted(starts)

    check()


@pytest.mark.parametrize(
    ("kind", "parts"),
    [("double_eos", ("the\r\n", "the ")), ("punctuated", ("the!\n", "the king"))],
)
def test_a_part_that_ends_with_a_line_has_the_tokens_of_the_whole(kind, parts):
    vocab = make_vocab(kind)
    ids = [token.id for token in feed(vocab, parts)]
    assert ids == vocab.encode_text("".join(parts)).tolist()


@pytest.mark.parametrize("kind", ["bytes", "characters", "bpe", "unigram"])
@settings(max_examples=40)
@given(text=TEXTS)
def test_texts_of_tokens_are_the_whole_text(kind, text):
    assert "".join(token.text for token in feed(make_vocab(kind), [text])) == text


@pytest.mark.parametrize("kind", ["eos", "bpe"])
@settings(max_examples=40)
@given(data=st.data())
def test_a_long_run_is_cut_at_the_same_places_in_any_parts(kind, data):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spans, "LONGEST_WAIT", 7)
        text = data.draw(st.text(st.sampled_from("aab \n"), max_size=60))
        sizes = data.draw(st.lists(st.integers(1, 9), max_size=20))
        assert feed(make_vocab(kind), cut(text, sizes)) == feed(make_vocab(kind), [text])


def test_words_of_a_line_are_those_of_the_text_also_unknown_ones():
    words = Words.from_list(["the"], WordOptions(lower_case=True))
    tokens = feed(words, ["The", " King\r", "\nthe \n"])
    texts = ["The", "King", "\r\n", "the", "\n"]
    assert [token.text for token in tokens] == texts
    assert words.decode([token.id for token in tokens]) == "the <unk>\nthe\n"


def test_ids_as_numbers_are_settled_by_the_space_after_them():
    tokens, rest = IncomingText().add("3 10 1", Ids(11))
    assert [(token.id, token.text) for token in tokens] == [(3, "3"), (10, "10")]
    assert rest.waiting == "1"


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ([b"a\xff"], "text: byte 1 is not UTF-8 text"),
        ([b"\xc3", "a"], "text: invalid a text; expected bytes, as the part before"),
        ([b"\xc3"], "text: invalid 1 bytes of a character; expected its other bytes first"),
        (["\ud800"], "text: character 1 is not UTF-8 text"),
        ([3], "text: invalid 3; expected a text or bytes"),
    ],
)
def test_parts_that_are_no_text_are_refused(parts, message):
    with pytest.raises(ValueError, match=message):
        feed(Bytes(), parts)


class Lines(Bytes):
    """A vocabulary of another package, which says nothing of parts."""

    split_settled = Bytes.__mro__[1].split_settled


def test_another_vocabulary_has_whole_lines():
    tokens, rest = IncomingText().add("é\nb", Lines())
    assert [token.text for token in tokens] == ["", "é", "\n"]
    assert rest.waiting == "b"
    with pytest.raises(DataError, match="a line of 4,097 characters has no end"):
        IncomingText().add("b" * 4097, Lines())


def test_a_tokenizer_that_joins_words_is_refused():
    contexts = {pieces.SPACE: None, pieces.OTHER: "", pieces.PUNCTUATED: "", pieces.LINE: ""}
    with pytest.raises(DataError, match="tokenizer joins words; expected one that splits"):
        pieces.split_before_space("a b a", contexts)
