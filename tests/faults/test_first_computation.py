"""The first vector function of a process, while MKL detects the CPU more slowly than it does."""

import json
import os
import shutil
import subprocess
import sys

import pytest
import torch

FOLDER = "experiments/first_computation"
PAUSE = 100_000
HAS_THE_RACE = "Math Kernel Library Version 2024" in torch.__config__.show()
HAS_THE_RACE &= "AVX512" in torch.backends.cpu.get_cpu_capability()
REASON = "needs gcc, AVX-512 and a torch with MKL 2024"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_THE_RACE or shutil.which("gcc") is None, reason=REASON),
]


def test_forty_processes_compute_the_same_bits_however_slowly_mkl_detects_the_cpu(
    run_experiment, tmp_path
):
    options = ["--processes=40", "--forks=20", f"--pause={PAUSE}", "--name=forty"]
    shown = run_experiment("first_computation.run", *options, f"--out={tmp_path}/results.json")
    record = json.loads(shown)["forty"]
    assert (record["processes"], record["wrong"]) == (40, 0)


def test_slow_detection_makes_the_first_sines_of_a_process_wrong_without_the_package(
    repository, tmp_path
):
    """If this fails, this torch's MKL no longer has the race."""
    library = tmp_path / "slow.so"
    source = repository / FOLDER / "slow_detection.c"
    build = ["gcc", "-shared", "-fPIC", f"-DPAUSE={PAUSE}", "-o", library, source]
    subprocess.run(build, check=True)
    command = [sys.executable, repository / FOLDER / "minimal.py", "2"]
    environment = {**os.environ, "LD_PRELOAD": str(library), "OMP_NUM_THREADS": "2"}
    printed = subprocess.check_output(command, env=environment, text=True)
    assert printed == "{'0.00015': 2}\n"
