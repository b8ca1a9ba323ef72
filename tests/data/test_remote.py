"""Stores at URLs, copied once by fsspec."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txl_lightning.data import store
from txl_lightning.data.encoding import Encoding, prepare_folder
from txl_lightning.data.store import FILES, Store, open_store
from txl_lightning.data.text_files import slice_file
from txl_lightning.errors import DataError, StorageError


class Counted(MemoryFileSystem):
    """Files in memory, whose copies are counted and may fail."""

    protocol = "counted"
    copies: ClassVar = Counter()
    is_cut: ClassVar = False

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("counted:", "memory:"))

    def get_file(self, rpath, lpath, **kwargs):
        name = rpath.rpartition("/")[2]
        self.copies[name] += 1
        Path(lpath).write_bytes(self.cat_file(rpath))
        if self.is_cut and name == FILES[-1]:
            raise ConnectionError("connection lost\nhere")


fsspec.register_implementation("counted", Counted, clobber=True)


@pytest.fixture
def stored(tmp_path, write_files):
    """A store on disk and at counted://store."""
    path = write_files({"a.txt": b"".join(b"%d line\n" % n for n in range(400))}) / "a.txt"
    splits = {"train": slice_file(path), "val": [], "test": slice_file(path)}
    encoding = Encoding(splits, document_unit="lines")
    prepared = prepare_folder(encoding, tmp_path / "store", tmp_path / "data")
    Counted.copies.clear()
    for path in prepared.folder.iterdir():
        Counted().pipe_file(f"/store/{path.name}", path.read_bytes())
    yield prepared
    Counted.store.clear()


def open_there(folder: Path, url: str = "counted://store/") -> Store:
    return open_store(url, folder / "there")


def read(opened: Store) -> list:
    texts = [opened.text(split) for split in ("train", "val", "test")]
    return [opened.fingerprint, *([text.ids.tolist(), text.starts.tolist()] for text in texts)]


def test_a_store_at_a_url_is_that_on_disk_and_is_copied_once(stored, tmp_path):
    assert read(open_there(tmp_path)) == read(stored)
    assert read(open_there(tmp_path)) == read(stored)
    assert Counted.copies == dict.fromkeys(FILES, 1)


def test_a_changed_store_is_copied_anew(stored, tmp_path):
    open_there(tmp_path)
    encoding = Encoding({"train": slice_file(tmp_path / "a.txt"), "val": [], "test": []})
    other = prepare_folder(encoding, tmp_path / "other", tmp_path / "data")
    for path in other.folder.iterdir():
        Counted().pipe_file(f"/store/{path.name}", path.read_bytes())
    assert read(open_there(tmp_path)) == read(other)


def test_a_copy_that_is_cut_is_no_store_and_is_made_again(stored, tmp_path, monkeypatch):
    monkeypatch.setattr(Counted, "is_cut", True)
    reason = r"counted://store: cannot be fetched \(ConnectionError: connection lost here\)"
    with pytest.raises(DataError, match=reason):
        open_there(tmp_path)
    assert not [*tmp_path.glob("there/prepared/fetched/?*[0-9a-f]/*.ids")]
    monkeypatch.setattr(Counted, "is_cut", False)
    assert read(open_there(tmp_path)) == read(stored)


@pytest.mark.parametrize("name", ["manifest.json", "train.ids"])
def test_a_damaged_object_is_refused_by_its_name_and_copied_again_when_it_is_repaired(
    stored, tmp_path, name
):
    path = stored.folder / name
    content = path.read_bytes()
    path.write_bytes(content[:-9])
    url = stored.folder.as_uri()
    with pytest.raises(DataError, match=rf"data\.store: {url}/{name}: damaged"):
        open_there(tmp_path, url)
    assert not [*tmp_path.glob("there/prepared/fetched/?*[0-9a-f]/*.ids")]
    path.write_bytes(content)
    assert read(open_there(tmp_path, url)) == read(stored)


@pytest.mark.parametrize("whole", [False, True])
def test_a_copy_that_is_damaged_later_is_made_again(stored, tmp_path, monkeypatch, whole):
    ids = open_there(tmp_path).folder / "train.ids"
    ids.write_bytes(ids.read_bytes()[:-9])
    if whole:
        # As if the file looked unchanged.
        monkeypatch.setattr(store, "cache_result", lambda *_: None)
    assert read(open_store("counted://store", tmp_path / "there", whole)) == read(stored)
    assert Counted.copies == dict.fromkeys(FILES, 2)


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("counted://none", "FileNotFoundError: /none/manifest.json"),
        ("nosuch://store", "ValueError: Protocol not known: nosuch"),
    ],
)
def test_a_url_without_a_store_is_refused_in_one_line(tmp_path, url, reason):
    with pytest.raises(DataError) as caught:
        open_there(tmp_path, url)
    assert str(caught.value).startswith(f"data.store: {url}: cannot be fetched ({reason}")


def test_a_full_disk_is_a_storage_error(stored, limit_file_size, tmp_path):
    with limit_file_size(1000), pytest.raises(StorageError, match=r"cannot be written \(File to"):
        open_there(tmp_path)
