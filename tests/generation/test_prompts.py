"""Incremental detokenization."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab import Bytes, Characters, WordOptions, Words
from txl_lightning.generation.prompts import StreamingDetokenizer

BYTES = Bytes()
WORDS = Words(("ab", "cd", "<eos>"), WordOptions())
DOTTED = Words(("one.two", "three"), WordOptions(line_end="none"))


def pieces(stream: StreamingDetokenizer, ids: list[int]) -> list[str]:
    """Return the text after each token, and at the end."""
    return [*map(stream.push, ids), stream.flush()]


@pytest.mark.parametrize(
    ("vocab", "prefix", "ids", "stop", "expected"),
    [
        (BYTES, b"", "aé☃".encode(), [], ["a", "", "é", "", "", "☃", ""]),
        (BYTES, b"", b"a\xe2\x98", [], ["a", "", "", "\ufffd"]),
        (BYTES, b"ab\xe2\x98", [0x83], [], ["☃", ""]),
        (WORDS, [0], [1, 2, 0], [], [" cd", "\n", "ab", ""]),
        (BYTES, b"a.", b"b", ["."], ["b", ""]),
        (BYTES, b"", b"ab", [""], ["a", "b", ""]),
        (BYTES, b"", b"a<en", ["<end>"], ["a", "", "", "", "<en"]),
        (BYTES, b"", b"<en<end>b", ["<end>"], ["", "", "", "<en", "", "", "", "", "", ""]),
        (DOTTED, [], [1, 0, 1], ["."], ["three", " one", "", ""]),
        (DOTTED, [], [0], ["e.t", "."], ["one", ""]),
    ],
    ids=[
        "whole characters", "unfinished character", "character started in the prefix",
        "words after a prefix", "stop string in the prefix", "empty stop string",
        "partial stop string", "stop string", "stop string inside a token",
        "stop string inside another",
    ],
)  # fmt: skip
def test_text_is_returned_as_soon_as_it_cannot_change(vocab, prefix, ids, stop, expected):
    assert pieces(StreamingDetokenizer(vocab, list(prefix), stop), list(ids)) == expected


@given(text=st.text("ab", max_size=30), stop=st.lists(st.text("ab", min_size=1, max_size=4)))
def test_text_ends_before_the_stop_string_that_is_complete_first(text, stop):
    """Here each token is one character."""
    vocab = Characters("ab")
    stream = StreamingDetokenizer(vocab, stop=stop)
    result = "".join(pieces(stream, vocab.encode_text(text).tolist()))
    ends = [n for n in range(len(text) + 1) if any(text[:n].endswith(each) for each in stop)]
    longest = max(
        (len(each) for each in stop if ends and text[: ends[0]].endswith(each)), default=0
    )
    assert stream.ended is bool(ends)
    assert result == (text[: ends[0] - longest] if ends else text)


@given(
    text=st.text("aé☃", max_size=20),
    stop=st.lists(st.text("aé☃", min_size=1, max_size=3), max_size=3),
    cuts=st.sets(st.integers(0, 20)),
)
def test_token_boundaries_change_no_text(text, stop, cuts):
    edges = sorted({0, len(text), *(cut for cut in cuts if cut < len(text))})
    whole = StreamingDetokenizer(BYTES, stop=stop)
    parted = StreamingDetokenizer(BYTES, stop=stop)
    expected = "".join(pieces(whole, list(text.encode())))
    result = "".join(parted.push_text(text[a:b]) for a, b in pairwise(edges))
    assert (result + parted.flush(), parted.ended) == (expected, whole.ended)
