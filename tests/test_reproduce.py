"""Experiments run at tiny sizes, resume after a kill, and their pages match their results."""

import json
import math
import os
import re
import subprocess
import sys
import time
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

REPOSITORY = Path(__file__).parents[1]
[LISTED] = re.findall(r"^EXPERIMENTS := (.+)$", (REPOSITORY / "Makefile").read_text(), re.M)


@pytest.fixture(scope="module")
def call(tmp_path_factory):
    data = tmp_path_factory.mktemp("data")

    def run(module, *options, kill_at=None, **environment):
        command = [sys.executable, "-m", f"experiments.{module}", *map(str, options)]
        env = os.environ | {"TXL_DATA": str(data), "PYTHONPATH": str(REPOSITORY)} | environment
        pipe = {"stderr": subprocess.PIPE, "text": True}
        with subprocess.Popen(command, cwd=data, env=env, **pipe) as process:
            while kill_at and not kill_at.is_file() and process.poll() is None:
                time.sleep(0.01)
            if kill_at:
                process.kill()
            _, shown = process.communicate()
        assert kill_at or process.returncode == 0, shown

    return run


@pytest.fixture
def load(monkeypatch):
    monkeypatch.syspath_prepend(REPOSITORY)
    return lambda module: import_module(f"experiments.{module}")


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED.split())
def test_a_killed_experiment_measures_the_rest_once_and_draws_it(name, call, tmp_path):
    results = tmp_path / "results.json"
    options = ["--fast", "--runs", tmp_path / "runs", "--out", results]
    call(f"{name}.run", *options, kill_at=results)
    first = json.loads(results.read_text())["records"]
    call(f"{name}.run", *options)
    text = results.read_text()
    records = json.loads(text)["records"]
    assert first.items() <= records.items()
    for record in records.values():
        assert record["origin"]["machine"]["cpu"]
        assert f"experiments.{name}.run --fast" in record["origin"]["command"]
        assert record["seconds"] > 0
    call(f"{name}.run", *options)
    assert results.read_text() == text
    call(f"{name}.figures", results)
    assert (tmp_path / "table.md").read_text().startswith("| ")
    assert min(path.stat().st_size for path in tmp_path.glob("*.[ps][nv]g")) > 5000


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


def test_claims_and_tables_match_the_results(load):
    claims, results = load("claims"), load("results")
    for page, text in claims.update_pages().items():
        assert page.read_text() == text, "run: python -m experiments.claims"
    for name, records in claims.load_results().items():
        table = results.format_table(load(f"{name}.figures").list_rows(records))
        assert (claims.FOLDER / name / "table.md").read_text() == table, "run: its figures.py"


def test_the_notebook_opens_with_its_pictures():
    notebook = (REPOSITORY / "experiments/own_text/own_text.ipynb").read_text()
    assert notebook.count('"image/png"') == 2


def test_bits_of_chapters_are_those_of_the_tokens_that_end_in_them(load, tmp_path):
    own_text = load("own_text.run")
    book = tmp_path / "book.txt"
    book.write_text("A Title\n\nChapter I\nab\nCHAPTER II: on\nabc\n")
    chapters = own_text.find_chapters(book)
    assert chapters == [("before", 0, 9), ("Chapter I", 9, 22), ("CHAPTER II: on", 22, 41)]
    # Tokens of 7, 2, 13 and 19 bytes: the last one belongs to the last chapter.
    ends = np.array([7, 9, 22, 41])
    nats = math.log(2) * np.array([0, 18, 13, 38])
    assert own_text.bits_by_chapter(nats, ends, chapters) == pytest.approx([2, 1, 2])


def test_all_rows_have_as_many_parameters_and_compute_as_many_tokens(load):
    rows = load("ablation.rows")
    sizes = rows.Sizes()
    ours = pytest.approx(rows.count_parameters(rows.net_options(rows.ROWS[0], sizes), sizes), 0.01)
    for row in (*rows.ROWS, *rows.SHUFFLED):
        options = rows.fit_options(row, sizes, seed=1)
        assert rows.count_parameters(rows.net_options(row, sizes), sizes) == ours
        tokens = options["data.tgt_len"] + options["data.ext_len"]
        assert tokens == rows.segment_len(row, sizes)
        updates = pytest.approx(sizes.segment * sizes.steps / tokens, 0.01)
        assert options["trainer.max_steps"] == updates
        assert (options["data.ext_len"] == options["data.tgt_len"]) == row.half
        assert (options["model.net.mem_len"] > 0) == row.recurrence


def test_a_repeated_key_has_the_value_of_that_distance(load):
    pairs = load("memory_length.pairs")
    drawn = pairs.draw_pairs(np.random.default_rng(0), 5000)
    text = "".join(f"{chr(1000 + key)}{chr(97 + value)}" for key, value in drawn)
    distance_N = pairs.find_distances(text)
    assert not distance_N[::2].any()
    repeats = np.flatnonzero(distance_N)
    assert 0.5 < len(repeats) / len(drawn) < 0.8
    assert distance_N.max() <= 2 * pairs.LONGEST
    for place in repeats:
        before = place - distance_N[place]
        assert text[before - 1 : before + 1] == text[place - 1 : place + 1]
        assert text[place - 1] not in text[before : place - 1]


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [([3, 4, 5], "holds"), ([-3, -4, -5], "does not hold"), ([-1, 3, 0], "no clear difference"),
     ([3], "one seed only")],
)  # fmt: skip
def test_a_comparison_is_judged_by_its_spread(load, gains, verdict):
    assert load("ablation.figures").judge(gains) == verdict
