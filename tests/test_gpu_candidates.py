"""Candidates for a GPU, on machines without one."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
import torch

from experiments.gpu import correctness
from experiments.gpu.candidates import KERNELS, use_kernel

INTERPRET = """
import runpy, sys
import numpy as np
from triton.language import bfloat16, float32
from triton.runtime.interpreter import InterpreterBuilder, TensorHandle

multiply = InterpreterBuilder.create_dot

def widen(x):
    # The interpreter stores bfloat16 as 16 bits, and would multiply those as integers.
    if x.dtype.scalar != bfloat16:
        return x
    return TensorHandle((x.data.astype(np.uint32) << 16).view(np.float32), float32)

InterpreterBuilder.create_dot = lambda self, a, b, *others: multiply(
    self, widen(a), widen(b), *others
)
runpy.run_module("experiments.gpu.correctness", run_name="__main__")
"""
COMPILE = """
import json, re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from experiments.gpu import tiled

K, drop, capability = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
options = tiled.choose_launch(K)
constants = {"K": K, "P": options.pop("P"), "W": tiled.W, "DROP": drop}
kinds = dict.fromkeys(constants, "constexpr")
kinds |= {"L": "i32", "S": "i32", "H": "i32", "scale": "fp32", "mask": "*i1", "seed": "*i64"}
kinds |= {name: "*fp32" for name in ("norm", "mean", "b", "d_b", "d_r")}
tool = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"
for kernel in (tiled.attend_tiles, tiled.query_gradients, tiled.state_gradients):
    signature = {name: kinds.get(name, "*bf16") for name in kernel.arg_names}
    # As at a launch: pointers and lengths that 16 divides.
    aligned = {
        (n,): [["tt.divisibility", 16]]
        for n, name in enumerate(kernel.arg_names) if signature[name][0] == "*" or name in "LS"
    }
    source = ASTSource(kernel, signature, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)
    Path("kernel.cubin").write_bytes(made.asm["cubin"])
    usage = subprocess.check_output([tool, "-res-usage", "kernel.cubin"], text=True)
    [[registers, stack]] = re.findall(r"REG:(\\d+) STACK:(\\d+)", usage)
    products = re.findall(r"wgmma\\.mma_async[^;]*;", made.asm["ptx"])
    from_registers = [p for p in products if re.match(r"wgmma\\S+\\s*\\{[^}]*\\}\\s*,\\s*\\{", p)]
    found = {"shared": made.metadata.shared, "stack": int(stack), "registers": int(registers)}
    print(json.dumps(found | {"from_registers": len(from_registers)}))
"""


def run_with_triton(*arguments, cwd=None, **environment) -> str:
    """Run Python in a separate process: Triton selects its interpreter at import."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("Triton is not installed (it is for Linux)")
    variables = {"PYTHONPATH": os.pathsep.join(path for path in sys.path if path)} | environment
    command = [sys.executable, *map(str, arguments)]
    environment = os.environ | variables
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(("dtype", "limit"), [("float32", 2e-6), ("bfloat16", 3e-2)])
def test_triton_equals_the_reference_with_every_gradient_in_its_interpreter(dtype, limit):
    """Half precision has larger tiles."""
    words = "-c", INTERPRET, "experiments.gpu.tiled", "--dtype", dtype
    shown = run_with_triton(*words, TRITON_INTERPRET="1")
    errors_of_case = json.loads(shown)
    assert len(errors_of_case) == len(correctness.SMALL) + 1
    for case, errors in errors_of_case.items():
        assert correctness.is_within(errors, limit), (case, errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_width", "dropatt", "capability"),
    [(41, 0.0, 80), (128, 0.1, 90)],
)
def test_triton_as_it_is_launched_spills_no_registers_on_a_gpu_that_is_not_present(
    tmp_path, head_width, dropatt, capability
):
    words = "-c", COMPILE, head_width, dropatt, capability
    shown = run_with_triton(*words, cwd=tmp_path, TRITON_CACHE_DIR=str(tmp_path))
    kernels = [json.loads(line) for line in shown.splitlines()]
    assert len(kernels) == 3
    for kernel in kernels:
        # 99 KB are in the GPUs with the least.
        assert kernel["shared"] < 99 * 1024
        assert (kernel["stack"] < 256, kernel["registers"] <= 255) == (True, True), kernel
        assert kernel["from_registers"] == 0


@pytest.mark.parametrize("kernel", KERNELS)
def test_each_kernel_that_is_measured_computes_the_same_network(make_net, kernel):
    net, other = make_net(), make_net(kernel="reference")
    other.load_state_dict(net.state_dict())
    use_kernel(net, kernel)
    tokens_BL = torch.randint(11, (2, 5))
    torch.testing.assert_close(net(tokens_BL)[0], other(tokens_BL)[0])
    assert all(layer.attention.attend is KERNELS[kernel] for layer in net.layers)
