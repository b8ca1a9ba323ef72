"""CUDA kernels on machines without CUDA; no GPU has run them yet."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from txl_lightning.model.kernels import CUDA_KERNELS, sdpa

SCRIPT = Path(__file__).parents[2] / "experiments" / "gpu" / "correctness.py"
FAKE = Path(__file__).parents[1] / "fake_gpu"
spec = importlib.util.spec_from_file_location("correctness", SCRIPT)
sys.modules["correctness"] = correctness = importlib.util.module_from_spec(spec)
spec.loader.exec_module(correctness)

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
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
COMPILE = """
import json, re, subprocess, sys
from pathlib import Path
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from txl_lightning.model.kernels import tiled

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
@pytest.mark.parametrize(
    ("dtype", "limit"), [("float32", 2e-6), ("float16", 4e-3), ("bfloat16", 3e-2)]
)
def test_triton_equals_the_reference_with_every_gradient_in_its_interpreter(dtype, limit):
    """Half precision has larger tiles."""
    words = "-c", INTERPRET, SCRIPT, "tiled", "--dtype", dtype
    shown = run_with_triton(*words, TRITON_INTERPRET="1")
    errors_of_case = json.loads(shown)
    assert len(errors_of_case) == len(correctness.SMALL) + 1
    for case, errors in errors_of_case.items():
        assert correctness.is_within(errors, limit), (case, errors)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("head_width", "dropatt", "capability"),
    [(64, 0.0, 80), (64, 0.1, 90), (41, 0.1, 80), (128, 0.1, 90)],
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


@pytest.fixture(scope="module")
def run_on_fake_gpu(tmp_path_factory):
    """Take steps on a CUDA device that does nothing; return what was printed, line by line."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is needed for the fake device")
    torch_folder, library = Path(torch.__file__).parent, tmp_path_factory.mktemp("fake") / "gpu.so"
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
    """Every kernel, position scheme, precision and norm."""
    *failed, count = run_on_fake_gpu()
    assert int(count) == 90
    assert failed == []


@pytest.mark.slow
def test_a_bf16_step_of_a_published_network_starts_few_operators_on_a_gpu(run_on_fake_gpu):
    """Of enwik8_base, 1,153 with 72 GB before weights were cast together and masks shared."""
    base, words = map(json.loads, run_on_fake_gpu("--count"))
    assert (base["operators"] <= 760, base["gigabytes"] < 51) == (True, True), base
    assert (words["operators"] <= 1220, words["gigabytes"] < 66.2) == (True, True), words


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
