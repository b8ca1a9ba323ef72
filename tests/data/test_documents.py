"""Documents in files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data import documents
from txl_lightning.data.documents import FileSlice, split_documents, whole_file


def text_of(document) -> bytes:
    return b"".join(document.chunks())


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tmp_path_factory.mktemp("documents") / "a.txt"


@settings(deadline=None)
@given(
    text=st.lists(st.sampled_from([b"\n", b"ab", b"c" * 9, b"d" * 40])).map(b"".join),
    skipped=st.integers(0, 5),
)
def test_lines_are_those_of_the_file_wherever_its_pieces_end(path, text, skipped):
    path.write_bytes(b"x" * skipped + text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "CHUNK", 8)
        lines = list(split_documents([FileSlice(path, skipped, skipped + len(text))], "lines"))
        assert [text_of(line) for line in lines] == text.splitlines(keepends=True)
    starts = [sum(len(text_of(line)) for line in lines[:nth]) for nth in range(len(lines))]
    assert [line.start - skipped for line in lines] == starts


def test_a_long_line_is_read_in_pieces(path, monkeypatch):
    monkeypatch.setattr(documents, "CHUNK", 8)
    path.write_bytes(b"a" * 100 + b"\nb\n")
    for unit in ("files", "lines"):
        [first, *_] = split_documents(whole_file(path), unit)
        assert max(map(len, first.chunks())) == 8
    long, short = split_documents(whole_file(path), "lines")
    assert (text_of(long), text_of(short)) == (b"a" * 100 + b"\n", b"b\n")
