"""experiments/speed/busy.py: speed beside other work."""

import json
import subprocess
import sys

import pytest

from experiments.speed import busy


@pytest.mark.slow
def test_record_of_a_busy_machine_has_a_speed_of_each_work_for_each_case(tmp_path):
    path = tmp_path / "busy.json"
    options = ["--seconds=0", "--rounds=1", "--neighbours", "0", "1", f"--out={path}"]
    command = [sys.executable, "-m", "experiments.speed.busy", *options]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    record = json.loads(path.read_text())
    assert {"command", "commit", "machine"} <= record.keys()
    assert busy.relate_to_idle(record["speeds"])["training step", 0, "unset"] == 1
    assert len(busy.make_rows(record["speeds"])) == 1 + 2 * len(busy.WORKS)
    assert "| decoded token | 1 |" in output
