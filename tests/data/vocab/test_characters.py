"""Bytes and characters."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab import Bytes, Characters
from txl_lightning.errors import DataError


@given(text=st.text(min_size=1), size=st.integers(1, 9))
def test_encoded_text_is_decoded_to_itself(document, text, size):
    for vocab in (Bytes(), Characters.from_documents([document(text, size)])):
        ids = np.concatenate(list(vocab.encode(document(text, size))))
        assert vocab.decode(ids.tolist()) == text
        assert vocab.decode(vocab.encode_text(text).tolist()) == text
        assert ids.max() < vocab.n_token


def test_an_alphabet_has_the_characters_of_all_documents_in_order(document):
    assert Characters.from_documents([document("b🙂a"), document("éa")]).alphabet == "abé🙂"


def test_a_character_outside_the_alphabet_is_refused(document):
    with pytest.raises(DataError, match=r"text: 'z' is not among the vocabulary's 3 characters"):
        Characters("abc").encode_text("abz")
    with pytest.raises(DataError, match=r"a\.txt: 'z' is not among the vocabulary's 3"):
        list(Characters("abc").encode(document("abz")))


@pytest.mark.parametrize("alphabet", ["ba", "aab", ""])
def test_an_alphabet_out_of_order_is_refused(alphabet):
    with pytest.raises(DataError, match="not in the order of its code points"):
        Characters(alphabet)
