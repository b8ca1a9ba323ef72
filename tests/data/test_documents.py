"""Documents in files."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from txl_lightning.data import documents
from txl_lightning.data.documents import FileSlice, split_documents


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
def test_documents_are_whole_and_their_chunks_short_wherever_these_end(path, text, skipped):
    path.write_bytes(b"x" * skipped + text)
    file_slice = FileSlice(path, skipped, skipped + len(text))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(documents, "CHUNK", 8)
        [file] = split_documents([file_slice], "files")
        lines = list(split_documents([file_slice], "lines"))
        assert text_of(file) == text
        assert [text_of(line) for line in lines] == text.splitlines(keepends=True)
        assert all(len(chunk) <= 8 for part in (file, *lines) for chunk in part.chunks())
    starts = [sum(len(text_of(line)) for line in lines[:nth]) for nth in range(len(lines))]
    assert [line.start - skipped for line in lines] == starts
