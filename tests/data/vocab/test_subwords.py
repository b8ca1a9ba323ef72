"""Subword vocabularies."""

import json
from dataclasses import replace
from itertools import islice, product
from unittest import mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

from txl_lightning.data.vocab import SubwordOptions, Subwords, load_vocabulary, subwords
from txl_lightning.data.vocab.subwords import sample_text, train_subwords
from txl_lightning.errors import DataError

SYLLABLES = ("ka", "ro", "mi", "te", "su", "na", "lo", "ve")
INVENTED = " ".join("".join(word) for word in product(SYLLABLES, repeat=3))
TEXT = "The king said: it's 1066, 'tis naïve!\n\n  And so…\tthey left. " * 20 + INVENTED
TEXTS = st.text() | st.text(st.sampled_from("theking's 12!\n\t\r\x1c\x85\u3000é🙂"), max_size=60)
KINDS = ["bpe", "unigram"]


@pytest.fixture(scope="module", params=KINDS)
def vocab(request, document) -> Subwords:
    return train_subwords(request.param, [document(TEXT)], SubwordOptions(n_token=300))


@pytest.fixture
def word_level() -> dict:
    """A tokenizer.json of words, with truncation, padding and end marks."""
    words = {"[UNK]": 0, "a": 1, "b": 2, "[SEP]": 9}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.TemplateProcessing("$A [SEP]", None, [("[SEP]", 9)])
    tokenizer.add_special_tokens(["[SEP]"])
    tokenizer.enable_truncation(3)
    tokenizer.enable_padding(length=8)
    return json.loads(tokenizer.to_str())


def encoded(vocab: Subwords, document) -> list[int]:
    return [int(index) for ids in vocab.encode(document) for index in ids]


@given(text=TEXTS, piece=st.integers(1, 9))
def test_text_in_pieces_has_the_ids_of_the_whole_and_is_decoded_to_itself(
    vocab, document, text, piece
):
    with mock.patch.multiple(subwords, PIECE_LEN=piece, PIECES_AT_ONCE=2):
        ids = encoded(vocab, document(text, 5))
    assert ids == vocab.encode_text(text).tolist()
    assert vocab.decode(ids) == text


