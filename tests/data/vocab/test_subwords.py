"""Parts of words."""

import json
from itertools import product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from txl_lightning.data.vocab import SubwordOptions, Subwords, load_vocabulary, subwords
from txl_lightning.data.vocab.subwords import sample_text, train_bpe, train_unigram
from txl_lightning.errors import DataError

SYLLABLES = ("ka", "ro", "mi", "te", "su", "na", "lo", "ve")
INVENTED = " ".join("".join(word) for word in product(SYLLABLES, repeat=3))
TEXT = "The king said: it's 1066, 'tis naïve!\n\n  And so…\tthey left. " * 20 + INVENTED
TEXTS = st.text() | st.text(st.sampled_from("theking's 12!\n\t\r\x1c\x85\u3000é🙂"), max_size=60)
TRAINERS = [train_bpe, train_unigram]


@pytest.fixture(scope="module", params=TRAINERS)
def vocab(request, document) -> Subwords:
    return request.param(lambda: [document(TEXT)], SubwordOptions(n_token=300))


def encoded(vocab: Subwords, document) -> list[int]:
    return [int(index) for ids in vocab.encode(document) for index in ids]


@given(text=TEXTS)
def test_every_text_comes_back(vocab, document, text):
    assert vocab.decode(encoded(vocab, document(text, 7))) == text
    assert vocab.decode(vocab.encode_text(text)) == text


def test_every_character_comes_back(vocab):
    text = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x11000), *range(0x1F300, 0x1F700)]))
    assert vocab.decode(vocab.encode_text(text)) == text


@given(text=TEXTS, piece=st.integers(1, 9))
def test_a_text_in_pieces_has_the_ids_of_the_whole(vocab, document, text, piece):
    with mock.patch.multiple(subwords, PIECE=piece, AT_ONCE=2):
        assert encoded(vocab, document(text, 5)) == vocab.encode_text(text).tolist()


def test_what_has_no_white_space_is_cut_anywhere(vocab, document):
    text = "kingé" * 50
    with mock.patch.multiple(subwords, PIECE=10, LONGEST=20):
        pieces = list(vocab.encode(document(text)))
    assert len(pieces) == 13
    assert vocab.decode(np.concatenate(pieces)) == text


@pytest.mark.parametrize("train", TRAINERS)
def test_training_twice_gives_the_same(document, train):
    options = SubwordOptions(n_token=400)
    first, second = (train(lambda: [document(TEXT)], options) for _ in range(2))
    assert first.to_json() == second.to_json()


def test_it_has_the_size_that_was_asked_for(vocab):
    assert vocab.n_token == 300
    assert vocab.encode_text(TEXT).dtype == np.uint16
    assert len(vocab.encode_text(TEXT)) < 0.8 * len(TEXT)


@pytest.mark.parametrize("train", TRAINERS)
@pytest.mark.parametrize("text", ["", "a", "<UNK> a <UNK>", "a" * 9000])
def test_a_small_text_has_a_smaller_vocabulary(document, train, text):
    vocab = train(lambda: [document(text)], SubwordOptions())
    assert 256 <= vocab.n_token < 300
    assert vocab.decode(vocab.encode_text("é <UNK>\n")) == "é <UNK>\n"


@pytest.mark.parametrize("n_byte", [1, 3000, 10_000, 1 << 20])
def test_a_sample_is_spread_evenly_over_the_text(document, n_byte):
    texts = [document("".join(f"{n:05d} é\n" for n in range(7000)), 999), document("end\n" * 99)]
    taken = "".join(sample_text(lambda: texts, n_byte)).encode()
    assert len(taken) <= n_byte
    if n_byte > 60_000:
        assert taken == b"".join(text.text for text in texts)
    elif n_byte > 1:
        assert len(taken) > n_byte - 2500
        numbers = [int(line[:5]) for line in taken.decode().split("\n") if line[:5].isdigit()]
        assert abs(np.mean(numbers) - 3500) < 800


def test_long_words_are_trained_in_parts(document):
    pieces = list(sample_text(lambda: [document("a" * 9000)], 1 << 20))
    assert max(map(len, pieces)) <= 2000


def test_what_is_not_utf8_is_refused(vocab, document):
    for train in TRAINERS:
        with pytest.raises(DataError, match=r"a\.txt: byte 2 is not UTF-8 text"):
            train(lambda: [document(b"ab\xff")], SubwordOptions())
    with pytest.raises(DataError, match=r"a\.txt: byte 2 is not UTF-8 text"):
        encoded(vocab, document(b"ab\xff"))


def test_it_is_restored_from_its_json(vocab):
    assert load_vocabulary(vocab.to_json()) == vocab
    assert load_vocabulary(vocab.to_json()).to_json() == vocab.to_json()


@pytest.fixture
def loaded() -> dict:
    """A tokenizer.json of words, that cuts texts off, fills them up and marks their ends."""
    words = {"[UNK]": 0, "a": 1, "b": 2, "[SEP]": 9}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A [SEP]", None, [("[SEP]", 9)])
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    return json.loads(tokenizer.to_str())


def test_a_loaded_tokenizer_encodes_all_of_the_text_and_adds_nothing(document, loaded):
    vocab = Subwords.from_tokenizer(loaded)
    assert encoded(vocab, document("a b zed a b")) == [1, 2, 0, 1, 2]
    assert vocab.encode_text("a").tolist() == [1]
    assert vocab.decode([1, 0, 9]) == "a [UNK] [SEP]"


def test_every_id_is_below_n_token(loaded):
    assert Subwords.from_tokenizer(loaded).n_token == 10


def test_what_a_tokenizer_cannot_encode_is_refused(document, loaded):
    loaded["model"]["unk_token"] = "none"
    with pytest.raises(DataError, match=r"^a\.txt: data\.vocab's tokenizer cannot encode it"):
        encoded(Subwords.from_tokenizer(loaded), document("zed"))
    with pytest.raises(DataError, match=r"^prompt: data\.vocab's tokenizer cannot encode it"):
        Subwords.from_tokenizer(loaded).encode_text("a\ud800", "prompt")


def test_what_is_no_tokenizer_is_refused():
    with pytest.raises(DataError, match="`tokenizers` cannot read it"):
        Subwords.from_tokenizer({"model": {"type": "none"}})
    empty = json.loads(Tokenizer(models.BPE()).to_str())
    with pytest.raises(DataError, match="has no tokens"):
        Subwords.from_tokenizer(empty)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"n_token": 256}, "n_token: invalid 256; expected at least 257"),
        ({"train_bytes": 0}, "train_bytes: invalid 0; expected at least 1"),
    ],
)
def test_impossible_options_are_refused(options, message):
    with pytest.raises(ValueError, match=f"^{message}"):
        SubwordOptions(**options)


@pytest.mark.parametrize("fault", [MemoryError("full"), TypeError("ours"), RuntimeError("theirs")])
def test_only_the_complaints_of_tokenizers_are_put_explain_tokenizer_errors(fault):
    with pytest.raises(type(fault)), subwords._explain_tokenizer_errors("a.txt: it cannot"):
        raise fault
    with (
        pytest.raises(DataError, match=r"a\.txt: it cannot \(no\)"),
        subwords._explain_tokenizer_errors("a.txt: it cannot"),
    ):
        raise Exception("no")
