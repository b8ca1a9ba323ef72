"""environment: a table of Markdown."""

import json
import os
import re
import subprocess
import sys

import pytest
import torch

import txl_lightning
from txl_lightning.threads import SPIN_COUNT, VARIABLES


def test_environment_prints_versions_device_kernels_and_paths(txl, monkeypatch):
    monkeypatch.setenv("TXL_DATA", "/big/disk")
    code, output = txl("environment")
    lines = [re.fullmatch(r"\| (.*?) ?\| (.*?) ?\|", line) for line in output.out.splitlines()]
    facts = {line[1]: line[2] for line in lines if line}
    assert code == 0
    assert facts["txl-lightning"].startswith(f"{txl_lightning.__version__}, commit ")
    assert (facts["torch"], facts["data"]) == (torch.__version__, "/big/disk")
    assert facts["threads"].startswith(f"{torch.get_num_threads()}, load")
    assert facts["here"] == os.getcwd()
    if not torch.cuda.is_available():
        assert facts["kernel"].startswith("per_head: the fastest on a CPU")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("said", "row"),
    [
        ({}, f"GOMP_SPINCOUNT={SPIN_COUNT}, set by this command"),
        ({"GOMP_SPINCOUNT": "7"}, "GOMP_SPINCOUNT=7, from the environment"),
        ({"OMP_WAIT_POLICY": "active"}, "OMP_WAIT_POLICY=active, from the environment"),
        ({"KMP_BLOCKTIME": "0"}, "KMP_BLOCKTIME=0, from the environment"),
    ],
)
def test_a_command_limits_spinning_before_torch_unless_the_environment_says_otherwise(said, row):
    others = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    command = [sys.executable, "-m", "txl_lightning", "environment"]
    output = subprocess.run(command, env=others | said, capture_output=True, text=True, check=True)
    assert f"| waiting threads | {row} |" in output.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        ("import experiments", str(SPIN_COUNT)),
        ("from txl_lightning.__main__ import main; main()", str(SPIN_COUNT)),
        ("import torch; from txl_lightning.__main__ import main; main()", "None"),
        ("import txl_lightning.__main__", "None"),
    ],
)
def test_spinning_is_limited_where_a_process_begins_and_never_after_torch(code, expected):
    others = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    code += "; import os; print(os.environ.get('GOMP_SPINCOUNT'))"
    command = [sys.executable, "-c", code, "--version"]
    output = subprocess.run(command, env=others, capture_output=True, text=True, check=True)
    assert output.stdout.split()[-1] == expected


@pytest.mark.slow
def test_each_rank_of_a_sweeps_trial_inherits_the_limit_of_spinning(tmp_path, repository, sizes):
    callback = """import os
from lightning.pytorch import Callback

class Seen(Callback):
    def on_fit_start(self, trainer, module):
        open(f"seen{trainer.global_rank}", "w").write(os.environ.get("GOMP_SPINCOUNT", ""))
"""
    (tmp_path / "seen.py").write_text(callback)
    (tmp_path / "text.txt").write_text("It was the best of times.\n" * 400)
    fit = [
        sys.executable,
        "-m",
        "txl_lightning",
        "fit",
        "--config=" + str(repository / "configs" / "smoke.yaml"),
    ]
    fit += [
        "--data.path=text.txt",
        "--data.vocab=bytes",
        "--trainer.devices=2",
        "--trainer.strategy=ddp",
        "--trainer.max_steps=2",
    ]
    fit += ["--trainer.callbacks+=seen.Seen", "${args}"]
    config = {"method": "grid", "metric": {"name": "val/loss"}, "command": fit}
    config["parameters"] = {"model.net.mem_len": {"values": [8]}}
    (tmp_path / "search.json").write_text(json.dumps({"name": "spin", **config}))
    others = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    others["PYTHONPATH"] = os.pathsep.join([str(repository), str(tmp_path)])
    command = [sys.executable, "-m", "txl_lightning", "sweep", "search.json", "--out=out"]
    command += ["--allow_imports=seen"]
    options = {"env": others, "cwd": tmp_path, "capture_output": True, "text": True}
    output = subprocess.run(command, **options)
    assert output.returncode == 0, output.stderr
    seen = [(tmp_path / f"seen{rank}").read_text() for rank in range(2)]
    assert seen == [str(SPIN_COUNT)] * 2
