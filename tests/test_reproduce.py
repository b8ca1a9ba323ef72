"""Experiments run at tiny sizes, resume after a kill, and their pages match their results."""

import json
import math
import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest

from experiments import claims
from experiments.ablation.rows import ROWS, SHUFFLED, Sizes
from experiments.ablation.training import count_parameters, fit_options, net_options, segment_len
from experiments.own_text import books
from experiments.results import format_table

REPOSITORY = Path(__file__).parents[1]
[LISTED] = re.findall(r"^EXPERIMENTS := (.+)$", (REPOSITORY / "Makefile").read_text(), re.M)


def read_numbers(results, runs):
    """Return the records without what differs between two equal experiments: times and places."""

    def keep(found):
        if isinstance(found, dict):
            timed = re.compile("_ms|seconds|speedup|disturbed|origin")
            return {name: keep(value) for name, value in found.items() if not timed.search(name)}
        return [keep(each) for each in found] if isinstance(found, list) else found

    return keep(json.loads(results.read_text().replace(str(runs), "runs"))["records"])


@pytest.mark.slow
@pytest.mark.parametrize("name", LISTED.split())
def test_a_killed_experiment_measures_the_rest_once_as_without_the_kill(
    name, run_experiment, tmp_path
):
    results, whole = tmp_path / "results.json", tmp_path / "whole.json"
    options = ["--fast", "--runs", tmp_path / "runs", "--out", results]
    run_experiment(f"{name}.run", *options, kill_at=results)
    first = json.loads(results.read_text())["records"]
    run_experiment(f"{name}.run", *options)
    text = results.read_text()
    records = json.loads(text)["records"]
    assert first.items() <= records.items()
    for record in records.values():
        assert record["origin"]["machine"]["cpu"]
        assert f"experiments.{name}.run --fast" in record["origin"]["command"]
        assert record["seconds"] > 0
        assert record["origin"]["seeds_vary"]
        # A network with random weights, and steps that are only timed, read no text.
        reads_text = name != "sliding_window" and record.get("kind") != "pace"
        assert ("text" in record) == reads_text
    run_experiment(f"{name}.run", *options)
    assert results.read_text() == text
    run_experiment(f"{name}.run", "--fast", "--runs", tmp_path / "once", "--out", whole)
    assert read_numbers(results, tmp_path / "runs") == read_numbers(whole, tmp_path / "once")
    run_experiment(f"{name}.figures", results)
    assert (tmp_path / "table.md").read_text().startswith("| ")
    assert min(path.stat().st_size for path in tmp_path.glob("*.[ps][nv]g")) > 5000


def test_claims_and_tables_match_the_results():
    for page, text in claims.update_pages().items():
        assert page.read_text() == text, "run: python -m experiments.claims"
    for name, records in claims.load_results().items():
        table = format_table(import_module(f"experiments.{name}.figures").list_rows(records))
        assert (claims.FOLDER / name / "table.md").read_text() == table, "run: its figures.py"


def test_bits_of_chapters_are_those_of_the_tokens_that_end_in_them(tmp_path):
    book = tmp_path / "book.txt"
    book.write_text("A Title\n\nChapter I\nab\nCHAPTER II: on\nabc\n")
    chapters = books.find_chapters(book)
    assert chapters == [("before", 0, 9), ("Chapter I", 9, 22), ("CHAPTER II: on", 22, 41)]
    # Tokens of 7, 2, 13 and 19 bytes: the last one belongs to the last chapter.
    ends = np.array([7, 9, 22, 41])
    nats = math.log(2) * np.array([0, 18, 13, 38])
    assert books.bits_by_chapter(nats, ends, chapters) == pytest.approx([2, 1, 2])


def test_all_rows_have_as_many_parameters_and_compute_as_many_tokens():
    sizes = Sizes()
    ours = pytest.approx(count_parameters(net_options(ROWS[0], sizes), sizes), 0.01)
    for row in (*ROWS, *SHUFFLED):
        options = fit_options(row, sizes, seed=1)
        assert count_parameters(net_options(row, sizes), sizes) == ours
        tokens = options["data.tgt_len"] + options["data.ext_len"]
        assert tokens == segment_len(row, sizes)
        updates = pytest.approx(sizes.segment * sizes.steps / tokens, 0.01)
        assert options["trainer.max_steps"] == updates
        assert (options["data.ext_len"] == options["data.tgt_len"]) == row.half
        assert (options["model.net.mem_len"] > 0) == row.recurrence
