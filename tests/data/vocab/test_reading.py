"""Bytes as text, in pieces."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab.base import decode_utf8, split_between_words, split_by_length
from txl_lightning.errors import DataError

SPACED = st.text(st.sampled_from("ab é\n\t\x1c\x85\u3000"), max_size=40)


@given(text=st.text(), size=st.integers(1, 9))
def test_a_character_may_straddle_two_chunks(document, text, size):
    assert "".join(decode_utf8(document(text, size))) == text


@pytest.mark.parametrize("size", [1, 3, 1 << 20])
@pytest.mark.parametrize(
    ("text", "offset"), [(b"ab\xffcd", 2), (b"\xc3\xa9\xc3(", 2), (b"abc\xe2\x9c", 3)]
)
def test_bytes_that_are_not_utf8_are_refused_with_file_and_offset(document, text, offset, size):
    with pytest.raises(DataError, match=rf"a\.txt: byte {100 + offset} is not UTF-8 text; use"):
        list(decode_utf8(document(text, size, start=100)))


@given(text=SPACED, size=st.integers(1, 9))
def test_pieces_end_with_a_word_and_go_on_with_white_space(text, size):
    pieces = list(split_between_words(split_by_length([text], size)))
    assert "".join(pieces) == text
    for left, right in pairwise(pieces):
        assert not left[-1].isspace()
        assert right[0].isspace()
        assert right[0] != "\x1c"


def test_a_piece_is_cut_at_a_space_rather_than_at_a_line_end():
    assert list(split_between_words(["one two!\n", "three"])) == ["one", " two!\nthree"]
    assert list(split_between_words(["one\ntwo!\n", "three"])) == ["one\ntwo!", "\nthree"]


def test_a_word_is_cut_only_when_it_is_too_long():
    assert list(split_between_words(["ab", "cd", "e f"])) == ["abcde f"]
    assert list(split_between_words(["ab", "cd", "e f"], longest=4)) == ["abcd", "e f"]
    assert list(split_between_words(["  ", "  ", "  "], longest=4)) == ["    ", "  "]


def test_a_document_is_never_in_memory_as_a_whole(document):
    read = []

    class Watched(type(document(""))):
        def chunks(self):
            for chunk in super().chunks():
                read.append(chunk)
                yield chunk

    watched = Watched(**vars(document("ab " * 30, 3)))
    next(split_between_words(decode_utf8(watched)))
    assert len(read) <= 2
