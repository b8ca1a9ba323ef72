"""environment: a table of Markdown."""

import os
import re
import subprocess
import sys

import pytest
import torch

import txl_lightning
from txl_lightning import process
from txl_lightning.process import BUSY, IDLE, VARIABLES


def test_environment_prints_versions_device_kernels_and_paths(txl, monkeypatch):
    monkeypatch.setenv("TXL_DATA", "/big/disk")
    code, output = txl("environment")
    lines = [re.fullmatch(r"\| (.*?) ?\| (.*?) ?\|", line) for line in output.out.splitlines()]
    facts = {line[1]: line[2] for line in lines if line}
    assert code == 0
    assert facts["txl-lightning"].startswith(f"{txl_lightning.__version__}, commit ")
    assert (facts["torch"], facts["data"]) == (torch.__version__, "/big/disk")
    assert facts["threads"].startswith(f"{torch.get_num_threads()}, load")
    assert facts["bfloat16"] in ("faster", "not faster")
    assert facts["here"] == os.getcwd()
    if not torch.cuda.is_available():
        assert facts["kernel"].startswith("per_head: the fastest on a CPU")


@pytest.mark.slow
@pytest.mark.parametrize("said", ["GOMP_SPINCOUNT=7", "OMP_WAIT_POLICY=active", "KMP_BLOCKTIME=0"])
def test_a_command_limits_spinning_before_torch_unless_the_environment_says_otherwise(said):
    env = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    env |= dict([said.split("=")])
    command = [sys.executable, "-m", "txl_lightning", "environment"]
    output = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert f"| waiting threads | {said}, from the environment |" in output.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import experiments", {IDLE, BUSY}),
        ("from txl_lightning.__main__ import main; main()", {IDLE, BUSY}),
        ("import torch; from txl_lightning.__main__ import main; main()", {None}),
        ("import txl_lightning.__main__", {None}),
    ],
)
def test_spinning_is_limited_where_a_process_begins_and_never_after_torch(code, expected):
    others = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    code += f"; import os; print([(n, os.environ[n]) for n in {VARIABLES} if n in os.environ])"
    command = [sys.executable, "-c", code, "--version"]
    output = subprocess.run(command, env=others, capture_output=True, text=True, check=True)
    found = eval(output.stdout.splitlines()[-1])
    assert {*(found or [None])} <= expected


@pytest.mark.parametrize(
    ("running", "n_cpu", "said", "expected"),
    [
        (1, 2, "", False),
        (2, 2, "", True),
        (9, 64, "", False),
        (2, 2, "1", False),
        (3, 2, "1", True),
    ],
)
def test_a_machine_is_busy_where_other_threads_leave_too_few_cores(
    monkeypatch, tmp_path, running, n_cpu, said, expected
):
    (tmp_path / "loadavg").write_text(f"0.20 0.18 0.12 {running}/110 4321\n")
    monkeypatch.setattr(process, "LOAD", tmp_path / "loadavg")
    monkeypatch.setattr(os, "cpu_count", lambda: n_cpu)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1}, raising=False)
    monkeypatch.setenv("OMP_NUM_THREADS", said)
    assert process.is_machine_busy() is expected
    monkeypatch.setattr(process, "LOAD", tmp_path / "none")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    assert not process.is_machine_busy()
