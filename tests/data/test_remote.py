"""Stores in object storage, with faults between it and us."""

import random
import time
import tracemalloc
from collections import Counter
from typing import ClassVar

import fsspec
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from txl_lightning.data import remote, store_parts, units
from txl_lightning.data.documents import whole_file
from txl_lightning.data.preparation import Recipe, prepare_apart
from txl_lightning.data.remote import DiskCache
from txl_lightning.data.store import Store, open_store
from txl_lightning.data.stream import FixedLengths, Stream
from txl_lightning.errors import DataError


class Faulty(MemoryFileSystem):
    """Files in memory, whose requests are counted and may fail."""

    protocol = "faulty"
    requests: ClassVar = Counter()
    fail = staticmethod(lambda content: content)

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("faulty:", "memory:"))

    def cat_file(self, path, start=None, end=None, **kwargs):
        self.requests[path, start] += 1
        return self.fail(super().cat_file(path, start=start, end=end))


fsspec.register_implementation("faulty", Faulty, clobber=True)


@pytest.fixture
def stored(tmp_path, monkeypatch, write_files):
    """A store of several parts, of blocks of 64 bytes, on disk and at faulty://store."""
    for module in (store_parts, remote):
        monkeypatch.setattr(module, "BLOCK", 64)
    monkeypatch.setattr(remote, "FIRST_PAUSE", 0.001)
    monkeypatch.setattr(units, "PART", 500)
    monkeypatch.setattr(Faulty, "fail", staticmethod(lambda content: content))
    Faulty.requests.clear()
    lines = [b"%d line\n" % n for n in range(400)]
    path = write_files({"a.txt": b"".join(lines)}) / "a.txt"
    splits = {"train": whole_file(path), "val": [], "test": whole_file(path)}
    store = prepare_apart(Recipe(splits, document_unit="lines"), tmp_path / "store")
    for path in store.folder.rglob("*.*"):
        Faulty().pipe_file(f"/store/{path.relative_to(store.folder)}", path.read_bytes())
    yield store
    Faulty.store.clear()


def read(store: Store, batch_size: int = 4) -> list:
    stream = Stream(store.text("train"), batch_size, FixedLengths(16))
    return [(s.tokens_BL.tolist(), s.targets_BL.tolist(), s.doc_pos_BL.tolist()) for s in stream]


def test_a_remote_store_is_that_on_disk(stored):
    there = open_store("faulty://store/")
    assert there.fingerprint == stored.fingerprint
    assert read(there) == read(stored)
    np.testing.assert_array_equal(there.ids("test"), stored.ids("test"))
    np.testing.assert_array_equal(there.text("train").starts, stored.text("train").starts)


def test_all_ids_of_a_url_need_little_more_memory_than_their_bytes(tmp_path, write_files):
    path = write_files({"a.txt": bytes(range(32, 128)) * 50_000}) / "a.txt"
    splits = {"train": whole_file(path), "val": [], "test": []}
    store = prepare_apart(Recipe(splits), tmp_path / "store")
    for path in store.folder.rglob("*.*"):
        Faulty().pipe_file(f"/large/{path.relative_to(store.folder)}", path.read_bytes())
    tracemalloc.start()
    try:
        ids = open_store("faulty://large").ids("train")
        assert tracemalloc.get_traced_memory()[1] < 4 * len(ids)
    finally:
        tracemalloc.stop()
        Faulty.store.clear()
    np.testing.assert_array_equal(ids, store.ids("train"))


