"""What a sweep has shown: a table, best first, and a picture."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..evaluation.environment import commit, cpu_name, release
from ..evaluation.tables import align_columns, write_table
from . import logged, pictures
from .file import SweepFile, flat
from .trials import Sweep, Trial

Row = dict[str, Any]
PICTURE = "results.png"
DIGITS = {"value": ".4f", "seconds": ".0f"}
"""How numbers are shown that are not parameters."""


def write(sweep: Sweep, file: SweepFile, folder: Path) -> None:
    """results.csv, results.json and results.png, as far as trials have ended."""
    if not sweep.trials:
        return
    rows = table(sweep, file)
    about = {"file": file.path, "seed": sweep.seed, **sweep.search}
    about |= {"release": release(), "commit": commit(), "cpu": cpu_name()}
    write_table(rows, folder / "results", about)
    compared = [row for row in rows if counts(row)]
    pictures.draw(rows, compared, axes_of(compared, sweep, file), file, folder / PICTURE)


def table(sweep: Sweep, file: SweepFile) -> list[Row]:
    """A row for each trial, the best first; those that failed or go on last."""
    names = parameters(sweep.trials)
    rows = [row(trial, names, file) for trial in sweep.trials]

    def place(row: Row) -> tuple[bool, float, int]:
        return not counts(row), file.sign * row["value"] if counts(row) else 0, row["trial"]

    return sorted(rows, key=place)


def counts(row: Mapping[str, Any]) -> bool:
    """Whether a trial can be compared with others."""
    return row["value"] is not None and row["state"] in ("finished", "stopped")


def row(trial: Trial, names: Iterable[str], file: SweepFile) -> Row:
    """What is known of a trial."""
    last = trial.history[-1] if trial.history else None
    found = {"trial": trial.number, "state": trial.state}
    found |= {"value": file.best(trial.history), "last": last}
    values = flat(trial.parameters)
    found |= {name: values.get(name) for name in names}
    found |= {"steps": trial.steps, "tokens": trial.tokens, "seconds": round(trial.seconds, 1)}
    return found | {"folder": trial.folder, "reason": trial.reason}


def parameters(trials: Sequence[Trial]) -> list[str]:
    """The keys that trials set, in order."""
    return list(dict.fromkeys(name for trial in trials for name in flat(trial.parameters)))


def axes_of(rows: Sequence[Row], sweep: Sweep, file: SweepFile) -> list[pictures.Axis]:
    """The keys that differ between trials, and how to draw each."""
    axes = []
    for name in parameters(sweep.trials):
        kind = file.config["parameters"].get(name, {}).get("distribution", "categorical")
        values = [row[name] for row in rows]
        if len(set(map(str, values))) > 1:
            # Rounded, one that is drawn on a log scale may be 0.
            is_log = "log" in kind and min(values) > 0
            axes.append(pictures.Axis(name, is_drawn(kind), is_log))
    return axes


def is_drawn(kind: str) -> bool:
    """Whether values come from a continuous range, and not from a list."""
    return not kind.startswith(("categorical", "constant"))


def show(sweep: Sweep, file: SweepFile, folder: Path) -> None:
    """Print the table, and how to measure the best.

    Raises:
        ValueError: there is none.
    """
    rows = table(sweep, file)
    print(f"\n{file.metric}, best first")
    for line in lines(rows, parameters(sweep.trials)):
        print(line)
    if not counts(rows[0]):
        raise ValueError(f"no trial has come to a value; the last: {rows[-1]['reason']}")
    path = logged.checkpoint(folder / rows[0]["folder"])
    print(f"\nwritten to {folder}: results.csv, results.json, {PICTURE}")
    if path:
        print(f"best: trial {rows[0]['trial']}, {path}; measure it with")
        print(f"  python -m txl_lightning evaluate {path} --split val")


def lines(rows: Sequence[Row], names: Sequence[str]) -> list[str]:
    """A plain table."""
    short = pictures.short(names)
    keys = ["trial", "state", "value", *short, "steps", "seconds"]
    heads = [short.get(key, key) for key in keys]
    cells = [[cell(key, row[key]) for key in keys] for row in rows]
    return align_columns([[*line, ""] for line in (heads, *cells)]).splitlines()


def cell(key: str, value: Any) -> str:
    """A value as the table shows it."""
    if isinstance(value, float):
        return f"{value:{DIGITS.get(key, '.4g')}}"
    return "-" if value is None else str(value)
