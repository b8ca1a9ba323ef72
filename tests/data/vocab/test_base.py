"""What all vocabularies can do: decode id by id, count bytes, name themselves."""

from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab import Bytes, Characters, SubwordOptions, WordOptions, Words
from txl_lightning.data.vocab.subwords import train_subwords

TEXT = "the king's naïve 🙂 cat; ☃ hat\n\n" * 9
WORDS = ("a", "b", "<S>", "<eos>")
KINDS = {
    "bytes": lambda _: Bytes(),
    "characters": lambda text: Characters.from_documents([text]),
    "eos": lambda _: Words(WORDS, WordOptions(line_end="eos")),
    "double_eos": lambda _: Words(WORDS, WordOptions(line_end="double_eos")),
    "none": lambda _: Words(WORDS, WordOptions(line_end="none")),
    "bpe": lambda text: train_subwords("bpe", [text], SubwordOptions(300)),
    "unigram": lambda text: train_subwords("unigram", [text], SubwordOptions(300)),
}


@pytest.fixture(scope="module", params=KINDS)
def vocab(request, document):
    return KINDS[request.param](document(TEXT))


@given(data=st.data())
def test_the_stream_of_any_ids_joined_is_their_text(vocab, data):
    ids = data.draw(st.lists(st.integers(0, min(vocab.n_token, 300) - 1), max_size=25))
    assert "".join(vocab.decode_stream(ids)) == vocab.decode(ids)


def test_the_text_of_an_id_is_there_before_the_next_id_is_read(vocab):
    read = []

    def ids():
        for index in (0, 1, 2, 1):
            read.append(index)
            yield index

    for number, _ in enumerate(islice(vocab.decode_stream(ids()), 4), 1):
        assert len(read) == number


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_the_bytes_of_tokens_add_up_to_the_text(vocab, document, size):
    if isinstance(vocab, Words):
        # White space between words is not kept.
        assert vocab.token_bytes() is None
    else:
        ids = np.concatenate(list(vocab.encode(document(TEXT, size))))
        assert vocab.token_bytes()[ids].sum() == len(TEXT.encode())


def test_only_equal_vocabularies_share_a_fingerprint():
    vocabularies = [
        Bytes(),
        Characters("ab"),
        Characters("abc"),
        Words(("a",), WordOptions()),
        Words(("b",), WordOptions()),
        Words(("a",), WordOptions(lower_case=True)),
    ]
    assert len({vocab.fingerprint for vocab in vocabularies}) == len(vocabularies)
    assert Characters("ab").fingerprint == Characters("ab").fingerprint


@pytest.mark.parametrize(("size", "dtype"), [(256, np.uint8), (257, np.uint16), (65537, np.uint32)])
def test_ids_have_the_smallest_type(size, dtype):
    alphabet = "".join(map(chr, range(0x10000, 0x10000 + size)))
    assert Characters(alphabet).encode_text(alphabet[-1]).dtype == dtype
    words = Words.from_list(map(str, range(size)), WordOptions(line_end="none", unknown="error"))
    assert words.encode_text(str(size - 1)).dtype == dtype
