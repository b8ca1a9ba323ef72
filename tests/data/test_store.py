"""Tokens on disk."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from txl_lightning.data import fingerprint as identity_room
from txl_lightning.data.documents import FileSlice, whole_file
from txl_lightning.data.store import Recipe, prepare_store
from txl_lightning.data.user_files import split_by_fractions
from txl_lightning.data.vocab import WordOptions
from txl_lightning.errors import DataError, StorageError

FRACTIONS = (0.5, 0.25, 0.25)


def recipe(path, text: bytes, vocab: str = "bytes", fractions=FRACTIONS, **changes) -> Recipe:
    path.write_bytes(text)
    return Recipe(split_by_fractions(whole_file(path), fractions), vocab, **changes)


def test_ids_are_mapped_from_disk_in_the_smallest_type(tmp_path):
    store = prepare_store(recipe(tmp_path / "a.txt", b"abcdabcd", "characters"), tmp_path)
    train = store.ids("train")
    assert isinstance(train, np.memmap)
    assert train.dtype == np.uint8
    assert store.vocab.decode(train.tolist()) == "abcd"
    assert [len(store.ids(name)) for name in ("train", "val", "test")] == [4, 2, 2]


def test_more_than_256_tokens_take_two_bytes_each(tmp_path):
    text = " ".join(f"w{n}" for n in range(300)).encode()
    store = prepare_store(recipe(tmp_path / "a.txt", text, "words", (1.0, 0.0, 0.0)), tmp_path)
    assert store.ids("train").dtype == np.uint16
    assert store.vocab.decode(store.ids("train").tolist()[:3]) == "w0 w1 w2"
    assert len(store.ids("val")) == 0


def snapshot(folder) -> dict:
    """Every file and folder, with the time it was changed."""
    return {path: path.stat().st_mtime_ns for path in (folder, *folder.rglob("*"))}


def test_a_prepared_text_is_opened_without_writing_anything(tmp_path, monkeypatch):
    monkeypatch.setattr(identity_room, "SETTLED", 0)
    made = recipe(tmp_path / "a.txt", b"abcdabcd")
    first = prepare_store(made, tmp_path / "data")
    before = snapshot(tmp_path / "data")
    assert prepare_store(made, tmp_path / "data").folder == first.folder
    assert snapshot(tmp_path / "data") == before


def test_a_prepared_text_is_not_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(identity_room, "SETTLED", 0)
    made = recipe(tmp_path / "a.txt", b"abcdabcd")
    first = prepare_store(made, tmp_path / "data")
    monkeypatch.setattr(FileSlice, "chunks", lambda self: pytest.fail("read again"))
    assert (
        prepare_store(made, tmp_path / "data").ids("train").tolist() == first.ids("train").tolist()
    )


def test_a_text_that_changed_is_prepared_anew_even_at_once(tmp_path):
    first = prepare_store(recipe(tmp_path / "a.txt", b"abcdabcd"), tmp_path)
    second = prepare_store(recipe(tmp_path / "a.txt", b"dcbadcba"), tmp_path)
    assert bytes(second.ids("train")) == b"dcba"
    assert first.fingerprint != second.fingerprint


def test_another_text_vocabulary_cut_or_unit_is_another_store(tmp_path):
    path, text = tmp_path / "a.txt", b"ab cd\nab cd\n"
    recipes = [
        recipe(path, text),
        recipe(path, text, "characters"),
        recipe(path, text, "words"),
        recipe(path, text, "words", words=WordOptions(line_end="none")),
        recipe(path, text, fractions=(1.0, 0.0, 0.0)),
        recipe(path, text, document_unit="lines"),
        recipe(path, text, document_unit="files"),
    ]
    stores = [prepare_store(made, tmp_path) for made in recipes]
    assert len({store.folder for store in stores}) == 7
    assert len({store.fingerprint for store in stores}) == 7
    other = prepare_store(recipe(path, b"ab cd\nab ce\n"), tmp_path)
    assert other.fingerprint not in {store.fingerprint for store in stores}


def test_a_text_in_other_files_is_another_store(tmp_path):
    stores = []
    for parts in ((b"ab", b"cd"), (b"abc", b"d"), (b"abcd",)):
        paths = [tmp_path / f"{len(parts)}{n}{part.decode()}" for n, part in enumerate(parts)]
        for path, part in zip(paths, parts, strict=True):
            path.write_bytes(part)
        spans = [span for path in paths for span in whole_file(path)]
        stores.append(
            prepare_store(Recipe(dict.fromkeys(("train", "val", "test"), spans)), tmp_path)
        )
    assert len({store.folder for store in stores}) == 3
    assert len({store.fingerprint for store in stores}) == 3


def test_a_vocabulary_file_gives_the_fingerprint_of_what_it_holds(tmp_path):
    built = prepare_store(recipe(tmp_path / "a.txt", b"abcdabcd", "characters"), tmp_path)
    (tmp_path / "mine.json").write_text(built.vocab.to_json())
    named = prepare_store(
        recipe(tmp_path / "a.txt", b"abcdabcd", str(tmp_path / "mine.json")), tmp_path
    )
    assert named.fingerprint == built.fingerprint


def test_documents_are_kept_with_the_tokens(tmp_path):
    text = b"one\ntwo words\n\nthree"
    lines = recipe(tmp_path / "a.txt", text, fractions=(1.0, 0.0, 0.0), document_unit="lines")
    store = prepare_store(lines, tmp_path)
    assert store.text("train").starts.tolist() == [0, 4, 14, 15]
    assert store.text("train").depth(np.array([0, 3, 4, 14, 15, 19])).tolist() == [0, 3, 0, 0, 0, 4]
    paths = [tmp_path / name for name in ("x", "y", "z")]
    for path in paths:
        path.write_bytes(b"12345")
    spans = [span for path in paths for span in whole_file(path)]
    splits = {"train": spans, "val": spans[:1], "test": spans[:1]}
    store = prepare_store(Recipe(splits, document_unit="files"), tmp_path)
    assert store.text("train").starts.tolist() == [0, 5, 10]
    together = prepare_store(Recipe(splits), tmp_path)
    assert together.text("train").starts.tolist() == [0]
    assert together.ids("train").tolist() == store.ids("train").tolist()


def test_the_bar_counts_every_byte_that_is_encoded(tmp_path):
    for unit in (None, "files", "lines"):
        advanced = []
        made = recipe(tmp_path / "a.txt", b"ab\ncde\n" * 10, "words", (1, 0, 0), document_unit=unit)
        documents = list(made.documents("train", advanced.append))
        assert b"".join(chunk for part in documents for chunk in part.chunks()) == b"ab\ncde\n" * 10
        assert sum(advanced) == 70


def test_what_the_vocabulary_lacks_is_counted(tmp_path):
    made = recipe(tmp_path / "a.txt", b"a b a b c d a b ", "words", words=WordOptions(min_freq=2))
    store = prepare_store(made, tmp_path)
    assert store.vocab.words == ("<eos>", "a", "b", "<unk>")
    assert store.manifest["unknown"] == {"train": 0, "val": 2, "test": 0}
    plain = prepare_store(recipe(tmp_path / "a.txt", b"abcd"), tmp_path)
    assert set(plain.manifest["unknown"].values()) == {0}


def test_its_manifest_says_what_it_is(tmp_path):
    store = prepare_store(recipe(tmp_path / "a.txt", b"ab cdab cd", "words"), tmp_path)
    manifest = json.loads((store.folder / "manifest.json").read_text())
    assert len(manifest["text"]) == 64
    assert manifest["vocab"] == "words"
    assert manifest["words"]["min_freq"] == 0
    assert manifest["bytes"] == {"train": 5, "val": 2, "test": 3}
    assert manifest["tokens"]["train"] == len(store.ids("train"))
    assert store.bytes_per_token("train") == 5 / len(store.ids("train"))


def test_what_cannot_be_encoded_leaves_nothing_behind(tmp_path):
    made = recipe(tmp_path / "a.txt", b"\xff\xfe\xfd\xfc", "characters")
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare_store(made, tmp_path / "data")
    left = [path.suffix for path in (tmp_path / "data" / "prepared").iterdir()]
    assert left == [".lock"]


def test_a_root_that_is_a_file_is_named(tmp_path):
    made = recipe(tmp_path / "a.txt", b"abcdabcd")
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"data\.data_dir: .*file cannot be written"):
        prepare_store(made, tmp_path / "file")


HOLD = """
import sys, time
from pathlib import Path
from txl_lightning.data import store
from txl_lightning.data.documents import whole_file
text, root, seconds = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
build = store.build_store
def slowly(folder, *rest):
    (root / "building").write_text("")
    time.sleep(seconds)
    build(folder, *rest)
    with (root / "built").open("a") as file:
        file.write("once ")
