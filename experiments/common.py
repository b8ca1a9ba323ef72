"""Helpers of every run.py: command line, training, evaluation, and one record per measurement.

Each folder answers one question: run.py measures and writes results.json, and figures.py makes a
table and figures of results.json alone (results.py). A run.py continues where it was stopped:
a measurement with a record is skipped, and an unfinished fit resumes.

    python -m experiments.sorting.run [--seeds 1 2 3] [--fast] [--out FILE] [--runs FOLDER]
    python -m experiments.sorting.figures [FILE]
"""

import argparse
import csv
import io
import json
import shlex
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import torch
from torch import nn

from experiments.results import load_records
from txl_lightning.__main__ import run
from txl_lightning.evaluation.environment import describe_environment
from txl_lightning.files import write_json

REPOSITORY = Path(__file__).parents[1]
PATH_OPTIONS = {"--out", "--runs"}
QUIET = {"trainer.enable_progress_bar": False, "report.html": False, "report.sample_len": 0}

Options = Mapping[str, Any]
"""Settings of a command by key, as {"config": "configs/smoke.yaml", "data.tgt_len": 8}."""


def parse_args(
    script: str, doc: str, seeds: Sequence[int] = (1, 2, 3), **more: str | dict[str, Any]
) -> argparse.Namespace:
    """Return the arguments of a run.py, and `origin`: its command, commit and machine.

    `more` has further options by name: their help, or all arguments of add_argument.
    """
    folder = Path(script).parent
    parser = argparse.ArgumentParser(description=doc.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", help=f"default: {seeds}")
    parser.add_argument("--fast", action="store_true", help="tiny sizes and one seed, as a test")
    parser.add_argument("--out", type=Path, help="results.json; existing records are kept")
    parser.add_argument("--runs", type=Path, help="folder of the training runs")
    parser.add_argument("--precision", default="32-true", help="of training")
    for name, about in more.items():
        parser.add_argument(f"--{name}", **(about if isinstance(about, dict) else {"help": about}))
    args = parser.parse_args()
    kind = "fast" if args.fast else "experiments"
    args.runs = args.runs or Path("runs") / kind / folder.name
    args.out = args.out or (args.runs if args.fast else folder) / "results.json"
    args.seeds = args.seeds or list(seeds)[: 1 if args.fast else None]
    args.origin = describe_origin(folder.name)
    return args


def describe_origin(name: str) -> dict[str, Any]:
    """Return command, commit and machine; call it before results.json makes the commit dirty."""
    # The folders of the output do not change results.
    words = [w for n, w in enumerate(sys.argv) if n and not {w, sys.argv[n - 1]} & PATH_OPTIONS]
    command = ["python", "-m", f"experiments.{name}.run", *words]
    return {"command": shlex.join(command)} | describe_environment(torch.device("cpu"))


def measure_once(
    args: argparse.Namespace, name: str, measure: Callable[..., dict[str, Any]], *values: Any
) -> None:
    """Call `measure(*values)` and add its result to results.json, unless `name` is there.

    `seconds` in the record is the wall time of the call, without that of earlier, stopped ones.
    """
    if name in load_records(args.out):
        return
    began = time.monotonic()
    found = measure(*values)
    record = {name: found | {"seconds": time.monotonic() - began, "origin": args.origin}}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    write_json({"fast": args.fast, "records": load_records(args.out) | record}, args.out)


def fit(folder: Path, options: Options) -> Path:
    """Train in a folder, or resume there, and return the run's folder."""
    where = {"trainer.default_root_dir": str(folder), "resume": "auto"}
    if "config" in options:
        where["config"] = str(REPOSITORY / options["config"])
    try:
        run(["fit", *format_options(QUIET | options | where)])
    except SystemExit as stop:
        # 0: the run is complete; a signal has another code.
        if stop.code:
            raise
    return max(folder.glob("version_*"), key=lambda path: int(path.name.split("_")[1]))


def format_options(options: Options) -> list[str]:
    # Options after --config override it.
    names = sorted(options, key=lambda name: name != "config")
    texts = [v if isinstance(v := options[name], str) else json.dumps(v) for name in names]
    return [f"--{name}={text}" for name, text in zip(names, texts, strict=True)]


def checkpoint(run_folder: Path) -> Path:
    return run_folder / "checkpoints" / "last.ckpt"


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def load_curve(run_folder: Path, column: str) -> dict[str, list[float]]:
    """Return the steps and values of a column of a run's metrics.csv."""
    with (run_folder / "metrics.csv").open() as file:
        rows = [row for row in csv.DictReader(file) if row.get(column)]
    return {"steps": [int(row["step"]) for row in rows], column: [float(r[column]) for r in rows]}


def evaluate(path: Path, options: Options) -> dict[str, Any]:
    """Return the JSON record that the command `evaluate` prints."""
    with redirect_stdout(io.StringIO()) as line:
        run(["evaluate", str(path), *format_options(options)])
    return json.loads(line.getvalue())
