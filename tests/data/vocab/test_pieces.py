"""Text that comes token by token is the text of all tokens."""

import json
from itertools import islice

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from txl_lightning.data.vocab import Bytes, Characters, SubwordOptions, Subwords, WordOptions, Words
from txl_lightning.data.vocab.subwords import train_bpe, train_unigram

TEXT = "the king's naïve 🙂 cat; ☃ hat\n\n" * 9


def sentence_piece() -> Subwords:
    """Words that begin with a mark, and bytes for all else, as in Llama's tokenizer."""
    parts = [f"<0x{byte:02X}>" for byte in range(256)]
    vocab = {part: index for index, part in enumerate([*parts, "▁", "▁the", "▁cat", "s", "é"])}
    tokenizer = Tokenizer(models.BPE(vocab, [], byte_fallback=True))
    strip = decoders.Strip(" ", 1, 0)
    chain = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), strip]
    tokenizer.decoder = decoders.Sequence(chain)
    return Subwords.from_tokenizer(json.loads(tokenizer.to_str()))


@pytest.fixture(
    scope="module",
    params=["bytes", "characters", "eos", "double_eos", "none", "bpe", "unigram"],
)
def vocab(request, document):
    texts, options = (lambda: [document(TEXT)]), SubwordOptions(300)
    words = ("a", "b", "<S>", "<eos>")
    return {
        "bytes": Bytes,
        "characters": lambda: Characters("aé☃"),
        "eos": lambda: Words(words, WordOptions(line_end="eos")),
        "double_eos": lambda: Words(words, WordOptions(line_end="double_eos")),
        "none": lambda: Words(words, WordOptions(line_end="none")),
        "bpe": lambda: train_bpe(texts, options),
        "unigram": lambda: train_unigram(texts, options),
    }[request.param]()


@given(data=st.data())
def test_pieces_joined_are_the_text(vocab, data):
    ids = data.draw(st.lists(st.integers(0, min(vocab.n_token, 300) - 1), max_size=25))
    assert "".join(vocab.decode_stream(ids)) == vocab.decode(ids)


@given(
    parts=st.lists(st.sampled_from([[256], [257], [258], [259], [0xC3, 0xA9], [*"🙂".encode()]]))
)
def test_a_space_at_the_very_beginning_is_left_out_but_once(parts):
    """As in Llama's tokenizer, a token's text is another one where no token is before it."""
    vocab, ids = sentence_piece(), [index for part in parts for index in part]
    assert "".join(vocab.decode_stream(ids)) == vocab.decode(ids)


def test_what_a_tokenizer_takes_back_was_said_all_the_same():
    """With one byte that fits nowhere, it shows none of its neighbours."""
    vocab = sentence_piece()
    assert vocab.decode([*b"a\xff", 259]) == "\ufffd\ufffds"
    assert list(vocab.decode_stream([*b"a\xff", 259])) == ["a", "", "\ufffds", ""]


@given(text=st.text("the cat's é☃🙂\n", max_size=40))
@pytest.mark.parametrize("train", [train_bpe, train_unigram])
def test_a_text_is_never_ahead_of_its_tokens_nor_breaks_a_character(document, train, text):
    vocab = train(lambda: [document(TEXT)], SubwordOptions(300))
    ids, said = vocab.encode_text(text).tolist(), ""
    for number, piece in enumerate(islice(vocab.decode_stream(ids), len(ids)), 1):
        said += piece
        assert "\ufffd" not in said
        assert vocab.decode(ids[:number]).rstrip("\ufffd") == said
    assert said == text


def test_a_piece_is_there_before_the_next_id_is_asked_for(vocab):
    seen = []

    def ids():
        for index in (0, 1, 2, 1):
            seen.append(index)
            yield index

    for number, _ in enumerate(islice(vocab.decode_stream(ids()), 4), 1):
        assert len(seen) == number


def test_bytes_in_place_of_characters_wait_for_the_last_one():
    vocab = sentence_piece()
    ids = [257, *"é".encode(), *"☃".encode(), 258, *"🙂".encode(), 259]
    assert vocab.decode(ids) == "the" + "é☃" + " cat" + "🙂" + "s"
    assert list(vocab.decode_stream(ids)) == [
        "the", "", "é", "", "", "☃", " cat", "", "", "", "🙂", "s", "",
    ]  # fmt: skip
