"""A checkpoint that is read only, and the tables that commands write."""

import csv
import json
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(run_folder) -> Path:
    return run_folder / "checkpoints" / "best.ckpt"


@pytest.fixture
def read_table():
    """Read a table: its rows as CSV, and its JSON; both must hold the same."""

    def read(path: str) -> tuple[list[dict[str, str]], dict]:
        with Path(f"{path}.csv").open(newline="") as file:
            rows = list(csv.DictReader(file))
        content = json.loads(Path(f"{path}.json").read_text())
        as_text = [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in content["rows"]
        ]
        assert rows == as_text
        return rows, content

    return read
