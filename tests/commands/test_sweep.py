"""sweep: many runs of fit; what is broken off is gone on with."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

SETTINGS = [
    {"model": {"net": {"mem_len": 8}}, "data": {"tgt_len": 8}},
    {"model": {"net": {"mem_len": 4}}, "data": {"tgt_len": 0}},
]
"""The second is impossible."""
STEPS = 100


@pytest.fixture
def search(tmp_path, small) -> Path:
    """A grid of two runs of fit."""
    fixed = [f"--trainer.max_steps={STEPS}", "--trainer.val_check_interval=20"]
    config = {
        "method": "grid",
        "metric": {"name": "val/bits_per_byte", "goal": "minimize"},
        "parameters": {"config": {"values": [json.dumps(each) for each in SETTINGS]}},
        "command": ["${env}", "${interpreter}", "-m", "txl_lightning", "fit", *small, *fixed],
    }
    config["command"] += [f"--data.data_dir={tmp_path}", "${args}"]
    path = tmp_path / "search.yaml"
    path.write_text(yaml.safe_dump(config))
    return path


def broken_off(folder: Path, repository: Path) -> str:
    """Begin the sweep, and end it when its first trial has validated; what it said."""
    command = [sys.executable, "-m", "txl_lightning", "sweep", "search.yaml", "--out=out"]
    environment = os.environ | {"PYTHONPATH": str(repository)}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    process = subprocess.Popen(command, cwd=folder, env=environment, **pipes)
    logged, end = folder / "out" / "001" / "version_0" / "metrics.csv", time.monotonic() + 100
    while not logged.exists() or "val/" not in logged.read_text():
        assert time.monotonic() < end
        assert process.poll() is None, process.communicate()[0]
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=100)
    assert process.returncode == 143, said
    return said


def steps(path: Path) -> list[int]:
    """Those of which training was logged."""
    with path.open() as file:
        return [int(row["step"]) for row in csv.DictReader(file) if row["train/nats"]]


def test_runs_of_fit_are_compared_one_that_was_broken_off_and_one_that_fails(
    txl, tmp_path, search, repository, monkeypatch
):
    said = broken_off(tmp_path, repository)
    assert "trial 1: interrupted, val/bits_per_byte" in said
    monkeypatch.setenv("PYTHONPATH", str(repository))
    code, output = txl("sweep", search, "--out=out")
    assert code == 0, output.err
    first, second = (steps(Path("out", "001", f"version_{n}", "metrics.csv")) for n in (0, 1))
    # No step is made twice: fit has saved after the last one, which it has not logged any more.
    assert 18 < first[-1] < second[0] <= first[-1] + 2
    assert second[-1] == STEPS - 1
    with Path("out", "results.csv").open(newline="") as file:
        best, other = csv.DictReader(file)
    assert (best["state"], best["model.net.mem_len"], best["data.tgt_len"]) == (
        "finished",
        "8",
        "8",
    )
    assert (other["state"], other["value"]) == ("failed", "")
    assert other["reason"].startswith("exit code 2: error: data.tgt_len: invalid 0")
    checkpoint = Path("out", "001", "version_1", "checkpoints", "best.ckpt")
    assert checkpoint.exists()
    assert f"python -m txl_lightning evaluate {checkpoint} --split val" in output.out


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--count=0",), "count: invalid 0; expected at least 1"),
        (("--seed=-1",), "seed: invalid -1; expected at least 0"),
        (("--out=search.yaml/here",), "out: search.yaml/here"),
        (("--counts=3",), "counts: unknown key; did you mean count?"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_is_tried(txl, search, options, said):
    code, output = txl("sweep", search, *options)
    assert code in (2, 6)
    assert f"error: {said}" in output.err
    assert not Path("runs").exists()


def test_a_file_that_is_missing_is_named(txl):
    code, output = txl("sweep", "none.yaml")
    assert (code, "error: none.yaml: No such file" in output.err) == (2, True)
