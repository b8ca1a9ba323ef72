"""Does the network compute what the original code computed? A part of check.py."""

import importlib.util
import time
from collections.abc import Iterable
from types import ModuleType

import torch

from experiments.gpu.candidates import KERNELS, use_kernel
from experiments.gpu.parts import DEVICE, NO_TIME, ROOT, Findings
from txl_lightning.convert import load_original

RUNS = [("sdpa", torch.float64, 1e-5)]
RUNS += [(kernel, torch.float32, 1e-3) for kernel in KERNELS if kernel != "auto"]
"""Kernels, precisions and tolerances in nats: the network once in float64, to the rounding of the
files, and each kernel in float32; Triton's has no float64."""


def compare_golden(smoke: bool, ends_at: float) -> Findings:
    """Compare nats and memory with outputs of the original code, for each kernel."""
    names = sorted(path.stem for path in (ROOT / "tests/golden/original").glob("*.npz"))
    names = names[:2] if smoke else names
    for kernel, dtype, tolerance in RUNS:
        row = {"kernel": kernel, "dtype": str(dtype)}
        if time.monotonic() > ends_at:
            yield row | NO_TIME
        else:
            wrong = find_wrong(kernel, dtype, tolerance, names)
            yield row | {"files": len(names), "right": not wrong, "wrong": wrong}


def find_wrong(
    kernel: str, dtype: torch.dtype, tolerance: float, names: Iterable[str]
) -> dict[str, str]:
    """Return the files that a network with this kernel does not equal, and their errors."""
    golden, wrong = load_golden(), {}
    for name in names:
        file = golden.Golden(f"original/{name}")
        net = load_original(file.weights, file.args).to(DEVICE)
        use_kernel(net, kernel)
        try:
            with torch.no_grad():
                file.check(net, dtype, tolerance)
        # Any error is a wrong file of this kernel; the others are still compared.
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:300]
    return wrong


def load_golden() -> ModuleType:
    """Import the fixtures of tests/convert, which is not a package."""
    path = ROOT / "tests" / "convert" / "conftest.py"
    spec = importlib.util.spec_from_file_location("golden", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
