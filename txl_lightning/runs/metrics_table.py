"""Load the metrics of a run from its metrics.csv, and format them."""

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from statistics import median
from typing import Any

from ..tables import read_log
from .folder import METRICS, TOKENS

ERROR = "_error"  # suffix of the name of a metric's standard error


@dataclass(frozen=True)
class RunMetrics:
    """Logged values of a run by name; "step" counts from 1.

    A step has one row, and one more for each validation while the gradients of the next accumulate.
    """

    rows: list[dict[str, float]]
    # Of the whole run; rows have only those of the steps that were logged.
    tokens: int = 0
    seconds: float = 0.0

    def curve(self, name: str) -> list[tuple[float, float]]:
        """Return points (training tokens, value) of a metric, for example train/loss."""
        tokens = f"{name.partition('/')[0]}/tokens_seen"
        return [(row[tokens], row[name]) for row in self.rows if {tokens, name} <= row.keys()]

    def last(self, name: str) -> float:
        return next((row[name] for row in reversed(self.rows) if name in row), 0.0)

    @property
    def validations(self) -> list[dict[str, float]]:
        """Rows of the validations: step, tokens_seen, nats, other readings of the first text."""
        rows = []
        for row in self.rows:
            names = [name[4:] for name in row if name.startswith("val/") and name.count("/") == 1]
            # The loss equals the nats; other tools expect this name.
            names = sorted({*names} - {"loss"}, key=lambda n: (n != "tokens_seen", n != "nats", n))
            if names:
                values = {name: row[f"val/{name}"] for name in names}
                # Shown without a decimal point.
                values |= {name: int(values[name]) for name in names if name == "tokens_seen"}
                rows.append({"step": row["step"]} | values)
        return rows

    @property
    def best(self) -> dict[str, float] | None:
        finite = [row for row in self.validations if row.get("nats", math.nan) < math.inf]
        return min(finite, key=lambda row: row["nats"], default=None)

    @property
    def bits(self) -> str:
        """The unit to show: bits per byte, which are comparable, or else bits per token."""
        names = {name.partition("/")[2] for row in self.rows for name in row}
        # Alphabetically, "bits_per_byte" is the first.
        return min((name for name in names if name.startswith("bits_per_")), default="nats")

    @property
    def headlines(self) -> dict[str, str]:
        """The main results of a run as text, by label; missing ones are left out."""
        best = self.best or {}
        texts = {}
        bits = self.bits if self.bits in best else "nats"
        if best:
            texts[f"best validation ({bits.replace('_', ' ')})"] = format_cell(best, bits)
            texts["at step"] = format_cell(best, "step")
        if "answer_accuracy" in best:
            texts["answer accuracy"] = f"{best['answer_accuracy']:.1%}"
        if "memory_gain" in best:
            texts["memory gain (nats)"] = format_cell(best, "memory_gain")
        if self.rows or self.tokens:
            tokens = max(self.tokens, self.last("train/tokens_seen"), self.last(TOKENS))
            seconds = max(self.seconds, self.last("train/seconds"))
            texts["training tokens"] = f"{tokens:,.0f}"
            texts["training time"] = str(timedelta(seconds=int(seconds)))
        if rates := [rate for _, rate in self.curve("train/tokens_per_second")]:
            texts["tokens per second (median)"] = f"{median(rates):,.0f}"
        if peak := self.last("train/peak_memory_bytes"):
            texts["peak memory"] = f"{peak / 2**20:,.0f} MiB"
        return texts


def read_metrics(
    folder: Path, loggers: Iterable[Any] = (), tokens: int = 0, seconds: float = 0.0
) -> RunMetrics:
    """Load metrics.csv, after flushing Lightning's loggers; tokens and seconds are the run's."""
    for logger in loggers:
        logger.save()
    rows: dict[int, list[dict[str, float]]] = {}
    for cells in read_log(folder / METRICS):
        values = {name: float(cell) for name, cell in cells.items() if cell}
        # Lightning logs a step before it counts it.
        step = int(values.pop("step")) + 1
        of_step = rows.setdefault(step, [{"step": step}])
        seen = values.get(TOKENS)
        same = (row for row in of_step if seen is None or row.get(TOKENS, seen) == seen)
        if (row := next(same, None)) is None:
            # Another validation while gradients accumulate.
            of_step.append(row := {"step": step})
        # If a killed run repeated a step, the later values count.
        row.update(values)
    return RunMetrics([row for step in sorted(rows) for row in rows[step]], tokens, seconds)


def find_differences(settings: Sequence[Mapping[str, Any]]) -> dict[str, list[str]]:
    """Return the values, one per run, of each key whose values differ; "" for a run without it.

    To lack a key is no difference from null.
    """
    rows = collect_by_key(settings)
    keys = [key for key, row in rows.items() if any(value != row[0] for value in row)]
    return {
        key: [format_setting(each[key]) if key in each else "" for each in settings] for key in keys
    }


def format_setting(value: Any) -> str:
    # As in YAML, without quotes around strings.
    return value if isinstance(value, str) else json.dumps(value, default=str)


def collect_by_key(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """Return the values of each key, one per row; None if a row lacks it."""
    keys = dict.fromkeys(key for row in rows for key in row)
    return {key: [row.get(key) for row in rows] for key in keys}


def format_columns(rows: Sequence[Mapping[str, float]]) -> list[list[str]]:
    """Return a header with all keys, then the values of each row, with their standard errors."""
    names = dict.fromkeys(name for row in rows for name in row)
    names = [name for name in names if name.removesuffix(ERROR) not in names.keys() - {name}]
    head = [name.replace("_", " ") for name in names]
    return [head, *([format_cell(row, name) for name in names] for row in rows)]


def format_cell(row: Mapping[str, float], name: str) -> str:
    error = f" ± {row[name + ERROR]:.3f}" if name + ERROR in row else ""
    return format_number(row[name]) + error if name in row else ""


def format_number(value: float) -> str:
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:z,.3f}" if abs(value) < 1000 else f"{value:,.5g}"
