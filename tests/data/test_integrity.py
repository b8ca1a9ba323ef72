"""A damaged prepared text is rebuilt or refused; its tokens are never wrong."""

import gzip
import json
import os
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from txl_lightning import files
from txl_lightning.data import store
from txl_lightning.data.sources import DataConfig
from txl_lightning.data.store import Store
from txl_lightning.data.text_files import SPLITS
from txl_lightning.data.vocab import Bytes
from txl_lightning.errors import DataError
from txl_lightning.files import hash_file, hash_values, write_json


@pytest.fixture
def open_store(tmp_path, text_file, monkeypatch):
    """Open the prepared text, as all commands do; a file that has just changed counts as old."""
    monkeypatch.setattr(files, "MIN_AGE", 0)

    def run(whole=False, data="data") -> Store:
        where = {"path": str(text_file), "data_dir": str(tmp_path / data)}
        return DataConfig(vocab="characters", document_unit="lines", **where).open_text(whole)

    return run


FILES = ("train.ids", "train.starts", "vocab.json", "manifest.json")


def content(prepared: Store) -> list:
    texts = [prepared.text(split) for split in SPLITS]
    tokens = [text.ids_at(np.arange(len(text))).tolist() for text in texts]
    return [prepared.fingerprint, tokens, [text.starts.tolist() for text in texts]]


