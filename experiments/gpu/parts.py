"""Is it right? Parts of check.py: each yields its findings, and begins nothing after `ends_at`."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

from experiments.gpu import correctness
from txl_lightning.convert import load_original
from txl_lightning.model.kernels import KERNELS

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Largest difference over the largest true value; the precision of training first.
TOLERANCES = {torch.bfloat16: 4e-2, torch.float32: 1e-4}
NO_TIME = {"left out": "no time was left"}
TESTED = ("cuda_graph", "gpu", "module", "precision", "compiling")
GPU_TESTS = [f"tests/training/test_{name}.py" for name in TESTED]
OUTCOME = re.compile(r"(tests/\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b")

Findings = Iterator[dict[str, Any]]
GOLDEN_RUNS = [("sdpa", torch.float64, 1e-5)]
GOLDEN_RUNS += [(kernel, torch.float32, 1e-3) for kernel in KERNELS if kernel != "auto"]
"""Kernels, precisions and tolerances in nats: the network once in float64, to the rounding of the
files, and each kernel in float32."""


def compare_kernels(
    smoke: bool, ends_at: float, kernel: str = "sdpa", attend: correctness.Attend = KERNELS["sdpa"]
) -> Findings:
    """Compare output and gradients of a kernel with the reference's, in both precisions."""
    cases = correctness.SMALL[2:] if DEVICE == "cpu" else correctness.ON_GPU
    for dtype in TOLERANCES:
        row = {"kernel": kernel, "dtype": str(dtype)}
        for case, found in correctness.kernel_differences(attend, dtype, DEVICE, cases):
            right = is_right(found, dtype)
            shown = {"largest": max(found.values())} if right else {"found": found}
            yield row | {"case": case, "right": right} | shown
            if time.monotonic() > ends_at:
                yield row | NO_TIME
                return


def is_right(found: dict[str, float] | str, dtype: torch.dtype) -> bool:
    """Return True if all differences are within the precision; an error and NaN are not."""
    return not isinstance(found, str) and all(x < TOLERANCES[dtype] for x in found.values())


def run_gpu_tests(smoke: bool, ends_at: float) -> Findings:
    """Run the tests that need a GPU, as far as the time goes: a finding for each."""
    import pytest_timeout  # noqa: F401 (what the tests need, beside lightning)

    # Named, because other tests need packages that a machine with a GPU may lack.
    words = [sys.executable, "-m", "pytest", "-v", "-rfE", "-m", "gpu", *GPU_TESTS]
    words += ["--time-limit", str(ends_at - time.monotonic()), "--timeout", "60"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            if match := OUTCOME.match(line):
                name, outcome = match.groups()
                left_out = NO_TIME if outcome == "SKIPPED" and not smoke else {}
                yield {"test": name, "right": outcome in ("PASSED", "SKIPPED")} | left_out
            elif line.startswith(("FAILED ", "ERROR ")):
                yield {"reason": line.strip()[:300]}
    # 5: no tests.
    yield {"exit_code": process.returncode, "right": process.returncode == 0}


def compare_golden(smoke: bool, ends_at: float) -> Findings:
    """Compare nats and memory with outputs of the original code, for each kernel."""
    paths = sorted((ROOT / "tests/golden/original").glob("*.npz"))
    names = [path.stem for path in paths[: 2 if smoke else None]]
    for kernel, dtype, tolerance in GOLDEN_RUNS:
        row = {"kernel": kernel, "dtype": str(dtype)}
        yield try_in_time(ends_at, row, compare_files, kernel, dtype, tolerance, names)


def compare_files(
    kernel: str, dtype: torch.dtype, tolerance: float, names: Sequence[str]
) -> dict[str, Any]:
    """Return the files that a network with this kernel does not equal, and their errors."""
    # Here, because it needs pytest.
    from tests.convert.conftest import Golden

    wrong = {}
    for name in names:
        file = Golden(f"original/{name}")
        net = load_original(file.weights, file.args).to(DEVICE)
        for layer in net.layers:
            layer.attention.attend = KERNELS[kernel]
        try:
            with torch.no_grad():
                file.check(net, dtype, tolerance)
        # Any error is a wrong file of this kernel; the others are still compared.
        except Exception as error:
            wrong[name] = f"{type(error).__name__}: {error}"[:300]
    return {"files": len(names), "right": not wrong, "wrong": wrong}


def try_in_time(
    ends_at: float, about: dict[str, Any], measure: Callable[..., dict], *arguments: Any
) -> dict[str, Any]:
    """Return a finding: what a function finds, its error, or that no time was left."""
    if time.monotonic() > ends_at:
        return about | NO_TIME
    try:
        return about | measure(*arguments)
    # Other packages fail by errors of any class; none may end the measurements of the rest.
    except Exception as error:
        return about | {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
