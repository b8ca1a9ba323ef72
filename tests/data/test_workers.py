"""Preparation by several workers, which may die."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from txl_lightning.data import units
from txl_lightning.data.documents import whole_file
from txl_lightning.data.preparation import Recipe, build_share, join_shares, prepare_apart
from txl_lightning.data.vocab import WordOptions
from txl_lightning.data.workers import build_here
from txl_lightning.errors import DataError

LINES = [f"line {n} of İstanbul" + " and more" * (n % 9) + "\r\n" * (n % 5 < 4) for n in range(300)]
TEXT = "\n".join(["", *LINES, " \t", "x\ry", "no end"]).encode()
TEXTS = {"a.txt": TEXT, "b.txt": b"b\n", "c.txt": TEXT[:999].strip()}


@pytest.fixture
def make_recipe(write_files):
    def make(**options) -> Recipe:
        folder = write_files(TEXTS)
        slices = [part for name in TEXTS for part in whole_file(folder / name)]
        return Recipe({"train": slices, "val": slices[1:], "test": []}, **options)

    return make


def hash_store(folder: Path) -> dict[str, str]:
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


@pytest.mark.parametrize("unit", ["lines", "files"])
@pytest.mark.parametrize("vocab", ["words", "bpe", "characters"])
def test_documents_in_batches_have_the_ids_and_starts_of_documents_one_by_one(
    make_recipe, tmp_path, monkeypatch, unit, vocab
):
    words = WordOptions(line_end="double_eos", lower_case=True, max_size=20)
    recipe = make_recipe(vocab=vocab, document_unit=unit, words=words)
    batched = prepare_apart(recipe, tmp_path / "batched").text("train")
    monkeypatch.setattr(units, "SHORT", 0)
    single = prepare_apart(recipe, tmp_path / "single").text("train")
    np.testing.assert_array_equal(batched.whole, single.whole)
    assert batched.starts.tolist() == single.starts.tolist()
    n_line = sum(len(text.removesuffix(b"\n").split(b"\n")) for text in TEXTS.values())
    assert len(batched.starts) == (3 if unit == "files" else n_line)


def test_an_unknown_word_in_a_batch_is_named_with_its_file(make_recipe, tmp_path, write_files):
    (tmp_path / "known.txt").write_text("line\nof\n")
    words = WordOptions(unknown="error")
    recipe = make_recipe(vocab=str(tmp_path / "known.txt"), document_unit="files", words=words)
    with pytest.raises(DataError, match=r"a\.txt: '0' is not among the vocabulary's"):
        prepare_apart(recipe, tmp_path / "store")


@pytest.mark.parametrize("n_share", [3, 8])
def test_shares_in_any_number_and_order_give_the_same_files(
    make_recipe, tmp_path, monkeypatch, n_share
):
    monkeypatch.setattr(units, "PART", 700)
    recipe = make_recipe(vocab="bpe", document_unit="lines")
    expected = hash_store(prepare_apart(recipe, tmp_path / "one").folder)
    assert len(expected) > 3 * 2 * n_share
    with pytest.raises(ValueError, match=r"join: invalid .*many\.parts; expected the parts that"):
        join_shares(recipe, tmp_path / "many")
    for nth in reversed(range(1, n_share + 1)):
        build_share(recipe, tmp_path / "many", build_here, nth, n_share)
        if nth > 1:
            with pytest.raises(DataError, match=r"\d+ of \d+ parts are missing: train/00000"):
                join_shares(recipe, tmp_path / "many")
    assert hash_store(join_shares(recipe, tmp_path / "many").folder) == expected
    assert not (tmp_path / "many.parts").exists()


def test_parts_of_other_settings_and_truncated_ones_are_not_joined(
    make_recipe, tmp_path, monkeypatch
):
    monkeypatch.setattr(units, "PART", 700)
    recipe, out = make_recipe(document_unit="lines"), tmp_path / "store"
    build_share(recipe, out, build_here)
    with pytest.raises(ValueError, match=r"out: invalid .*\.parts; expected parts of the same"):
        build_share(make_recipe(document_unit="files"), out, build_here)
    os.truncate(tmp_path / "store.parts/train/00003.ids", 5)
    with pytest.raises(DataError, match=r"00003\.ids: damaged: 5 bytes of"):
        join_shares(recipe, out)
    assert not out.exists()


def test_parts_that_are_there_are_not_built_again(make_recipe, tmp_path, monkeypatch):
    monkeypatch.setattr(units, "PART", 700)
    recipe, built = make_recipe(document_unit="lines"), []
    build_share(recipe, tmp_path / "store", build_here, 1, 2)
    monkeypatch.setattr(units, "encode_unit", lambda unit, _: built.append(unit.nth) or iter(()))
    build_share(recipe, tmp_path / "store", build_here)
    assert built == [unit.nth for unit in recipe.plan_units()][1::2]


@pytest.mark.parametrize("part", ["0/3", "4/3", "1", "a/b", "1/3/5", "-1/2"])
def test_invalid_shares_are_refused(txl, text_file, part):
    code, output = txl("prepare", text_file, "--out=store", f"--part={part}")
    expected = f"error: part: invalid {part}; expected i/n with i from 1 to n, as 1/8\n"
    assert (code, output.err) == (2, expected)


def test_prepare_encodes_shares_and_joins_them(txl, text_file, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    command = ("prepare", text_file, "--out=store")
    for part in ("1/2", "2/2"):
        assert txl(*command, f"--part={part}")[0] == 0
    code, output = txl(*command, "--join=true")
    assert (code, output.err) == (0, "")
    assert txl("prepare", text_file, "--out=other")[1].out == output.out.replace("store", "other")
    code, output = txl("prepare", text_file, "--part=1/2")
    assert "out: invalid null; expected a folder, with part or join" in output.err
    code, output = txl(*command, "--workers=0")
    assert "workers: invalid 0; expected a number above 0" in output.err


DRIVER = """
import os, signal, sys, time
from functools import partial
from pathlib import Path
from txl_lightning.data import units, workers
from txl_lightning.data.documents import FileSlice
from txl_lightning.data.preparation import Recipe, prepare_apart

