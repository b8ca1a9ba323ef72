"""The numbers of a run, read back from the metrics.csv in its folder, and how they are written."""

import csv
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lightning.pytorch import Trainer
from lightning.pytorch.loggers import Logger, WandbLogger


@dataclass(frozen=True)
class RunMetrics:
    """Logged values of a run by name, one row a step; "step" counts from 1."""

    rows: list[dict[str, float]]

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return points (tokens read, value) of a metric, for example train/loss."""
        tokens = f"{name.partition('/')[0]}/tokens_seen"
        return [(row[tokens], row[name]) for row in self.rows if {tokens, name} <= row.keys()]

    def last(self, name: str) -> float:
        return next((row[name] for row in reversed(self.rows) if name in row), 0.0)

    @property
    def validations(self) -> list[dict[str, float]]:
        """Rows of the validations: step, tokens_seen, nats, other readings of the first text."""
        found = []
        for row in self.rows:
            names = [name[4:] for name in row if name.startswith("val/") and name.count("/") == 1]
            # The loss is the nats, by the name that other tools look for.
            names = sorted({*names} - {"loss"}, key=lambda n: (n != "tokens_seen", n != "nats", n))
            if names:
                values = {name: row[f"val/{name}"] for name in names}
                # A whole number is written as one.
                values |= {name: int(values[name]) for name in names if name == "tokens_seen"}
                found.append({"step": row["step"]} | values)
        return found

    @property
    def best(self) -> dict[str, float] | None:
        finite = [row for row in self.validations if row.get("nats", math.nan) < math.inf]
        return min(finite, key=lambda row: row["nats"], default=None)

    @property
    def bits(self) -> str:
        """The unit to show: bits per byte, which compares models, or else per token."""
        names = {name.partition("/")[2] for row in self.rows for name in row}
        # "byte" is first by the alphabet too.
        return min((name for name in names if name.startswith("bits_per_")), default="nats")


def read_metrics(folder: Path, loggers: Iterable[Logger] = ()) -> RunMetrics:
    """Load metrics.csv, once the loggers have written what they hold back."""
    for logger in loggers:
        logger.save()
    rows: dict[int, dict[str, float]] = {}
    if (path := folder / "metrics.csv").is_file():
        with path.open(newline="") as file:
            for cells in csv.DictReader(file):
                values = {name: float(cell) for name, cell in cells.items() if cell}
                # Lightning counts a step after it has logged it.
                step = int(values.pop("step")) + 1
                # Of steps that a killed run took twice, the last values count.
                rows.setdefault(step, {"step": step}).update(values)
    return RunMetrics([rows[step] for step in sorted(rows)])


def format_columns(rows: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """Return a table: the names of all that the rows have, then each row's values."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    head = [name.replace("_", " ") for name in names]
    return [head, *([format_number(r[n]) if n in r else "" for n in names] for r in rows)]


def format_number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:z,.3f}" if abs(value) < 1000 else f"{value:,.5g}"


def is_fitting(trainer: Trainer) -> bool:
    return trainer.state.fn == "fit" and not trainer.sanity_checking


def run_folder(trainer: Trainer) -> Path:
    """The folder of a run, the same on every rank."""
    return Path(trainer.log_dir or trainer.default_root_dir)


def find_writers_elsewhere(trainer: Trainer, folder: Path) -> list[str]:
    """Name a config's loggers and profiler that write outside of the run's folder.

    Not W&B in the folder of runs: its files are kept there.
    """
    root, found = Path(trainer.default_root_dir).resolve(), []
    writers = {f"trainer.logger: {type(each).__name__}": each for each in trainer.loggers}
    writers |= {f"trainer.profiler: {type(trainer.profiler).__name__}": trainer.profiler}
    for name, writer in writers.items():
        places = (getattr(writer, key, None) for key in ("log_dir", "save_dir", "dirpath"))
        place = Path(next(filter(None, places), folder)).resolve()
        is_ours = isinstance(writer, WandbLogger) and place.is_relative_to(root)
        if not is_ours and not place.is_relative_to(folder.resolve()):
            found.append(f"{name} writes to {place}, outside of the run's folder {folder}")
    return found
