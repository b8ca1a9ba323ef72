"""Tables as files and as aligned text."""

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .files import write_text

Rows = Sequence[Mapping[str, Any]]
Plot = Callable[[Rows, Path], None]


def write_table(
    rows: Rows, path: Path, origin: Mapping[str, Any], plot: Plot | None = None
) -> None:
    """Write rows as `path`.csv, together with `origin` as .json, and as a plot as .png."""
    write_csv(rows, list(rows[0]), path.with_suffix(".csv"))
    write_text(json.dumps({**origin, "rows": rows}, indent=1), path.with_suffix(".json"))
    if plot is not None:
        plot(rows, path.with_suffix(".png"))


def write_csv(rows: Rows, names: Sequence[str], path: Path) -> None:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, names)
    writer.writeheader()
    writer.writerows(rows)
    write_text(text.getvalue(), path)


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return lines: first column left-aligned, others right-aligned, the last one not aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, note in rows:
        cells = [word.rjust(width) for word, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, note]).rstrip())
    return "\n".join(lines)
