"""Tables as files and as aligned text."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_table(rows: Sequence[Mapping[str, Any]], path: Path, about: Mapping[str, Any]) -> None:
    """Write rows as `path`.csv, and as `path`.json together with `about`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps({**about, "rows": rows}, indent=1))


def align_columns(rows: Sequence[Sequence[str]]) -> str:
    """Return lines: first column left-aligned, others right-aligned, the last one not aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for first, *middle, note in rows:
        cells = [word.rjust(width) for word, width in zip(middle, widths[1:-1], strict=True)]
        lines.append("  ".join([first.ljust(widths[0]), *cells, note]).rstrip())
    return "\n".join(lines)