def test_each_block_is_fetched_once_and_three_of_each_row_are_kept(stored):
    there = open_store("faulty://store")
    assert read(there) == read(stored)
    blocks = {key: n for key, n in Faulty.requests.items() if key[1] is not None}
    n_block = sum(-(-part.n_token // 64) for part in stored.text("train").parts)
    assert len(blocks) == n_block
    # A row may begin in the block where another one ends.
    assert sum(blocks.values()) <= n_block + 2 * 4
    assert len(there.files.blocks) <= 3 * 4


@pytest.mark.parametrize("fault", ["cut", "refused", "flipped"])
def test_requests_that_fail_are_sent_again(stored, monkeypatch, fault):
    chance = random.Random(0)

    def fail(content: bytes) -> bytes:
        if chance.random() < 0.7:
            return content
        if fault == "refused":
            raise ConnectionError("refused")
        return content[: len(content) // 2] if fault == "cut" else b"x" + content[1:]

    # So many that it cannot fail by chance.
    monkeypatch.setattr(remote, "ATTEMPTS", 20)
    # vocab.json and the manifest have no checksum until they are read whole.
    there = open_store("faulty://store")
    assert there.fingerprint
    monkeypatch.setattr(Faulty, "fail", staticmethod(fail))
    assert read(there) == read(stored)


def test_a_changed_or_missing_object_is_refused_in_one_line(stored, monkeypatch):
    path = "/store/train/00001.ids"
    content = bytearray(Faulty().cat_file(path))
    content[70] ^= 1
    Faulty().pipe_file(path, bytes(content))
    with pytest.raises(DataError, match=r"faulty://store/train/00001\.ids: damaged: block 2 of"):
        read(open_store("faulty://store"))
    Faulty().rm(path)
    with pytest.raises(DataError, match=r"00001\.ids: cannot be read: expected a store"):
        read(open_store("faulty://store"))
    with pytest.raises(DataError, match=r"faulty://none/manifest\.json: cannot be read"):
        assert open_store("faulty://none").manifest
    with pytest.raises(DataError, match=r"data\.store: nosuch://a: Protocol not known: nosuch"):
        assert open_store("nosuch://a").manifest


def test_rows_of_many_parts_wait_for_one_request_at_a_time(stored, monkeypatch):
    """20 rows begin in 8 parts: their files are fetched in parallel, then their blocks."""
    active, most = [], []

    def wait(content: bytes) -> bytes:
        active.append(1)
        most.append(len(active))
        time.sleep(0.02)
        active.pop()
        return content

    there = open_store("faulty://store")
    assert there.manifest
    monkeypatch.setattr(Faulty, "fail", staticmethod(wait))
    Stream(there.text("train"), 20, FixedLengths(16)).segment(0)
    assert max(most) >= 6


def test_a_disk_cache_saves_requests_and_stays_within_its_limit(stored, tmp_path):
    expected, cache = read(stored), DiskCache(tmp_path / "blocks", 64 * 20)
    for _ in range(2):
        Faulty.requests.clear()
        assert read(Store("faulty://store", cache), 1) == read(stored, 1)
        assert len([*cache.folder.iterdir()]) <= 20
    large = DiskCache(tmp_path / "large", 1 << 20)
    for n_request in (None, 0):
        Faulty.requests.clear()
        assert read(Store("faulty://store", large)) == expected
        n_block = sum(n for (_, start), n in Faulty.requests.items() if start is not None)
        assert n_request is None or n_block == n_request
    for path in large.folder.iterdir():
        path.write_bytes(b"damaged")
    assert read(Store("faulty://store", large)) == expected


def test_a_block_whose_request_failed_is_requested_again(stored, monkeypatch):
    def fail(content: bytes) -> bytes:
        raise ConnectionError("refused")

    monkeypatch.setattr(remote, "ATTEMPTS", 1)
    there = open_store("faulty://store")
    text, far = there.text("train"), np.array([400])
    # Its checksums are there; of the ids, two blocks of 64 bytes.
    text.ids_at(np.zeros(1, np.int64))
    monkeypatch.setattr(Faulty, "fail", staticmethod(fail))
    with pytest.raises(DataError, match="refused"):
        text.ids_at(far)
    monkeypatch.setattr(Faulty, "fail", staticmethod(lambda content: content))
    assert text.ids_at(far) == stored.text("train").ids_at(far)
