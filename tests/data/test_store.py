"""Tokens on disk."""

import json

import numpy as np
import pytest

from txl_lightning.data import DataError
from txl_lightning.data.corpora import split
from txl_lightning.data.store import prepare


def spans_of(path, text: bytes):
    path.write_bytes(text)
    return split([path], (0.5, 0.25, 0.25))


def test_ids_are_mapped_from_disk_in_the_smallest_type(tmp_path):
    store = prepare(spans_of(tmp_path / "a.txt", b"abcdabcd"), "characters", tmp_path)
    train = store.ids("train")
    assert isinstance(train, np.memmap)
    assert train.dtype == np.uint8
    assert store.vocab.decode(train.tolist()) == "abcd"
    assert [len(store.ids(name)) for name in ("train", "val", "test")] == [4, 2, 2]


def test_it_is_built_once(tmp_path):
    spans = spans_of(tmp_path / "a.txt", b"abcdabcd")
    first = prepare(spans, "bytes", tmp_path)
    stamp = (first.folder / "train.npy").stat().st_mtime_ns
    assert prepare(spans, "bytes", tmp_path).folder == first.folder
    assert (first.folder / "train.npy").stat().st_mtime_ns == stamp


def test_another_text_vocabulary_or_cut_is_another_store(tmp_path):
    path = tmp_path / "a.txt"
    folders = [prepare(spans_of(path, b"abcdabcd"), "bytes", tmp_path).folder]
    folders.append(prepare(spans_of(path, b"abcdabcd"), "characters", tmp_path).folder)
    folders.append(prepare(split([path], (1.0, 0.0, 0.0)), "bytes", tmp_path).folder)
    folders.append(prepare(spans_of(path, b"abcdabce"), "bytes", tmp_path).folder)
    assert len(set(folders)) == 4


def test_its_manifest_says_what_it_is(tmp_path):
    store = prepare(spans_of(tmp_path / "a.txt", b"abcdabcd"), "bytes", tmp_path)
    manifest = json.loads((store.folder / "manifest.json").read_text())
    assert manifest["text"] == store.sha256
    assert (manifest["vocab"], manifest["sizes"]) == ("bytes", [4, 2, 2])


def test_what_cannot_be_encoded_leaves_nothing_behind(tmp_path):
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare(spans_of(tmp_path / "a.txt", b"\xff\xfe\xfd\xfc"), "characters", tmp_path / "data")
    left = [path for path in (tmp_path / "data").rglob("*") if path.is_file()]
    assert [path.suffix for path in left] in ([], [".lock"])


def test_a_root_that_is_a_file_is_named(tmp_path):
    spans = spans_of(tmp_path / "a.txt", b"abcdabcd")
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=r"data\.root: .*file cannot be written"):
        prepare(spans, "bytes", tmp_path / "file")
