"""The kernels of experiments/gpu/flash.py are right, as far as this can be known without a GPU."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        importlib.util.find_spec("triton") is None,
        reason="triton is missing: pip install triton (190 MB)",
    ),
]
TOLERANCES = {"torch.float32": 1e-5, "torch.float16": 4e-3}
SHARED_BYTES = 227 << 10  # of a block on sm_90


def find(folder, tmp_path, **environment):
    """Return the findings of flash_offline.py, in a process of its own: triton reads these once."""
    words = [sys.executable, "-m", "experiments.gpu.flash_offline"]
    # So that kernels are compiled.
    environment |= {"TRITON_CACHE_DIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    run = subprocess.run(
        words, cwd=folder, env=os.environ | environment, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    return [json.loads(line) for line in run.stdout.splitlines()]


def test_kernels_in_the_interpreter_equal_the_reference_with_every_gradient(repository, tmp_path):
    found = find(repository, tmp_path, TRITON_INTERPRET="1")
    assert {each["dtype"] for each in found} == set(TOLERANCES)
    assert {"dropped"} < {each["case"] for each in found}
    for each in found:
        differences = each["found"]
        assert isinstance(differences, dict), each
        for name, difference in differences.items():
            assert difference < TOLERANCES[each["dtype"]], (name, each)


def test_kernels_compiled_for_an_h100_use_tensor_cores_and_spill_little(repository, tmp_path):
    found = find(repository, tmp_path, TRITON_INTERPRET="0")
    assert len(found) == 6
    for each in found:
        assert each["products by wgmma"] > 0, each
        assert each["other products"] == 0, each
        # Of triton 3.9, 0; of 3.6, 40 in one kernel.
        assert each["bytes beside registers"] <= 64, each
        # Scores by distance are read eight at a time.
        assert each["reads of 2 bytes"] == 0, each
        assert each["shared bytes"] <= SHARED_BYTES, each
