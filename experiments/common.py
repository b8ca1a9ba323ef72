"""What experiments share: fits that go on where they stopped, results with their origin, pictures.

Each folder is a question: run.py measures, results.json has one record for each name, figures.py
draws a figure and writes table.md from results.json alone, and has list_claims(records), the rows
of the table "ours, theirs" that claims.py puts into README.md.

    python -m experiments.sorting.run [--seeds 1 2 3] [--fast] [--out FILE] [--runs FOLDER]
    python -m experiments.sorting.figures [FILE]

parse_options(script, doc)    options of a run.py: seeds, fast, out (results.json; with --fast under
                              runs/fast), runs (where fits are kept), precision (for fit),
                              origin (commit, command, machine)
fit(folder, options)          trains through the command line with options by key, as
                              {"config": "configs/smoke.yaml", "data.tgt_len": 8}; goes on or
                              returns at once where it was; the value is the run's folder
checkpoint(run, "best")       path of a run's best or last checkpoint
count_parameters(path)        of a checkpoint
curve(run, "val/nats")        steps and values of a column of metrics.csv
evaluate(checkpoint, options) the evaluate verb's record
load_records(out)             records by name; a name that is there need not be run again
find_results(script)          the file that a figures.py draws: its argument, or that beside it
save_record(given, name, ...) adds a record, with its origin, at once
spread(values)                mean and standard deviation; show_spread writes them with their number
choose(records, kind="x")     records with these values
open_figure(path)             axes of a picture with a white background (inches=, count=)
COLOURS                       of lines, told apart by the colour-blind
write_table(path, rows)       rows of a Markdown table, the first its head (format_table: its text)
Claim(...)                    a row of the table "ours, theirs"
"""

import argparse
import csv
import io
import json
import shlex
import statistics
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from txl_lightning.__main__ import run
from txl_lightning.analysis.plots import open_figure
from txl_lightning.checkpoints import load_run
from txl_lightning.evaluation.environment import describe_environment
from txl_lightning.files import write_json

__all__ = ["open_figure"]

REPOSITORY = Path(__file__).parents[1]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""Of Okabe and Ito (2008)."""
PLACES = {"--out", "--runs"}
QUIET = {"trainer.enable_progress_bar": False, "report.html": False, "report.sample_len": 0}

Options = Mapping[str, Any]


def parse_options(
    script: str, doc: str, seeds: Sequence[int] = (1, 2, 3), **more: str | dict[str, Any]
) -> argparse.Namespace:
    """Return the options of a run.py, and its origin.

    More options go by name, each with its help or all that argparse needs.

    With --fast a script takes sizes of seconds and one seed, to show that it runs.
    """
    folder = Path(script).parent
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {seeds}")
    parser.add_argument("--fast", action="store_true", help="tiny sizes: shows that it runs")
    parser.add_argument("--out", type=Path, help="results.json; goes on with what is there")
    parser.add_argument("--runs", type=Path, help="folder of the fits")
    parser.add_argument("--precision", default="32-true", help="of training")
    for name, about in more.items():
        parser.add_argument(f"--{name}", **(about if isinstance(about, dict) else {"help": about}))
    given = parser.parse_args()
    kind = "fast" if given.fast else "experiments"
    given.runs = given.runs or Path("runs") / kind / folder.name
    given.out = given.out or (given.runs if given.fast else folder) / "results.json"
    given.seeds = given.seeds or list(seeds)[: 1 if given.fast else None]
    given.origin = describe_origin(folder.name)
    return given


def describe_origin(name: str) -> dict[str, Any]:
    """Return command, commit and machine, before results.json makes the commit dirty."""
    # Where results are put changes none of them.
    words = [w for n, w in enumerate(sys.argv) if n and not {w, sys.argv[n - 1]} & PLACES]
    command = ["python", "-m", f"experiments.{name}.run", *words]
    return {"command": shlex.join(command)} | describe_environment(torch.device("cpu"))


def fit(folder: Path, options: Options) -> Path:
    """Train in a folder of its own, or go on there, and return the run's folder."""
    where = {"trainer.default_root_dir": str(folder), "resume": "auto"}
    if "config" in options:
        where["config"] = str(REPOSITORY / options["config"])
    try:
        run(["fit", *flags(QUIET | options | where)])
    except SystemExit as stop:
        # It was done before; a signal has another code.
        if stop.code:
            raise
    return max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def flags(options: Options) -> list[str]:
    # What stands after a config overrides it.
    names = sorted(options, key=lambda name: name != "config")
    texts = [v if isinstance(v := options[name], str) else json.dumps(v) for name in names]
    return [f"--{name}={text}" for name, text in zip(names, texts, strict=True)]


def checkpoint(folder: Path, name: str = "best") -> Path:
    return folder / "checkpoints" / f"{name}.ckpt"


def count_parameters(path: Path) -> int:
    model, _ = load_run(path)
    return sum(parameter.numel() for parameter in model.parameters())


def curve(folder: Path, column: str) -> dict[str, list[float]]:
    """Return the steps and values of a column of a run's metrics.csv."""
    with (folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return {"steps": [int(row["step"]) for row in rows], column: [float(r[column]) for r in rows]}


def evaluate(path: Path, options: Options) -> dict[str, Any]:
    """Return the record of the evaluate verb."""
    with redirect_stdout(io.StringIO()) as line:
        run(["evaluate", str(path), *flags(options)])
    return json.loads(line.getvalue())


def find_results(script: str) -> Path:
    """Return the results.json that a figures.py draws; pictures and tables go beside it."""
    return Path(sys.argv[1]) if len(sys.argv) > 1 else Path(script).parent / "results.json"


def load_records(out: Path) -> dict[str, dict[str, Any]]:
    return json.loads(out.read_text())["records"] if out.is_file() else {}


def save_record(given: argparse.Namespace, name: str, **values: Any) -> None:
    """Add a record to results.json at once, so that a stop loses nothing."""
    record = {name: values | {"origin": given.origin}}
    given.out.parent.mkdir(parents=True, exist_ok=True)
    write_json({"fast": given.fast, "records": load_records(given.out) | record}, given.out)


def choose(records: Mapping[str, dict[str, Any]], **values: Any) -> list[dict[str, Any]]:
    return [r for r in records.values() if all(r.get(k) == v for k, v in values.items())]


def spread(values: Sequence[float]) -> tuple[float, float]:
    """Return mean and standard deviation (0 of one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def show_spread(values: Sequence[float], digits: int = 3) -> str:
    mean, deviation = spread(values)
    around = f" ± {deviation:.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{around} ({len(values)})"


def write_table(path: Path, rows: Sequence[Sequence[Any]]) -> None:
    path.write_text(format_table(rows))


def format_table(rows: Sequence[Sequence[Any]]) -> str:
    head, *rest = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@dataclass(frozen=True)
class Claim:
    """A row of the table "ours, theirs"."""

    claim: str
    source: str
    theirs: str
    ours: str
    """Mean ± standard deviation (seeds), by show_spread."""
    scale: str
    verdict: str
