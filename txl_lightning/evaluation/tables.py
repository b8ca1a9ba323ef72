"""Rows of a table as files."""

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_table(
    rows: Sequence[Mapping[str, Any]], path: Path, about: Mapping[str, Any] | None = None
) -> None:
    """Write a table's rows beside `path`: as CSV, and as JSON with what is said about them."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    path.with_suffix(".json").write_text(json.dumps({**(about or {}), "rows": rows}, indent=1))
