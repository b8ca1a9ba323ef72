"""Tokens into text as they come."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words
from txl_lightning.generation.streaming import StreamingDetokenizer

BYTES = Bytes()


def pieces(stream: StreamingDetokenizer, ids: list[int]) -> list[str]:
    """What comes with each token, and at the end."""
    return [*map(stream.push, ids), stream.flush()]


def test_a_character_is_returned_when_it_is_complete():
    ids = list("aé☃🙂".encode())
    expected = ["a", "", "é", "", "", "☃", "", "", "", "🙂", ""]
    assert pieces(StreamingDetokenizer(BYTES), ids) == expected


def test_an_unfinished_character_is_returned_at_the_end():
    assert pieces(StreamingDetokenizer(BYTES), list(b"a\xe2\x98")) == ["a", "", "", "\ufffd"]


def test_the_prefix_is_not_returned_but_may_begin_the_first_character():
    assert pieces(StreamingDetokenizer(BYTES, list(b"ab\xe2\x98")), [0x83]) == ["☃", ""]
    vocab = Words(("ab", "cd", "<eos>"), WordOptions())
    assert pieces(StreamingDetokenizer(vocab, [0]), [1, 2, 0]) == [" cd", "\n", "ab", ""]


@given(text=st.text("ab", max_size=30), stop=st.lists(st.text("ab", min_size=1, max_size=4)))
def test_text_ends_before_the_stop_string_that_is_complete_first(text, stop):
    """Whatever its tokens are: here each is one character."""
    vocab = Characters("ab")
    stream = StreamingDetokenizer(vocab, stop=stop)
    found = "".join(pieces(stream, vocab.encode_text(text).tolist()))
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(each) for each in stop)]
    if not ends:
        assert (found, stream.ended) == (text, False)
    else:
        longest = max(len(each) for each in stop if text[: ends[0]].endswith(each))
        assert (found, stream.ended) == (text[: ends[0] - longest], True)


@given(
    text=st.text("aé☃", max_size=20),
    stop=st.lists(st.text("aé☃", min_size=1, max_size=3), max_size=3),
    cuts=st.sets(st.integers(0, 20)),
)
def test_token_boundaries_change_no_text(text, stop, cuts):
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole, parted = StreamingDetokenizer(BYTES, stop=stop), StreamingDetokenizer(BYTES, stop=stop)
    expected = "".join(pieces(whole, list(text.encode())))
    found = "".join(parted.push_text(text[a:b]) for a, b in pairwise(edges))
    assert (found + parted.flush(), parted.ended) == (expected, whole.ended)


def test_the_possible_beginning_of_a_stop_string_is_withheld():
    ids = list(b"a<en<end>b")
    stream = StreamingDetokenizer(BYTES, stop=["<end>"])
    assert [stream.push(index) for index in ids[:8]] == ["a", "", "", "", "<en", "", "", ""]
    assert (stream.push(ids[8]), stream.ended) == ("", True)
    assert (stream.push(ids[9]), stream.flush()) == ("", "")


def test_withheld_text_is_returned_at_the_end():
    assert pieces(StreamingDetokenizer(BYTES, stop=["<end>"]), list(b"a<en"))[-1] == "<en"


def test_a_stop_string_may_lie_inside_a_token():
    vocab = Words(("one.two", "three"), WordOptions(line_end="none"))
    assert pieces(StreamingDetokenizer(vocab, stop=["."]), [1, 0, 1]) == ["three", " one", "", ""]


def test_a_stop_string_in_the_prefix_ends_nothing():
    stream = StreamingDetokenizer(BYTES, list(b"a."), stop=["."])
    assert (stream.push(ord("b")), stream.ended) == ("b", False)


@pytest.mark.parametrize("stop", [[], [""]])
def test_without_a_stop_string_nothing_is_withheld(stop):
    assert pieces(StreamingDetokenizer(BYTES, stop=stop), list(b"abc")) == ["a", "b", "c", ""]
