"""CUDA kernels on machines without CUDA; no GPU has run them yet."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from txl_lightning.model.kernels import CUDA_KERNELS, sdpa

SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu" / "correctness.py"
spec = importlib.util.spec_from_file_location("correctness", SCRIPT)
sys.modules["correctness"] = correctness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(correctness)

COMPILE = """
from triton import compile
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from txl_lightning.model.kernels import tiled

kinds = {name: "constexpr" for name in ("K", "P", "W", "DROP")}
kinds |= {"L": "i32", "S": "i32", "H": "i32", "scale": "fp32", "mask": "*i1", "seed": "*i64"}
kinds |= {name: "*fp32" for name in ("norm", "mean", "b", "d_b", "d_r")}
for kernel in (tiled.attend_tiles, tiled.query_gradients, tiled.state_gradients):
    signature = {name: kinds.get(name, "*bf16") for name in kernel.arg_names}
    source = ASTSource(kernel, signature, {"K": 41, "P": 64, "W": 64, "DROP": 0.1})
    made = compile(source, target=GPUTarget("cuda", 90, 32), options=tiled.LAUNCH)
    assert made.asm["cubin"] and made.metadata.shared < 99 * 1024, made.metadata
"""


def run_with_triton(*arguments, **environment) -> str:
    """Run Python in a separate process: Triton selects its interpreter at import."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (it is for Linux)")
    variables = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment
    command = [sys.executable, *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | variables, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2e-6), ("float16", 4e-3)])
def test_triton_equals_the_reference_with_every_gradient_in_its_interpreter(dtype, limit):
    """Half precision has larger tiles; the interpreter cannot compute in bfloat16."""
    shown = run_with_triton(SCRIPT, "tiled", "--dtype", dtype, TRITON_INTERPRET="1")
    errors_of_case = json.loads(shown)
    assert len(errors_of_case) == len(correctness.SMALL) + 1
    for case, errors in errors_of_case.items():
        assert correctness.is_within(errors, limit), (case, errors)


@pytest.mark.slow
def test_triton_compiles_for_a_gpu_that_is_not_present(tmp_path):
    run_with_triton("-c", COMPILE, TRITON_CACHE_DIR=str(tmp_path))


@pytest.mark.parametrize("kernel", CUDA_KERNELS)
def test_a_cuda_kernel_computes_as_sdpa_on_other_devices(make_net, kernel):
    net, other = make_net(kernel=kernel), make_net(kernel="sdpa")
    other.load_state_dict(net.state_dict())
    tokens_BL = torch.randint(11, (2, 5))
    assert torch.equal(net(tokens_BL)[0], other(tokens_BL)[0])


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
