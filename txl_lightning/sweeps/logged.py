"""What a trial has logged: metrics.csv of its version_0, version_1, ..."""

import csv
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

FILE = "metrics.csv"
TOKENS = "train/tokens_seen"


@dataclass(frozen=True)
class Logged:
    """A metric, each time that it was logged, and how far training has come."""

    values: tuple[float, ...]
    steps: int
    tokens: int | None
    columns: tuple[str, ...]


def read(folder: Path, metric: str) -> Logged:
    """What the runs in a trial's folder say; where two say it of a step, the later one counts."""
    values: dict[int, float] = {}
    steps, tokens, columns = 0, None, dict[str, None]()
    for path in versions(folder):
        for row in rows(path):
            step = int(row.get("step") or 0)
            steps = max(steps, step + 1)
            columns |= dict.fromkeys(row)
            if row.get(TOKENS):
                tokens = int(float(row[TOKENS]))
            if row.get(metric):
                values[step] = float(row[metric])
    # What is no number is nothing to compare with, for W&B's engine, too.
    finite = tuple(values[step] for step in sorted(values) if math.isfinite(values[step]))
    return Logged(finite, steps, tokens, tuple(columns))


def rows(path: Path) -> Iterator[dict[str, str]]:
    """The whole lines of a file that is being written."""
    text = path.read_text()
    return csv.DictReader(text[: text.rfind("\n") + 1].splitlines(), restval="")


def versions(folder: Path, name: str = FILE) -> list[Path]:
    """A file in each run of a trial that has it, the first run first."""
    found = folder.glob(f"version_*/{name}")
    return sorted(found, key=lambda path: int(path.relative_to(folder).parts[0].split("_")[1]))


def checkpoint(folder: Path) -> Path | None:
    """The best checkpoint of a trial, or else its last."""
    best, last = (versions(folder, f"checkpoints/{name}.ckpt") for name in ("best", "last"))
    return next(iter([*best[::-1], *last[::-1]]), None)


def complaint(log: Path) -> str:
    """Why a process has failed, as far as it said so: its last error, or else its last line."""
    if not log.exists():
        return ""
    text = log.read_bytes()[-65536:].decode(errors="replace")
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or lines or [""])[-1]