store.build_store = slowly
spans = whole_file(text)
done = store.prepare_store(store.Recipe({"train": spans, "val": spans, "test": spans}), root)
print(done.folder)
"""


def start(text, root, seconds: float) -> subprocess.Popen:
    root.mkdir(exist_ok=True)
    command = [sys.executable, "-c", HOLD, str(text), str(root), str(seconds)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def wait_for(path) -> None:
    deadline = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_of_two_processes_one_builds_and_the_other_waits(tmp_path):
    text, root = tmp_path / "a.txt", tmp_path / "data"
    text.write_bytes(b"abcd" * 100)
    first = start(text, root, 0.5)
    wait_for(root / "building")
    second = start(text, root, 0.0)
    folders = [process.communicate(timeout=30)[0] for process in (first, second)]
    assert folders[0] == folders[1] != ""
    assert (root / "built").read_text() == "once "


def test_a_builder_that_was_killed_is_not_in_the_way(tmp_path):
    text, root = tmp_path / "a.txt", tmp_path / "data"
    text.write_bytes(b"abcd" * 100)
    killed = start(text, root, 60)
    wait_for(root / "building")
    os.kill(killed.pid, signal.SIGKILL)
    killed.communicate()
    spans = whole_file(text)
    made = Recipe({"train": spans, "val": spans, "test": spans})
    key = next((root / "prepared").glob("*.lock")).name.removesuffix(".lock")
    (root / "prepared" / f"{key}.part-left").mkdir()
    store = prepare_store(made, root)
    assert len(store.ids("train")) == 400
    assert not list((root / "prepared").glob("*.part-*"))
