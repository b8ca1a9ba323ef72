"""Tokens on disk."""

import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from txl_lightning.data import documents, store
from txl_lightning.data.documents import FileSlice, whole_file
from txl_lightning.data.store import Recipe, prepare_store
from txl_lightning.data.user_files import split_by_fractions
from txl_lightning.data.vocab import WordOptions
from txl_lightning.errors import DataError, StorageError

FRACTIONS = (0.5, 0.25, 0.25)
ALL_TRAIN = (1.0, 0.0, 0.0)


@pytest.fixture
def recipe(write_files):
    """The recipe of a text in one file."""

    def make(text: bytes, vocab="bytes", fractions=FRACTIONS, **changes) -> Recipe:
        path = write_files({"a.txt": text}) / "a.txt"
        return Recipe(split_by_fractions(whole_file(path), fractions), str(vocab), **changes)

    return make


@pytest.fixture
def files_recipe(write_files):
    """The recipe of a text in several files, that is all of train, of val and of test."""

    def make(*texts: bytes, **changes) -> Recipe:
        names = {f"{len(texts)}{n}{text.decode()}": text for n, text in enumerate(texts)}
        folder = write_files(names)
        slices = [part for name in names for part in whole_file(folder / name)]
        return Recipe(dict.fromkeys(("train", "val", "test"), slices), **changes)

    return make


@pytest.fixture
def prepare(tmp_path, recipe):
    return lambda *args, **changes: prepare_store(recipe(*args, **changes), tmp_path)


def test_ids_are_mapped_from_disk_in_the_smallest_type(prepare):
    store = prepare(b"abcdabcd", "characters")
    assert isinstance(store.ids("train"), np.memmap)
    assert store.ids("train").dtype == np.uint8
    assert store.vocab.decode(store.ids("train").tolist()) == "abcd"
    assert [len(store.ids(name)) for name in ("train", "val", "test")] == [4, 2, 2]
    # Of 256 ids the last is 255.
    for n_word, dtype in ((254, np.uint8), (255, np.uint16)):
        words = prepare(" ".join(f"w{n}" for n in range(n_word)).encode(), "words", ALL_TRAIN)
        assert words.ids("train").dtype == dtype
        assert words.vocab.decode(words.ids("train").tolist()[:3]) == "w0 w1 w2"
        assert len(words.ids("val")) == 0


def test_prepared_text_is_neither_read_nor_written_again(tmp_path, recipe, monkeypatch):
    monkeypatch.setattr(documents, "SETTLED", 0)
    made = recipe(b"abcdabcd")
    first = prepare_store(made, tmp_path / "data")
    files = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    before = {path: path.stat().st_mtime_ns for path in files}
    monkeypatch.setattr(FileSlice, "chunks", lambda self: pytest.fail("read again"))
    again = prepare_store(made, tmp_path / "data")
    assert (again.folder, again.ids("train").tolist()) == (first.folder, [*b"abcd"])
    after = [tmp_path / "data", *(tmp_path / "data").rglob("*")]
    assert {path: path.stat().st_mtime_ns for path in after} == before


def test_everything_that_changes_the_tokens_gives_another_store(tmp_path, prepare, files_recipe):
    text = b"ab cd\nab cd\n"
    stores = [
        prepare(text),
        prepare(text, "characters"),
        prepare(text, "words"),
        prepare(text, "words", words=WordOptions(line_end="none")),
        prepare(text, fractions=ALL_TRAIN),
        prepare(text, document_unit="lines"),
        prepare(text, document_unit="files"),
        # A file that has just changed is read again.
        prepare(b"ab cd\nab ce\n"),
        *(
            prepare_store(files_recipe(*texts), tmp_path)
            for texts in ((b"ab", b"cd"), (b"abc", b"d"), (b"abcd",))
        ),
    ]
    assert len({store.folder for store in stores}) == len(stores)
    assert len({store.fingerprint for store in stores}) == len(stores)


def test_vocabulary_file_gives_the_fingerprint_of_its_vocabulary(tmp_path, prepare):
    built = prepare(b"abcdabcd", "characters")
    (tmp_path / "mine.json").write_text(built.vocab.to_json())
    assert prepare(b"abcdabcd", tmp_path / "mine.json").fingerprint == built.fingerprint


