"""Sweeps whose trials are a script that logs as fit does, in milliseconds."""

import csv
import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from txl_lightning.sweeps import runner

HERE = Path(__file__).parent
COMMAND = ["${env}", "${interpreter}", str(HERE / "script.py")]
LRS = {"lr": {"values": [0.1, 0.3, 0.9]}}


@dataclass
class Place:
    """A folder with a sweep's file."""

    folder: Path

    def write(self, *options: str, **changes: Any) -> Path:
        """The file; None takes a key out."""
        config = {
            "method": "grid",
            "metric": {"name": "val/bits_per_byte", "goal": "minimize"},
            "parameters": LRS,
            "command": [*COMMAND, *options, "${args}"],
        }
        known = {key: value for key, value in (config | changes).items() if value is not None}
        path = self.folder / "search.yaml"
        path.write_text(yaml.safe_dump(known))
        return path

    def start(self, *options: str) -> subprocess.Popen:
        """The sweep as a process of its own."""
        command = [sys.executable, "-m", "txl_lightning", "sweep", "search.yaml", *options]
        environment = os.environ | {"PYTHONPATH": str(HERE.parents[1])}
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(command, cwd=self.folder, env=environment, **pipes)

    def stop(self, process: subprocess.Popen, number: int, signum: int) -> tuple[int, str]:
        """Send a signal when a trial has begun to log; its exit code and what it said."""
        self.wait_for(self.trial(number) / "version_0" / "metrics.csv")
        process.send_signal(signum)
        said, _ = process.communicate(timeout=100)
        return process.returncode, said

    def wait_for(self, path: Path, more_than: int = 1) -> None:
        """Until a file has more lines than that."""
        end = time.monotonic() + 100
        while not path.exists() or len(path.read_text().splitlines()) <= more_than:
            assert time.monotonic() < end, path
            time.sleep(0.02)

    def trial(self, number: int) -> Path:
        return self.out / f"{number:03}"

    def steps(self, number: int) -> list[int]:
        """What a script's trial has done, in all its lives."""
        return [int(line) for line in (self.trial(number) / "steps").read_text().splitlines()]

    @property
    def out(self) -> Path:
        return self.folder / "runs" / "sweeps" / "search"

    @property
    def rows(self) -> list[dict[str, str]]:
        """results.csv."""
        with (self.out / "results.csv").open(newline="") as file:
            return list(csv.DictReader(file))

    @property
    def states(self) -> list[str]:
        """Of the trials in their order."""
        return [trial["state"] for trial in self.saved["trials"]]

    @property
    def saved(self) -> dict[str, Any]:
        return json.loads((self.out / "sweep.json").read_text())


@pytest.fixture
def place(tmp_path, monkeypatch) -> Place:
    monkeypatch.setattr(runner, "POLL", 0.02)
    return Place(tmp_path)


@pytest.fixture
def sweep(txl, place):
    """Run a sweep of the file in the folder: its exit code, and what it printed."""
    return lambda *options: txl("sweep", "search.yaml", *options)
