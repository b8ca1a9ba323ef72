"""Every experiment runs at tiny sizes, does nothing twice, and draws what it found."""

import json
import math
import os
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[1]
[LISTED] = re.findall(r"^EXPERIMENTS := (.+)$", (REPOSITORY / "Makefile").read_text(), re.M)


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")

    def run(module, *options, **environment):
        command = [sys.executable, "-m", f"experiments.{module}", *map(str, options)]
        env = os.environ | {"TXL_DATA": str(data), "PYTHONPATH": str(REPOSITORY)} | environment
        done = subprocess.run(command, cwd=data, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr

    return run


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED.split())
def test_an_experiment_measures_once_and_draws_what_it_found(name, call, tmp_path):
    results = tmp_path / "results.json"
    options = ["--fast", "--runs", tmp_path / "runs", "--out", results]
    call(f"{name}.run", *options)
    before = results.read_text()
    for record in json.loads(before)["records"].values():
        assert record["origin"]["machine"]["cpu"]
        assert f"experiments.{name}.run --fast" in record["origin"]["command"]
    call(f"{name}.run", *options)
    assert results.read_text() == before
    call(f"{name}.figures", results)
    assert (tmp_path / "table.md").read_text().startswith("| ")
    assert all(path.stat().st_size > 5000 for path in tmp_path.glob("*.png"))
    assert list(tmp_path.glob("*.[ps][nv]g"))


@pytest.mark.slow
def test_the_notebook_runs_on_a_small_text_and_shows_two_pictures(call, tmp_path):
    for split in ("train", "valid", "test"):
        (tmp_path / split).mkdir()
        chapters = (f"Chapter {n}\nIt is a truth that all are happy.\n" * 9 for n in range(9))
        (tmp_path / split / "book.txt").write_text("".join(chapters))
    out = tmp_path / "out.ipynb"
    call("own_text.notebook", "--out", out, BOOKS=str(tmp_path), FAST="1")
    cells = json.loads(out.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 2
    assert "###" in "".join(outputs[-1]["text"])


def test_the_notebook_opens_with_its_pictures():
    notebook = REPOSITORY / "experiments" / "own_text" / "own_text.ipynb"
    assert notebook.read_text().count('"image/png"') == 2


def test_bits_of_chapters_are_those_of_the_tokens_that_end_in_them(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    own_text = import_module("experiments.own_text.run")
    book = tmp_path / "book.txt"
    book.write_text("A Title\n\nChapter I\nab\nCHAPTER II: on\nabc\n")
    chapters = own_text.find_chapters(book)
    assert chapters == [("before", 0, 9), ("Chapter I", 9, 22), ("CHAPTER II: on", 22, 41)]
    # Tokens of 7, 2, 13 and 19 bytes: the last one's nats are the last chapter's.
    ends = np.array([7, 9, 22, 41])
    nats = math.log(2) * np.array([0, 18, 13, 38])
    assert own_text.bits_by_chapter(nats, ends, chapters) == pytest.approx([2, 1, 2])
