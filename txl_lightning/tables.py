"""Tables as files and as aligned text."""

import csv
import io
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import DataError
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


def read_log(path: Path) -> Iterator[dict[str, str]]:
    """Yield the rows of a metrics.csv, if any, without one cut by a kill; DataError if damaged."""
    try:
        with (path if path.is_file() else Path(os.devnull)).open(encoding="utf-8") as file:
            # Row by row, which takes a third of the memory.
            for row in csv.DictReader((line for line in file if line[-1] == "\n"), restval=""):
                int(row["step"])
                for cell in row.values():
                    float(cell or 0)
                yield row
    except (LookupError, TypeError, ValueError, csv.Error) as error:
        raise DataError(f"{path}: damaged ({error}); mend it, or move it away") from error


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return lines: first column left-aligned, others right-aligned, the last one not aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, note in rows:
        cells = [word.rjust(width) for word, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, note]).rstrip())
    return "\n".join(lines)