LLAMA = [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
NO_LINES = [normalizers.Replace(Regex(r"[\n\t]"), " ")]
METASPACE = pre_tokenizers.Metaspace
BEGINNINGS = {
    "Llama": (LLAMA, pre_tokenizers.Split(Regex(r"(?=[▁\n\t])|(?<=[\n\t])"), "isolated")),
    "Metaspace": (NO_LINES, METASPACE(prepend_scheme="always")),
    "Metaspace at first": (NO_LINES, METASPACE(prepend_scheme="first")),
    "Metaspace never": (NO_LINES, METASPACE(prepend_scheme="never")),
    "a byte-level space": ([], pre_tokenizers.ByteLevel(add_prefix_space=True)),
    "spaces removed": ([normalizers.Strip()], pre_tokenizers.ByteLevel(add_prefix_space=False)),
}
LINES = "the cat sat on (the) mat.\n\nIt was 12 o'clock;  the cat\tslept.\nline two\nend of it" * 9


def train_with(normalizer: list, pre_tokenizer) -> Subwords:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.Sequence(normalizer)
    tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(vocab_size=200, show_progress=False)
    tokenizer.train_from_iterator([LINES], trainer)
    return Subwords.from_tokenizer(json.loads(tokenizer.to_str()))


@pytest.mark.parametrize("piece", [3, 30])
@pytest.mark.parametrize("name", BEGINNINGS)
def test_a_tokenizer_that_changes_the_beginning_of_a_text_does_it_once(document, name, piece):
    vocab = train_with(*BEGINNINGS[name])
    whole = vocab.encode_text(LINES).tolist()
    cut = LINES.index("line two", 200)
    parts = [document(LINES[:cut], 5), replace(document(LINES[cut:], 5), continues=True)]
    with mock.patch.multiple(subwords, PIECE_LEN=piece, PIECES_AT_ONCE=2):
        assert encoded(vocab, document(LINES, 5)) == whole
        if vocab.is_cut_at_lines:
            assert [index for part in parts for index in encoded(vocab, part)] == whole
    # Metaspace joins a line end that has become a space to the next word.
    assert vocab.is_cut_at_lines == ("Metaspace" not in name)


@pytest.mark.parametrize(
    "pre_tokenizer", [METASPACE(prepend_scheme="always"), METASPACE(prepend_scheme="never")]
)
def test_a_tokenizer_that_joins_words_encodes_short_documents_only(document, pre_tokenizer):
    vocab = train_with([], pre_tokenizer)
    assert encoded(vocab, document(LINES)) == vocab.encode_text(LINES).tolist()
    message = "joins words at white space; expected documents of at most 3 characters"
    with (
        mock.patch.multiple(subwords, PIECE_LEN=3, PIECES_AT_ONCE=2),
        pytest.raises(DataError, match=message),
    ):
        encoded(vocab, document(LINES, 5))


def test_text_without_white_space_is_cut_anywhere(vocab, document):
    text = "kingé" * 50
    with mock.patch.multiple(subwords, PIECE_LEN=10, LONGEST_RUN=20):
        pieces = list(vocab.encode(document(text)))
    assert len(pieces) == 13
    assert vocab.decode(np.concatenate(pieces)) == text


@given(text=st.text("the cat's é☃🙂\n", max_size=40))
def test_stream_is_never_ahead_of_its_tokens_nor_breaks_a_character(vocab, text):
    ids = vocab.encode_text(text).tolist()
    sent = ""
    for number, piece in enumerate(islice(vocab.decode_stream(ids), len(ids)), 1):
        sent += piece
        assert "\ufffd" not in sent
        assert vocab.decode(ids[:number]).rstrip("\ufffd") == sent
    assert sent == text


@pytest.mark.parametrize("text", ["", "a", "<UNK> a <UNK>", "a" * 9000])
@pytest.mark.parametrize("kind", KINDS)
def test_short_text_gives_a_smaller_vocabulary_that_knows_all_bytes(document, kind, text):
    vocab = train_subwords(kind, [document(text)], SubwordOptions())
    assert 256 <= vocab.n_token < 300
    assert vocab.decode(vocab.encode_text("é <UNK>\n")) == "é <UNK>\n"


@pytest.mark.parametrize("kind", KINDS)
def test_trained_subwords_are_deterministic_long_and_loaded_equal(document, kind):
    first, second = (
        train_subwords(kind, [document(TEXT)], SubwordOptions(n_token=400)) for _ in range(2)
    )
    assert first == second == load_vocabulary(first.to_json())
    assert first.n_token == 400
    assert len(first.encode_text(TEXT)) < 0.8 * len(TEXT)


@pytest.mark.parametrize("n_byte", [1, 3000, 10_000, 1 << 20])
def test_sample_is_spread_evenly_over_the_text_in_short_pieces(document, n_byte):
    texts = [document("".join(f"{n:05d} é\n" for n in range(7000)), 999), document("a" * 9000)]
    pieces = list(sample_text(texts, n_byte))
    taken = "".join(pieces).encode()
    assert len(taken) <= n_byte
    assert max(map(len, pieces), default=0) <= 2000
    if n_byte > 100_000:
        assert taken == b"".join(text.text for text in texts)
    elif n_byte > 1:
        assert len(taken) > n_byte - 3500
        numbers = [int(line[:5]) for line in taken.decode().split("\n") if line[:5].isdigit()]
        assert abs(np.mean(numbers) - 3500) < 800


@pytest.mark.parametrize(
    ("change", "token_bytes"),
    [(None, [1, 4]), ("no byte level", None), ("prefix space", None), ("normalizer", None)],
)
def test_tokens_have_bytes_unless_the_tokenizer_changes_the_text(change, token_bytes):
    tokenizer = Tokenizer(models.BPE({"a": 0}, []))
    if change != "no byte level":
        prefix = change == "prefix space"
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    if change == "normalizer":
        tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.add_special_tokens(["<é>"])
    counts = Subwords(tokenizer.to_str()).token_bytes()
    assert (None if counts is None else counts.tolist()) == token_bytes


def test_loaded_tokenizer_encodes_all_of_the_text_with_ids_below_n_token(document, word_level):
    vocab = Subwords.from_tokenizer(word_level)
    assert encoded(vocab, document("a b zed a b")) == [1, 2, 0, 1, 2]
    assert vocab.encode_text("a").tolist() == [1]
    assert vocab.decode([1, 0, 9]) == "a [UNK] [SEP]"
    # Some ids are unused.
    assert vocab.n_token == 10


def test_text_that_a_tokenizer_cannot_encode_is_refused(document, word_level):
    word_level["model"]["unk_token"] = "none"
    with pytest.raises(DataError, match=r"^a\.txt: data\.vocab's tokenizer cannot encode it"):
        encoded(Subwords.from_tokenizer(word_level), document("zed"))
    with pytest.raises(DataError, match=r"^prompt: character 2 is not UTF-8 text$"):
        Subwords.from_tokenizer(word_level).encode_text("a\ud800", "prompt")
    split = pre_tokenizers.Split(Regex("(b+)+$"), "removed")
    word_level["pre_tokenizer"] = json.loads(split.__getstate__())
    endless = Subwords.from_tokenizer(word_level)
    with pytest.raises(DataError, match=r"^a\.txt: data\.vocab's tokenizer .*retry-limit"):
        encoded(endless, document("b" * 30 + "a"))
    for kind in KINDS:
        with pytest.raises(DataError, match=r"a\.txt: byte 2 is not UTF-8 text"):
            train_subwords(kind, [document(b"ab\xff")], SubwordOptions())


@pytest.mark.parametrize("fault", [MemoryError("full"), TypeError("ours"), RuntimeError("theirs")])
def test_only_plain_exceptions_of_tokenizers_are_explained(fault):
    with pytest.raises(type(fault)), subwords._explain_tokenizer_errors("a.txt: it cannot"):
        raise fault
