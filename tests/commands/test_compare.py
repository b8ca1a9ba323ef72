"""runs and compare: the runs in a folder, as a list and side by side."""

import io
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from tests.helpers.pictures import has_curves
from txl_lightning.analysis.plots import draw_validations, open_figure
from txl_lightning.files import find_host_name
from txl_lightning.runs.listing import load_run
from txl_lightning.runs.metrics_table import RunMetrics


@pytest.fixture
def runs(run_folder, tmp_path) -> Path:
    """A folder with a run, and one with another learning rate and no memory gain."""
    root = tmp_path / "runs"
    ignored = shutil.ignore_patterns("checkpoints", "report.html")
    for name in ("first", "second"):
        shutil.copytree(run_folder, root / name / "version_0", ignore=ignored)
    second = root / "second" / "version_0"
    config = (second / "config.yaml").read_text()
    (second / "config.yaml").write_text(re.sub(r"\n    lr: .*", "\n    lr: 0.125", config))
    metrics = (second / "metrics.csv").read_text().replace("val/memory_gain", "val/other")
    (second / "metrics.csv").write_text(metrics)
    os.utime(root / "first" / "version_0" / "run.json", (4e9, 4e9))
    return root


def test_runs_are_listed_by_time(txl, runs):
    code, output = txl("runs", runs)
    head, second, first = output.out.splitlines()
    assert code == 0
    heads = ["run", "last written", "state", "steps", "parameters", "best validation", "unit"]
    assert re.split("  +", head) == heads
    for name, line in (("first", first), ("second", second)):
        assert re.search(
            rf"{name}/version_0 .* finished +4 +\d[\d,]+ +\d\.\d\d\d  bits per byte", line
        )


def test_compare_prints_differences_and_draws_the_validations(accepted, runs):
    output = accepted("compare", runs / "first", runs / "second" / "version_0")
    lines = [re.split("  +", line.strip()) for line in output.out.splitlines()]
    assert lines[0] == ["first", "second"]
    assert lines[1][0] == "model.optim.lr"
    assert lines[1][2] == "0.125"
    rows = {name: cells for name, *cells in lines}
    assert rows["steps"] == ["4", "4"]
    assert re.fullmatch(r"-?\d\.\d{3} ± \d\.\d{3}", rows["memory gain (nats)"][0])
    assert rows["memory gain (nats)"][1] == "-"
    assert has_curves(runs / "compare.png")


def test_validations_are_drawn_in_a_unit_that_all_runs_have():
    tokens = {"step": 1, "val/tokens_seen": 8.0}
    nats = RunMetrics([tokens | {"val/nats": 2.0}])
    both = RunMetrics([tokens | {"val/nats": 3.0, "val/bits_per_byte": 4.0}])
    for runs, unit, values in (
        ({"none": RunMetrics([])}, "nats", []),
        ({"none": RunMetrics([]), "a": both}, "bits per byte", [[4]]),
        ({"a": both, "b": nats}, "nats", [[3], [2]]),
    ):
        draw_validations(axes := Figure().subplots(), runs)
        assert axes.get_ylabel() == unit
        assert [line.get_ydata().tolist() for line in axes.lines] == values


def test_a_run_without_its_process_is_killed_and_one_of_another_machine_is_trusted(runs):
    folder = runs / "first" / "version_0"
    about = json.loads((folder / "run.json").read_text()) | {"state": "training"}
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    for host, pid, expected in (
        (find_host_name(), process.pid, "killed"),
        (find_host_name(), os.getppid(), "training"),
        (find_host_name(), 1 << 62, "killed"),
        ("elsewhere", process.pid, "training"),
    ):
        (folder / "run.json").write_text(json.dumps(about | {"host": host, "pid": pid}))
        assert load_run(folder).state == expected


def test_mistakes_about_runs_are_one_line(refused, runs, tmp_path):
    (tmp_path / "empty").mkdir()
    for words in (["runs", "empty"], ["compare", runs, "nowhere"], ["runs"]):
        shutil.rmtree(runs) if words == ["runs"] else None
        code, line = refused(*words)
        assert (code, "a folder with runs, which fit writes" in line) == (2, True)


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("--margin=-5", "margin: invalid -5.0; expected 0 or more"),
        ("--out=x.foo", "out: invalid x.foo; expected a file that ends with .png, .svg, .pdf"),
    ],
)
def test_mistakes_of_options_are_refused_before_anything_is_printed(refused, runs, option, message):
    assert refused("compare", runs, option) == (2, message)


def test_a_run_within_another_and_one_by_two_names_have_a_column_each(accepted, runs):
    first = runs / "first" / "version_0"
    shutil.copytree(runs / "second" / "version_0", first / "version_0")
    (runs / "link").symlink_to(first)
    lines = accepted("compare", first, os.path.relpath(first), runs / "link").out.splitlines()
    names = ["version_0", "version_0/version_0"]
    assert sorted(re.split("  +", lines[0].strip())) == names


def test_names_of_runs_are_drawn_as_they_are():
    row = {"step": 1, "val/tokens_seen": 8.0, "val/nats": 2.0}
    names = ["a$_{b$c", "_hidden", "a$x$"]
    with open_figure(file := io.StringIO(), format="svg") as (axes,):
        draw_validations(axes, {name: RunMetrics([row]) for name in names})
        axes.set_ylabel("nats per $_{unit$")
    for name in (*names, "nats per $_{unit$"):
        assert f">{name}<" in file.getvalue()


@pytest.mark.parametrize(
    ("file", "text", "words"),
    [
        ("config.yaml", "a: [", "config.yaml: damaged"),
        ("config.yaml", None, "config.yaml: cannot be read (No such file"),
        ("config.yaml", "[" * 100_000, "config.yaml: damaged"),
        ("run.json", '{"name": "of another tool"}', "run.json: state: invalid None"),
        ("run.json", "[]", "run.json: content: invalid []"),
        ("config.yaml", "words", "config.yaml: damaged"),
        ("run.json", "{", "run.json: damaged, or not JSON"),
        ("config.yaml", "a: 2020-99-99", "config.yaml: damaged"),
        ("config.yaml", f"a: {'1' * 5000}", "config.yaml: damaged"),
        ("run.json", "{}", "run.json: state: invalid None"),
        ("run.json", f'{{"state": "", "step": {10**400}}}', "run.json: step: invalid 1000"),
        ("metrics.csv", "step,val/nats\n1,x\n", "metrics.csv: damaged (could not convert"),
    ],
)
def test_a_folder_that_is_no_run_is_named_and_the_other_runs_are_listed(
    txl, refused, runs, file, text, words
):
    (runs / "third" / "run.json").mkdir(parents=True)
    for folder in ("first", "second"):
        path = runs / folder / "version_0" / file
        path.write_text(text) if text else path.unlink()
        if folder == "first":
            for command in ("runs", "compare"):
                code, output = txl(command, runs)
                [warning] = output.err.splitlines()
                assert (code, "second" in output.out or command == "compare") == (0, True)
                assert "first/version_0" not in output.out
                assert warning.startswith(f"warning: {path.parent}/{words}")
                assert warning.endswith("; left out")
    code, line = refused("runs", runs)
    assert (code, words in line) == (3, True)
