"""Experiments run at tiny sizes, resume after a kill, and their pages match their results."""

import json
import re
from pathlib import Path

import pytest

from experiments import pages
from experiments.copying.rows import ROWS, Sizes
from experiments.copying.training import find_segment_len, make_fit_options, make_net_options
from tests.helpers.pictures import has_curves
from txl_lightning import TransformerXLConfig

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


def check_records(name, results):
    """Require of each record where it is from, and of all a table and pictures."""
    records = json.loads(results.read_text())["records"]
    for record in records.values():
        assert record["origin"]["machine"]["cpu"]
        assert f"experiments.{name}.run --fast" in record["origin"]["command"]
        assert record["seconds"] > 0
        assert record["origin"]["seeds_vary"]
        # Steps that are only timed read no text.
        assert ("text" in record) == (record.get("kind") != "pace")
    folder = results.parent / name
    folder.mkdir()
    results.rename(folder / "results.json")
    pages.show_other_results(results.parent)
    assert (folder / "table.md").read_text().startswith("| ")
    assert all(map(has_curves, folder.glob("*.[ps][nv]g")))


# Arms in stages, with contrasts; rates that are searched; another way to train.
RESUMED = ("stop_gradient", "words", "original")


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in LISTED.split() if name not in RESUMED])
def test_an_experiment_runs_at_tiny_sizes_and_draws_its_results(name, run_experiment, tmp_path):
    results = tmp_path / "results.json"
    run_experiment(f"{name}.run", "--fast", "--runs", tmp_path / "runs", "--out", results)
    check_records(name, results)


@pytest.mark.slow
@pytest.mark.parametrize("name", RESUMED)
def test_a_killed_experiment_measures_the_rest_once_as_without_the_kill(
    name, run_experiment, tmp_path
):
    results = tmp_path / "results.json"
    whole = tmp_path / "whole" / "results.json"
    options = ["--fast", "--runs", tmp_path / "runs", "--out", results]
    run_experiment(f"{name}.run", *options, kill_at=results)
    first = json.loads(results.read_text())["records"]
    run_experiment(f"{name}.run", *options)
    text = results.read_text()
    assert first.items() <= json.loads(text)["records"].items()
    run_experiment(f"{name}.run", *options)
    assert results.read_text() == text
    run_experiment(f"{name}.run", "--fast", "--runs", tmp_path / "once", "--out", whole)
    assert read_numbers(results, tmp_path / "runs") == read_numbers(whole, tmp_path / "once")
    check_records(name, whole)


def test_pages_match_the_results():
    for page, text in pages.update_pages(pages.load_results()).items():
        assert page.read_text() == text, "run: python -m experiments.pages"


def count_parameters(row, sizes):
    net = TransformerXLConfig(n_token=sizes.n_token, **make_net_options(row, sizes)).build()
    return sum(weight.numel() for weight in net.parameters())


def test_all_rows_have_as_many_parameters_and_updates():
    sizes = Sizes()
    ours = pytest.approx(count_parameters(ROWS["memory"], sizes), 0.001)
    for row in ROWS.values():
        options = make_fit_options(row, sizes, seed=1)
        assert count_parameters(row, sizes) == ours
        assert options["data.tgt_len"] == find_segment_len(row, sizes)
        assert options["trainer.max_steps"] == 11_200
        assert (options["model.net.mem_len"] > 0) == row.recurrence