def test_documents_begin_where_lines_or_files_do(tmp_path, prepare, files_recipe):
    lines = prepare(b"one\ntwo words\n\nthree", fractions=ALL_TRAIN, document_unit="lines")
    assert lines.text("train").starts.tolist() == [0, 4, 14, 15]
    for unit, starts in (("files", [0, 5, 10]), (None, [0])):
        store = prepare_store(files_recipe(*[b"12345"] * 3, document_unit=unit), tmp_path)
        assert store.text("train").starts.tolist() == starts
        assert bytes(store.ids("train")) == b"12345" * 3


@pytest.mark.parametrize("unit", [None, "files", "lines"])
def test_progress_counts_every_byte_that_is_encoded(recipe, unit):
    advanced = []
    made = recipe(b"ab\ncde\n" * 10, "words", ALL_TRAIN, document_unit=unit)
    documents = list(made.documents("train", advanced.append))
    assert b"".join(chunk for part in documents for chunk in part.chunks()) == b"ab\ncde\n" * 10
    assert sum(advanced) == 70


def test_manifest_has_the_recipe_and_the_counts(prepare):
    store = prepare(b"a b a b c d a b ", "words", words=WordOptions(min_freq=2))
    assert store.vocab.words == ("<eos>", "a", "b", "<unk>")
    assert len(store.manifest["text"]) == 64
    assert (store.manifest["vocab"], store.manifest["words"]["min_freq"]) == ("words", 2)
    assert store.manifest["bytes"] == {"train": 8, "val": 4, "test": 4}
    assert store.manifest["tokens"] == {"train": 5, "val": 3, "test": 3}
    assert store.manifest["unknown"] == {"train": 0, "val": 2, "test": 0}
    assert set(prepare(b"abcd").manifest["unknown"].values()) == {0}


@pytest.mark.parametrize(
    ("line_end", "bytes_per_token"), [("eos", 8 / 6), ("double_eos", 8 / 6), ("none", 8 / 4)]
)
def test_bytes_per_token_do_not_count_the_symbol_that_starts_a_document(
    prepare, line_end, bytes_per_token
):
    options = WordOptions(line_end=line_end)
    store = prepare(b"a b\na b\n", "words", ALL_TRAIN, words=options, document_unit="lines")
    assert store.bytes_per_token("train") == bytes_per_token


def test_text_that_cannot_be_encoded_or_stored_leaves_nothing_behind(tmp_path, recipe, monkeypatch):
    with pytest.raises(DataError, match="is not UTF-8"):
        prepare_store(recipe(b"\xff\xfe\xfd\xfc", "characters"), tmp_path / "data")
    assert [path.suffix for path in (tmp_path / "data" / "prepared").iterdir()] == [".lock"]
    monkeypatch.setattr(documents, "SETTLED", 0)
    (tmp_path / "file").touch()
    with pytest.raises(StorageError, match=r"file/prepared/\w+: cannot be written \("):
        prepare_store(recipe(b"abcdabcd"), tmp_path / "file")


DYING_BUILD = """
import os, signal
from pathlib import Path
from txl_lightning.data import store
from txl_lightning.data.documents import whole_file
store.encode_split = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
splits = dict.fromkeys(("train", "val", "test"), whole_file(Path("10abcd")))
store.prepare_store(store.Recipe(splits), Path("."))
"""


@pytest.mark.slow
def test_builder_that_was_killed_leaves_nothing_in_the_way(tmp_path, files_recipe):
    recipe = files_recipe(b"abcd")
    done = subprocess.run([sys.executable, "-c", DYING_BUILD], cwd=tmp_path)
    assert done.returncode == -signal.SIGKILL
    assert list((tmp_path / "prepared").glob("*.part-*"))
    assert bytes(prepare_store(recipe, tmp_path).ids("train")) == b"abcd"
    assert not list((tmp_path / "prepared").glob("*.part-*"))


def test_of_two_builders_one_builds_and_the_other_waits(tmp_path, files_recipe, monkeypatch):
    recipe, build, built = files_recipe(b"abcd"), store.build_store, []

    def build_slowly(*args):
        built.append(args)
        time.sleep(0.2)
        build(*args)

    monkeypatch.setattr(store, "build_store", build_slowly)
    with ThreadPoolExecutor(2) as pool:
        stores = list(pool.map(prepare_store, [recipe] * 2, [tmp_path] * 2))
    assert stores[0] == stores[1]
    assert len(built) == 1
