"""Preparation by several processes, one of which may be killed."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.data import encoding as encoding_module
from txl_lightning.data.encoding import Encoding, prepare_folder, prepare_text
from txl_lightning.data.text_files import slice_file
from txl_lightning.data.vocab import WordOptions
from txl_lightning.errors import DataError

LINES = [f"line {n} of İstanbul" + " and more" * (n % 9) + "\r\n" * (n % 5 < 4) for n in range(300)]
TEXT = "\n".join(["", *LINES, " \t", "x\ry", "no end"]).encode()
TEXTS = {"a.txt": TEXT, "b.txt": b"b\n", "c.txt": TEXT[:999].strip()}


@pytest.fixture
def make_encoding(write_files):
    def make(**options) -> Encoding:
        folder = write_files(TEXTS)
        slices = [part for name in TEXTS for part in slice_file(folder / name)]
        return Encoding({"train": slices, "val": slices[1:], "test": []}, **options)

    return make


def hash_store(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.mark.parametrize(
    ("vocab", "unit"),
    [("words", "lines"), ("bpe", "lines"), ("characters", "lines"), ("words", "files")],
)
def test_documents_in_batches_have_the_ids_and_starts_of_documents_one_by_one(
    make_encoding, tmp_path, monkeypatch, unit, vocab
):
    words = WordOptions(line_end="double_eos", lower_case=True, max_size=20)
    encoding = make_encoding(vocab=vocab, document_unit=unit, words=words)
    batched = prepare_folder(encoding, tmp_path / "batched", tmp_path).text("train")
    monkeypatch.setattr(encoding_module, "SHORT_BYTES", 0)
    single = prepare_folder(encoding, tmp_path / "single", tmp_path).text("train")
    np.testing.assert_array_equal(batched.ids, single.ids)
    assert batched.starts.tolist() == single.starts.tolist()
    # As editors count them: \r\n and \r end a line, too.
    n_line = sum(len(text.splitlines()) for text in TEXTS.values())
    assert len(batched.starts) == (3 if unit == "files" else n_line)


def test_an_unknown_word_in_a_batch_is_named_with_its_file(make_encoding, tmp_path, write_files):
    (tmp_path / "known.txt").write_text("line\nof\n")
    words = WordOptions(unknown="error")
    encoding = make_encoding(vocab=str(tmp_path / "known.txt"), document_unit="files", words=words)
    with pytest.raises(DataError, match=r"a\.txt: '0' is not among the vocabulary's"):
        prepare_folder(encoding, tmp_path / "store", tmp_path)


def test_the_number_of_workers_is_checked(refused, text_file):
    command = ("prepare", text_file, "--out=store")
    assert refused(*command, "--workers=0") == (2, "workers: invalid 0; expected at least 1")


def test_a_store_is_made_once_and_its_folder_is_that_of_one_text(txl, text_file, tmp_path):
    command = ("prepare", text_file, "--out=store")
    first = txl(*command)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("store/*")}
    again = txl(*command)
    assert (first[0], again) == (0, first)
    assert times == {path: path.stat().st_mtime_ns for path in tmp_path.glob("store/*")}
    code, output = txl(*command, "--document_unit=lines")
    expected = "out: invalid store; expected a new folder, or a store of the same text"
    assert (code, expected in output.err) == (2, True)
    code, output = txl("prepare", "store", "--out=copy")
    assert "out: invalid copy; expected null with a store; copy its folder" in output.err
    assert (code, Path("copy").exists()) == (2, False)


def test_a_store_has_the_fingerprint_of_its_text(make_encoding, tmp_path):
    encoding = make_encoding(vocab="words", document_unit="lines")
    alone = prepare_folder(encoding, tmp_path / "store", tmp_path)
    assert alone.fingerprint == prepare_text(encoding, tmp_path).fingerprint


DRIVER = """
import os, signal, sys
from pathlib import Path
from txl_lightning.data import encoding
from txl_lightning.data.text_files import FileSlice
from txl_lightning.data.vocab import Bytes

# Inherited by processes.
MAIN = os.environ.setdefault("MAIN", str(os.getpid()))

class Slice(FileSlice):
    def chunks(self):
        # The main process hashes the text, and finds its words.
        if str(os.getpid()) != MAIN:
            if "kill" in sys.argv[1:] and self.start > 5000:
                os.kill(os.getpid(), signal.SIGKILL)
            with open("log", "a") as log:
                print(os.getpid(), file=log, flush=True)
        return super().chunks()

if __name__ == "__main__":
    encoding.PIECE_BYTES = 1000
    size = os.path.getsize("a.txt")
    slices = [Slice(Path("a.txt").absolute(), 0, size)]
    made = encoding.Encoding({"train": slices, "val": [], "test": []}, "words")
    assert len([*encoding.plan_pieces(slices, Bytes())]) > 20
    encoding.prepare_folder(made, Path(sys.argv[1]).absolute(), Path("data"), int(sys.argv[2]))
"""


@pytest.fixture
def drive(tmp_path):
    """Prepare TEXT, more than 20 pieces of it, by a script with its own slices."""
    (tmp_path / "a.txt").write_bytes(TEXT.replace(b"\r", b" ") * 2)
    (tmp_path / "driver.py").write_text(DRIVER)

    def run(*words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-W", "ignore", "driver.py", *map(str, words)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=240)

    return run


@pytest.mark.slow
def test_processes_give_the_files_of_one_process(drive, tmp_path):
    assert drive("one", 1).returncode == 0
    assert not (tmp_path / "log").exists()
    assert drive("many", 3).returncode == 0
    assert hash_store(tmp_path / "many") == hash_store(tmp_path / "one")
    assert (tmp_path / "log").exists()


@pytest.mark.slow
def test_a_killed_process_is_a_storage_error_and_leaves_no_store(drive, tmp_path):
    process = drive("many", 3, "kill")
    message = "StorageError: workers: one was killed; give more memory, or fewer workers"
    assert process.stderr.splitlines()[-1].endswith(message)
    assert not (tmp_path / "many").exists()
