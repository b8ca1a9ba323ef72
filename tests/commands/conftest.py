"""A checkpoint that is not modified, and a reader of the tables that commands write."""

import csv
import json
from pathlib import Path

import pytest


@pytest.fixture
def checkpoint(run_folder) -> Path:
    return run_folder / "checkpoints" / "best.ckpt"


@pytest.fixture
def read_table():
    """Read the rows of a table as CSV, and its JSON; both must be equal."""

    def read(path: str) -> tuple[list[dict[str, str]], dict]:
        rows = list(csv.DictReader(Path(f"{path}.csv").read_text().splitlines()))
        content = json.loads(Path(f"{path}.json").read_text())
        texts = [
            {key: "" if value is None else str(value) for key, value in row.items()}
            for row in content["rows"]
        ]
        assert rows == texts
        return rows, content

    return read
