"""Experiments run at tiny sizes, resume after a kill, and their pages match their results."""

import json
import re
from pathlib import Path

import pytest

from experiments import pages
from experiments.the_paper.rows import LONG, ROWS, Sizes
from experiments.the_paper.training import (
    count_parameters,
    fit_options,
    net_options,
    segment_len,
)

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
        # Steps that are only timed read no text.
        assert ("text" in record) == (record.get("kind") != "pace")
    run_experiment(f"{name}.run", *options)
    assert results.read_text() == text
    run_experiment(f"{name}.run", "--fast", "--runs", tmp_path / "once", "--out", whole)
    assert read_numbers(results, tmp_path / "runs") == read_numbers(whole, tmp_path / "once")
    (tmp_path / name).mkdir()
    results.rename(tmp_path / name / "results.json")
    run_experiment("pages", "--results", tmp_path)
    assert (tmp_path / name / "table.md").read_text().startswith("| ")
    pictures = [*(tmp_path / name).glob("*.[ps][nv]g")]
    assert min(path.stat().st_size for path in pictures) > 5000


def test_pages_match_the_results():
    for page, text in pages.update_pages(pages.load_results()).items():
        assert page.read_text() == text, "run: python -m experiments.pages"


def test_all_rows_have_as_many_parameters_and_compute_as_many_tokens():
    sizes = Sizes()
    ours = pytest.approx(count_parameters(net_options(ROWS[0], sizes), sizes), 0.01)
    for row in (*ROWS, LONG):
        options = fit_options(row, sizes, seed=1)
        assert count_parameters(net_options(row, sizes), sizes) == ours
        tokens = options["data.tgt_len"] + options["data.ext_len"]
        assert tokens == segment_len(row, sizes)
        updates = pytest.approx(sizes.segment * sizes.steps / tokens, 0.01)
        assert options["trainer.max_steps"] == updates
        assert (options["data.ext_len"] == options["data.tgt_len"]) == row.half
        assert (options["model.net.mem_len"] > 0) == row.recurrence
