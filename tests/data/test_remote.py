"""Stores in object storage, with faults between it and us."""

import random
from collections import Counter
from pathlib import Path
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txl_lightning.data import remote
from txl_lightning.data.documents import whole_file
from txl_lightning.data.recipe import Recipe, prepare_folder
from txl_lightning.data.store import FILES, Store, open_store
from txl_lightning.errors import DataError, StorageError


class Faulty(MemoryFileSystem):
    """Files in memory, whose requests are counted and may fail."""

    protocol = "faulty"
    requests: ClassVar = Counter()
    fail = staticmethod(lambda content: content)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty:", "memory:"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.requests[path.rpartition("/")[2]] += 1
        return self.fail(super().cat_file(path, start=start, end=end))

    def get_file(self, rpath, lpath, **kwargs):
        Path(lpath).write_bytes(self.cat_file(rpath))


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def stored(tmp_path, monkeypatch, write_files):
    """A store on disk and at faulty://store."""
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(Faulty, "fail", staticmethod(lambda content: content))
    Faulty.requests.clear()
    path = write_files({"a.txt": b"".join(b"%d line\n" % n for n in range(400))}) / "a.txt"
    splits = {"train": whole_file(path), "val": [], "test": whole_file(path)}
    recipe = Recipe(splits, document_unit="lines")
    store = prepare_folder(recipe, tmp_path / "store", tmp_path / "data")
    for path in store.folder.iterdir():
        Faulty().pipe_file(f"/store/{path.name}", path.read_bytes())
    yield store
    Faulty.store.clear()


@pytest.fixture
def open_there(tmp_path):
    return lambda data="there", name="store": open_store(f"faulty://{name}/", tmp_path / data)


def read(store: Store) -> list:
    texts = [store.text(split) for split in ("train", "val", "test")]
    return [store.fingerprint, *([text.ids.tolist(), text.starts.tolist()] for text in texts)]


def test_a_store_at_a_url_is_that_on_disk_and_each_file_is_fetched_once(stored, open_there):
    there = open_there()
    assert there.describe() == stored.describe()
    # The text of test is that of train, and so are its files.
    np.testing.assert_array_equal(there.ids("test"), stored.ids("test"))
    assert set(Faulty.requests) == {"manifest.json", "vocab.json", "test.ids"}
    assert read(there) == read(stored)
    assert read(open_there()) == read(stored)
    assert Faulty.requests["manifest.json"] == 2
    assert sum(Faulty.requests.values()) == 2 + 1 + 2 + 1, "train and test have the same files"


@pytest.mark.parametrize("fault", ["cut", "refused", "flipped"])
def test_requests_that_fail_or_answer_wrongly_are_sent_again(
    stored, open_there, monkeypatch, fault
):
    chance = random.Random(0)

    def fail(content: bytes) -> bytes:
        if chance.random() < 0.5:
            return content
        if fault == "refused":
            raise ConnectionError("refused")
        return content[: len(content) // 2] if fault == "cut" else b"x" + content[1:]

    # So many that it cannot fail by chance.
    monkeypatch.setattr(remote, "ATTEMPTS", 20)
    monkeypatch.setattr(Faulty, "fail", staticmethod(fail))
    assert read(open_there()) == read(stored)


def test_a_changed_or_missing_object_is_refused_in_one_line(stored, open_there):
    content = bytearray(Faulty().cat_file("/store/train.ids"))
    content[70] ^= 1
    Faulty().pipe_file("/store/train.ids", bytes(content))
    with pytest.raises(DataError, match=r"faulty://store/train\.ids: damaged: its checksum is "):
        read(open_there())
    Faulty().rm("/store/train.ids")
    with pytest.raises(DataError, match=r"train\.ids: cannot be read: expected a store written b"):
        read(open_there())
    with pytest.raises(DataError, match=r"faulty://none/manifest\.json: cannot be read"):
        assert open_there(name="none").manifest
    with pytest.raises(DataError, match=r"data\.store: nosuch:.*: Protocol not known: nosuch"):
        assert open_store("nosuch://a", Path("data")).manifest


def test_a_changed_store_is_fetched_anew_and_a_damaged_copy_is_refused(stored, open_there):
    before = read(open_there())
    [copy] = stored.data_dir.parent.glob(f"there/*/*/{stored.manifest['files']['train.ids']}")
    copy.write_bytes(copy.read_bytes()[:-1])
    with pytest.raises(DataError, match=rf"{copy}: damaged: its checksum is not the manifest's"):
        read(open_there())
    copy.unlink()
    assert read(open_there()) == before


def test_a_full_disk_is_a_storage_error_and_leaves_no_copy(
    stored, open_there, limit_file_size, tmp_path
):
    with limit_file_size(1000), pytest.raises(StorageError, match=r"cannot be written \(File to"):
        read(open_there())
    copies = [path.name for path in (tmp_path / "there" / "prepared" / "fetched").glob("?" * 64)]
    assert len(copies) < len(FILES)


def test_a_copy_has_no_other_name_than_a_checksum(stored, open_there):
    there = open_there()
    there.manifest["files"]["train.ids"] = "../../outside"
    with pytest.raises(DataError, match=r"store/train\.ids: invalid checksum \.\./\.\./ou"):
        there.text("train")
