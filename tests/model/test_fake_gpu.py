"""What runs on a GPU, on machines without one."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from txl_lightning.model.kernels import sdpa

FAKE = Path(__file__).parents[1] / "fake_gpu"


@pytest.fixture(scope="module")
def run_on_fake_gpu(tmp_path_factory):
    """Take steps on a CUDA device that does nothing; return what was printed, line by line."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is needed for the fake device")
    torch_folder = Path(torch.__file__).parent
    library = tmp_path_factory.mktemp("fake") / "gpu.so"
    folders = [f"-I{torch_folder / 'include' / part}" for part in ("", "torch/csrc/api/include")]
    linked = [f"-L{torch_folder / 'lib'}", f"-Wl,-rpath,{torch_folder / 'lib'}"]
    words = ["g++", "-w", "-std=c++17", "-shared", "-fPIC", *folders, FAKE / "device.cpp"]
    subprocess.run([*words, "-o", library, *linked, "-lc10", "-ltorch_cpu"], check=True)
    environment = os.environ | {"LD_PRELOAD": str(library), "PYTHONPATH": str(FAKE.parents[1])}

    def run(*options: str) -> list[str]:
        command = [sys.executable, FAKE / "steps.py", *options]
        return subprocess.check_output(command, env=environment, text=True).splitlines()

    return run


@pytest.mark.slow
def test_no_step_of_training_or_evaluation_waits_for_a_gpu(run_on_fake_gpu):
    """Every kernel, position scheme, precision and norm; the networks of a text of one's own by
    its size, and networks of one's own."""
    *failed, count = run_on_fake_gpu()
    assert int(count) == 96
    assert failed == []


@pytest.mark.slow
def test_a_bf16_step_of_a_published_network_starts_few_operators_on_a_gpu(run_on_fake_gpu):
    """Of enwik8_base, 1,153 with 72 GB before weights were cast together and masks shared.

    Rows of distance scores that a GPU multiplies fast add 5 GB, and take 9 of 45 ms off a step.
    Memory and segment are joined again in the backward pass, for second derivatives: 12 operators.
    Of wt103_base, 57 give tables aligned rows, and the logits' gradients their place.
    """
    base, words, token, in_ring, lamb = map(json.loads, run_on_fake_gpu("--count"))
    assert (base["operators"] <= 752, base["gigabytes"] < 57.2) == (True, True), base
    assert (words["operators"] <= 1240, words["gigabytes"] < 64.8) == (True, True), words
    assert (token["operators"] <= 231, in_ring["operators"] <= 258) == (True, True), in_ring
    assert (lamb["operators"] <= 38, lamb["gigabytes"] < 17.7) == (True, True), lamb


def test_sdpa_on_cuda_asks_neither_cudnn_nor_flash():
    cuda = torch.backends.cuda
    backends = (
        cuda.cudnn_sdp_enabled, cuda.flash_sdp_enabled,
        cuda.mem_efficient_sdp_enabled, cuda.math_sdp_enabled,
    )  # fmt: skip
    before = [is_enabled() for is_enabled in backends]
    with sdpa.correct_backends(torch.device("cuda")):
        assert [is_enabled() for is_enabled in backends] == [False, False, True, True]
    with sdpa.correct_backends(torch.device("cpu")):
        assert [is_enabled() for is_enabled in backends] == before