def flip_bit(path: Path, place: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[place // 8] ^= 1 << place % 8
    path.write_bytes(raw)


@pytest.mark.parametrize("damage", ["flip", "cut"])
def test_60_flipped_bits_or_truncations_anywhere_give_the_same_tokens(open_store, capsys, damage):
    chance = random.Random(0)
    first = open_store()
    expected = content(first)
    for _ in range(60):
        path = first.folder / chance.choice(FILES)
        times = os.stat(path)
        size = times.st_size
        if damage == "cut":
            os.truncate(path, chance.randrange(size))
        else:
            flip_bit(path, chance.randrange(8 * size))
        # Restoring the time stamp does not hide the damage.
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert content(open_store()) == expected
        [line] = capsys.readouterr().err.splitlines()
        assert (str(path) in line, "the store was made again" in line) == (True, True)


RECORDS = b"".join(b'{"text": "line %d", "id": %d}\n' % (n, n) for n in range(99))
PACKED = {
    "a.txt.gz": gzip.compress(b"some text\n" * 99),
    "a.jsonl": RECORDS,
    "a.jsonl.gz": gzip.compress(RECORDS),
    "x" * 240 + ".txt.gz": gzip.compress(b"a long name\n" * 99),
    "文" * 60 + ".txt.gz": gzip.compress(b"a longer name in bytes\n" * 99),
    ".gz": gzip.compress(b"a name that is an ending\n" * 99),
}


@pytest.mark.parametrize("damage", ["cut", "remove", "add", "contents"])
@pytest.mark.parametrize("name", PACKED, ids=lambda name: name[-12:])
def test_a_damaged_copy_of_what_was_unpacked_is_unpacked_again_with_a_message(
    tmp_path, monkeypatch, capsys, name, damage
):
    monkeypatch.setattr(files, "MIN_AGE", 0)
    path = tmp_path / "texts" / name
    path.parent.mkdir()
    path.write_bytes(PACKED[name])
    how = {"vocab": "bytes", "id_key": "id" if "jsonl" in name else None}

    def read() -> list:
        return content(
            DataConfig(path=str(path), data_dir=str(tmp_path / "data"), **how).open_text()
        )

    expected = read()
    assert read() == expected
    assert capsys.readouterr().err == ""
    folders = [*(tmp_path / "data" / "prepared").glob("*/files")]
    assert folders
    for folder in folders:
        for copy in [*folder.iterdir()]:
            if damage == "cut":
                os.truncate(copy, copy.stat().st_size // 2)
            elif damage == "remove":
                copy.unlink()
            elif damage == "add":
                (folder / "other").write_text("no part of it")
            else:
                (folder.parent / "contents.json").write_text("{}")
            assert read() == expected
            assert capsys.readouterr().err == f"warning: {folder.parent}: damaged; unpacked again\n"


@pytest.mark.parametrize("name", ["train.ids", "vocab.json", "manifest.json"])
def test_irreparable_damage_is_refused_with_the_file_name(open_store, limit_file_size, name):
    path = open_store().folder / name
    path.unlink()
    with limit_file_size(5000), pytest.raises(DataError, match=f"{path}: No such file or dir"):
        open_store()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ([], r"content: invalid \[\]; expected settings by name"),
        ("[" * 100_000, "damaged, or not JSON"),
        ({"version": 0}, "damaged: its checksum differs"),
        ({"tokens": {"train": 1, "val": 2, "test": "3"}}, "test: invalid '3'; expected a whole"),
        ({"files": None}, "files: invalid None; expected settings by name"),
    ],
)
def test_manifest_of_another_shape_is_named_with_what_is_wrong(open_store, change, message):
    prepared = open_store()
    path = prepared.folder / "manifest.json"
    changed = prepared.manifest | {"checksum": ""} | change if isinstance(change, dict) else change
    path.write_text(change if isinstance(change, str) else json.dumps(changed))
    with pytest.raises(DataError, match=rf"manifest\.json: {message}"):
        assert Store(prepared.folder, prepared.data_dir).manifest


def test_contents_are_read_once_and_again_when_copied_or_asked_for(
    open_store, tmp_path, monkeypatch
):
    folder = open_store().folder
    read = []
    find = store.find_problem
    monkeypatch.setattr(
        store, "find_problem", lambda path, *how: read.append(path) or find(path, *how)
    )
    assert content(open_store())
    assert read == []
    assert open_store(whole=True).folder == folder
    assert sorted(path.name for path in read) == sorted(store.FILES)
    shutil.copytree(tmp_path / "data", tmp_path / "copy")
    assert open_store(data="copy").folder.name == folder.name
    assert len(read) == 2 * len(store.FILES)


def test_prepare_check_detects_changes_that_keep_the_time_stamp(
    open_store, txl, text_file, monkeypatch
):
    path = open_store().folder / "train.ids"
    flip_bit(path, 99)
    monkeypatch.setattr(store, "cache_result", lambda *_: None)
    command = ("prepare", text_file, "--vocab=characters", "--document_unit=lines")
    command += (f"--data_dir={path.parents[2]}",)
    assert "made again" not in txl(*command)[1].err
    assert f"warning: {path}: damaged" in txl(*command, "--check=true")[1].err
    assert txl(*command, "--check=true")[1].err == ""


def test_ids_beyond_the_vocabulary_are_refused_although_their_checksum_is_right(open_store):
    prepared = open_store()
    path = prepared.folder / "train.ids"
    manifest = dict(prepared.manifest)
    ids = np.fromfile(path, np.uint8)
    beyond = prepared.vocab.n_token
    ids[-1] = beyond
    ids.tofile(path)
    manifest["files"] |= {"train.ids": hash_file(path)}
    write_json(manifest | {"checksum": hash_values(manifest)}, prepared.folder / "manifest.json")
    with pytest.raises(DataError, match=rf"ids: id {beyond} is beyond the {beyond} tokens"):
        Store(prepared.folder, prepared.data_dir).text("train")


def test_damaged_cache_is_recomputed_with_a_message(open_store, tmp_path, capsys):
    expected = content(open_store())
    caches = sorted((tmp_path / "data" / "prepared" / "cache").iterdir())
    saved = json.loads(caches[0].read_text())
    assert saved["checksum"] == hash_values(saved["result"])
    for damage in ("", "[" * 100_000, '{"result": 5, "checksum": "5"}', '"a"'):
        for path in caches:
            path.write_text(damage)
        assert content(open_store()) == expected
        lines = capsys.readouterr().err.splitlines()
        assert sorted(lines) == [f"warning: {path}: damaged; computed again" for path in caches]


def test_a_damaged_store_in_a_folder_is_refused_and_keeps_other_files(txl, text_file):
    command = ("prepare", text_file, "--out=store")
    assert txl(*command)[0] == 0
    path = Path("store/train.ids")
    (path.parent / "notes.txt").write_text("mine")
    assert txl(*command, "--check=true")[0] == 0
    flip_bit(path, 99)
    # Without a check, a file that was changed is read again.
    for more in ([], ["--check=true"]):
        code, output = txl(*command, *more)
        advice = "remove the folder, and prepare the text again"
        assert (code, output.err.strip()) == (3, f"error: out: {path}: damaged: its checksum is "
                                                 f"not the manifest's; {advice}")  # fmt: skip
    assert Path("store/notes.txt").read_text() == "mine"


def test_check_of_a_folder_finds_changes_that_keep_the_time_stamp(txl, text_file, monkeypatch):
    command = ("prepare", text_file, "--out=store")
    assert txl(*command)[0] == 0
    monkeypatch.setattr(store, "cache_result", lambda *_: "")
    flip_bit(Path("store/train.ids"), 99)
    assert [txl(*command, *more)[0] for more in ([], ["--check=true"])] == [0, 3]


def test_a_store_that_was_just_built_is_not_read_again(open_store, monkeypatch):
    read = []
    monkeypatch.setattr(store, "find_problem", lambda path, *_: read.append(path))
    prepared = open_store()
    assert len(content(prepared)) == 3
    # Nor by later processes, until it changes.
    assert content(open_store()) == content(prepared)
    assert read == []
    flip_bit(prepared.folder / "train.ids", 99)
    open_store()
    assert read == [prepared.folder / "train.ids"]


def test_an_id_beyond_the_vocabulary_is_refused_before_it_is_written(tmp_path):
    pieces = {"train": [(np.array([255, 256]), [0])], "val": [], "test": []}
    with pytest.raises(DataError, match=r"data\.vocab: id 256 is beyond the 256 tokens"):
        store.build_store(tmp_path, pieces, Bytes(), {})
