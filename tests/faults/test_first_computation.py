"""The first vector function of a process, while MKL detects the CPU more slowly than it does."""

import os
import pickle
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

PAUSE = 100_000
HAS_THE_RACE = "Math Kernel Library Version 2024" in torch.__config__.show()
HAS_THE_RACE &= "AVX512" in torch.backends.cpu.get_cpu_capability()
REASON = "needs gcc, AVX-512 and a torch with MKL 2024"
BUILT = """
from txl_lightning import TransformerXL, TransformerXLConfig
net = TransformerXL(TransformerXLConfig(n_token=9, n_layer=1, n_head=1, d_model=2))
"""
UNPICKLED = """
import pickle, sys
net = pickle.load(open(sys.argv[1], "rb"))
"""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not HAS_THE_RACE or shutil.which("gcc") is None, reason=REASON),
]


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    path = tmp_path_factory.mktemp("detection") / "slow.so"
    source = Path(__file__).with_name("slow_detection.c")
    build = ["gcc", "-shared", "-fPIC", f"-DPAUSE={PAUSE}", "-o", path, source]
    subprocess.run(build, check=True)
    return path


@pytest.fixture
def compute(library, repository, tmp_path):
    """Run the page's program after some lines; return by how much its first sines are wrong."""
    page = (repository / "docs" / "engineering-log.md").read_text()
    [program] = re.findall(r"```python\n(import torch\n.*?angle\.sin.*?)```", page, re.DOTALL)

    def run(lines: str) -> float:
        environment = {"PYTHONPATH": str(repository), "OMP_NUM_THREADS": "2"}
        environment |= {"LD_PRELOAD": str(library), "OMP_WAIT_POLICY": "passive"}
        command = [sys.executable, "-c", lines + program, tmp_path / "net"]
        return float(subprocess.check_output(command, env=os.environ | environment, text=True))

    return run


def test_slow_detection_makes_the_first_sines_of_a_process_wrong_without_the_package(compute):
    """If this fails, this torch's MKL no longer has the race."""
    assert compute("") == pytest.approx(1.5e-4, rel=0.05)


def test_sines_after_a_network_is_built_are_exact_however_slowly_mkl_detects_the_cpu(compute):
    assert compute(BUILT) == 0


def test_sines_after_a_network_is_unpickled_are_exact_however_slowly_mkl_detects_the_cpu(
    compute, make_net, tmp_path
):
    with (tmp_path / "net").open("wb") as file:
        pickle.dump(make_net(), file)
    assert compute(UNPICKLED) == 0