class Slice(FileSlice):
    def chunks(self):
        if "kill" in sys.argv[1:] and self.start > 5000 and not Path("killed").exists():
            Path("killed").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        with open("log", "a") as log:
            print(os.getpid(), file=log, flush=True)
        SLEEP
        return super().chunks()

def main(build):
    units.PART = 1000
    size = os.path.getsize("a.txt")
    slices = [Slice(Path("a.txt").absolute(), 0, size)]
    recipe = Recipe({"train": slices, "val": [], "test": []}, "words")
    prepare_apart(recipe, Path(sys.argv[1]).absolute(), build)
"""
PROCESSES = """
if __name__ == "__main__":
    main(partial(workers.build_in_processes, n_worker=int(sys.argv[2])))
"""
RAY = """
import threading
from ray.cluster_utils import Cluster

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
node = cluster.add_node(num_cpus=1)

def kill_node():
    # Both nodes have begun parts when two processes have written to the log.
    while not Path("log").exists() or len(set(Path("log").read_text().split())) < 2:
        time.sleep(0.05)
    cluster.remove_node(node, allow_graceful=False)
    Path("killed").touch()

threading.Thread(target=kill_node, daemon=True).start()
main(partial(workers.build_on_ray, address=cluster.address))
cluster.shutdown()
"""


@pytest.fixture
def drive(tmp_path):
    """Prepare TEXT, about 20 parts of it, by a script with its own workers."""
    (tmp_path / "a.txt").write_bytes(TEXT.replace(b"\r", b" ") * 2)

    def run(script: str, *words: object, sleep: float = 0) -> dict[str, str]:
        path = tmp_path / "driver.py"
        path.write_text(DRIVER.replace("SLEEP", f"time.sleep({sleep})") + script)
        command = [sys.executable, "-W", "ignore", path, *map(str, words)]
        own = dict.fromkeys(("RAY_USAGE_STATS_ENABLED", "RAY_ENABLE_UV_RUN_RUNTIME_ENV"), "0")
        process = subprocess.run(
            command, cwd=tmp_path, env=os.environ | own, capture_output=True, text=True, timeout=240
        )
        assert process.returncode == 0, process.stderr
        assert not [*tmp_path.glob("*.parts")]
        return hash_store(tmp_path / str(words[0]))

    return run


@pytest.mark.slow
@pytest.mark.parametrize("n_worker", [3, 8])
def test_processes_in_any_number_give_the_same_files_also_if_one_is_killed(
    drive, tmp_path, n_worker
):
    expected = drive(PROCESSES, "one", 1)
    assert len(expected) > 40
    assert drive(PROCESSES, "many", n_worker, "kill") == expected
    assert (tmp_path / "killed").exists()


@pytest.mark.slow
def test_a_ray_cluster_of_which_a_node_is_killed_gives_the_same_files(drive, tmp_path):
    expected = drive(PROCESSES, "one", 1)
    (tmp_path / "log").unlink()
    assert drive(RAY, "many", sleep=0.3) == expected
    assert (tmp_path / "killed").exists()
