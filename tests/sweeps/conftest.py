"""Sweeps whose trials run a script that logs like fit, in milliseconds."""

import csv
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.helpers.waiting import wait_until
from txl_lightning.sweeps import trials

SCRIPT = Path(__file__).with_name("script.py")
GRID = {
    "method": "grid",
    "metric": {"name": "val/bits_per_byte"},
    "parameters": {"lr": {"values": [0.1, 0.3, 0.9]}},
}


@dataclass
class Place:
    """A folder with a sweep's file."""

    folder: Path
    processes: Any

    def write(self, *options: str, **changes: Any) -> Path:
        """Write the file, a grid of three trials with changes."""
        command = ["${env}", "${interpreter}", str(SCRIPT), *options, "${args}"]
        path = self.folder / "search.yaml"
        path.write_text(yaml.safe_dump({**GRID, "command": command, **changes}))
        return path

    def start(self, *options: str) -> subprocess.Popen:
        command = [sys.executable, "-m", "txl_lightning", "sweep", "search.yaml", *options]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return self.processes.start(command, cwd=self.folder, **pipes)

    def wait_for_step(self, trial: int) -> None:
        wait_until(lambda: self.steps(trial))

    def trial(self, number: int) -> Path:
        return self.out / f"{number:03}"

    def steps(self, number: int) -> list[int]:
        """Return the steps that all processes of a trial have logged."""
        path = self.trial(number) / "version_0" / "metrics.csv"
        lines = path.read_text().splitlines()[1:] if path.exists() else []
        return [int(line.split(",")[0]) for line in lines]

    @property
    def out(self) -> Path:
        return self.folder / "runs" / "sweeps" / "search"

    @property
    def rows(self) -> list[dict[str, str]]:
        return list(csv.DictReader((self.out / "results.csv").read_text().splitlines()))

    @property
    def states(self) -> list[str]:
        """Return the states of the trials in their order."""
        return [row["state"] for row in sorted(self.rows, key=lambda row: int(row["trial"]))]


@pytest.fixture
def place(tmp_path, monkeypatch, processes) -> Place:
    monkeypatch.setattr(trials, "POLL", 0.02)
    return Place(tmp_path, processes)


@pytest.fixture
def sweep(txl, place):
    """Run the sweep of the folder in this process; return its exit code and output."""
    return lambda *options: txl("sweep", "search.yaml", *options)
