"""Words counted in bounded memory."""

import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from txl_lightning.data.vocab.counts import counted, most_common

PIECES = st.lists(st.lists(st.sampled_from(["a", "b", "é", "\x00", "ab", "🙂", "Z"])), max_size=30)


def truth(pieces: list[list[str]], at_most: int | None = None) -> list[str]:
    counter = Counter(word for piece in pieces for word in piece)
    return [word for word, _ in counter.most_common(at_most)]


@given(
    pieces=PIECES,
    held=st.integers(1, 8),
    runs=st.integers(2, 5),
    at_most=st.none() | st.integers(1, 9),
)
def test_what_is_laid_aside_is_counted_like_what_is_held(pieces, held, runs, at_most):
    assert most_common(counted(pieces, held, runs), at_most) == truth(pieces, at_most)


@given(pieces=PIECES)
def test_every_word_comes_once_with_its_count(pieces):
    counts = list(counted(pieces, held=2, runs=2))
    expected = Counter(word for piece in pieces for word in piece)
    assert {word: count for word, _, count in counts} == expected
    assert len(counts) == len(expected)


@pytest.fixture
def laid_aside(tmp_path, monkeypatch):
    """Where files are laid aside."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_no_more_files_than_allowed_are_read_at_once(laid_aside, monkeypatch):
    opened = []
    unwatched = Path.open

    def watched(path, *args, **kwargs):
        opened.append(unwatched(path, *args, **kwargs))
        assert sum(not file.closed for file in opened) <= 3
        return opened[-1]

    monkeypatch.setattr(Path, "open", watched)
    pieces = [[f"{n % 11}", f"{n % 7}x"] for n in range(60)]
    assert most_common(counted(pieces, held=1, runs=3), None) == truth(pieces)
    assert len(opened) > 20


def test_nothing_is_left_behind(laid_aside):
    list(counted([["a", "b"], ["c", "d"]], held=1))
    assert list(laid_aside.iterdir()) == []
