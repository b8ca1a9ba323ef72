"""Where a text comes from and how it is cut."""

import hashlib
import http.server
import threading

import pytest

from txl_lightning.data import DataError
from txl_lightning.data.corpora import own_text, python_source, split
from txl_lightning.data.download import fetch


def joined(spans) -> bytes:
    return b"".join(chunk for span in spans for chunk in span.chunks())


def test_python_source_is_ascii_without_tests_and_sorted(tmp_path):
    files = python_source(tmp_path)
    names = [path.as_posix() for path in files]
    assert len(files) > 300
    assert not any("/test/" in name or "/tests/" in name for name in names)
    assert all(path.read_bytes().isascii() for path in files)
    assert files == sorted(files, key=lambda path: path.relative_to(files[0].parent).as_posix())


@pytest.mark.parametrize("fractions", [(0.9, 0.05, 0.05), (0.5, 0.5, 0.0), (1.0, 0.0, 0.0)])
def test_one_file_is_cut_between_characters_and_nothing_is_lost(tmp_path, fractions):
    text = ("aé✓🙂" * 37).encode()
    path = tmp_path / "a.txt"
    path.write_bytes(text)
    parts = split([path], fractions)
    assert b"".join(joined(parts[name]) for name in ("train", "val", "test")) == text
    for name, fraction in zip(("train", "val", "test"), fractions, strict=True):
        joined(parts[name]).decode()
        assert abs(len(joined(parts[name])) - fraction * len(text)) <= 4


def test_many_files_are_cut_between_files(tmp_path):
    files = [tmp_path / f"{n}.py" for n in range(20)]
    for n, path in enumerate(files):
        path.write_bytes(bytes([n]) * 10)
    parts = split(files, (0.8, 0.1, 0.1))
    assert [len(parts[name]) for name in ("train", "val", "test")] == [16, 2, 2]
    assert joined(parts["val"]) == bytes([16]) * 10 + bytes([17]) * 10


def test_a_missing_or_empty_file_is_refused(tmp_path):
    with pytest.raises(DataError, match=r"no\.txt: no such file"):
        own_text(tmp_path / "no.txt")
    (tmp_path / "empty.txt").touch()
    with pytest.raises(DataError, match=r"empty\.txt: the file is empty"):
        own_text(tmp_path / "empty.txt")


@pytest.fixture
def served(tmp_path):
    """A loopback server of the folder tmp_path/served: its address and the folder."""
    folder = tmp_path / "served"
    folder.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def __init__(self, *args):
            super().__init__(*args, directory=str(folder))

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", folder
        server.shutdown()


def test_a_download_is_checked_and_then_used_without_network(served, tmp_path):
    address, folder = served
    (folder / "input.txt").write_bytes(b"to be")
    sha256 = hashlib.sha256(b"to be").hexdigest()
    target = tmp_path / "data" / "input.txt"
    assert fetch(f"{address}/input.txt", sha256, target).read_bytes() == b"to be"
    (folder / "input.txt").unlink()
    assert fetch(f"{address}/input.txt", sha256, target) == target


def test_another_file_than_expected_is_refused(served, tmp_path):
    address, folder = served
    (folder / "input.txt").write_bytes(b"not to be")
    target = tmp_path / "data" / "input.txt"
    with pytest.raises(DataError, match="not downloaded"):
        fetch(f"{address}/input.txt", "0" * 64, target)
    assert not target.exists()
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(b"mine")
    with pytest.raises(DataError, match=r"input\.txt: sha256 is"):
        fetch(f"{address}/input.txt", "0" * 64, target)


def test_what_cannot_be_downloaded_can_be_put_there(served, tmp_path):
    address, _ = served
    target = tmp_path / "data" / "none.txt"
    with pytest.raises(DataError, match=r"none\.txt: not downloaded .*put the file at"):
        fetch(f"{address}/none.txt", "0" * 64, target)
