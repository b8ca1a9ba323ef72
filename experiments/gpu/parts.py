"""Is it right? Parts of check.py: each yields its findings, and begins nothing after `ends_at`."""

import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.gpu import correctness
from experiments.gpu.candidates import KERNELS

ROOT = Path(__file__).resolve().parents[2]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
# Largest difference over the largest true value; the precision of training first.
TOLERANCES = {torch.bfloat16: 4e-2, torch.float32: 1e-4}
NO_TIME = {"left out": "no time was left"}
GPU_TESTS = [
    f"tests/training/test_{name}.py" for name in ("gpu", "module", "precision", "compiling")
]
OUTCOME = re.compile(r"(tests/\S+::.+?) (PASSED|FAILED|SKIPPED|ERROR)\b")

Findings = Iterator[dict[str, Any]]


def compare_kernels(kernel: str, smoke: bool, ends_at: float) -> Findings:
    """Compare output and gradients of a kernel with the reference's, in both precisions."""
    cases = correctness.SMALL[2:] if DEVICE == "cpu" else correctness.ON_GPU
    for dtype in TOLERANCES:
        row = {"kernel": kernel, "dtype": str(dtype)}
        for case, found in correctness.kernel_differences(KERNELS[kernel], dtype, DEVICE, cases):
            right = is_right(found, dtype)
            shown = {"largest": max(found.values())} if right else {"found": found}
            yield row | {"case": case, "right": right} | shown
            if time.monotonic() > ends_at:
                yield row | NO_TIME
                return


def is_right(found: dict[str, float] | str, dtype: torch.dtype) -> bool:
    """Return True if a kernel's differences are within the precision, and it raised no error."""
    return not isinstance(found, str) and correctness.is_within(found, TOLERANCES[dtype])


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


def try_to(measure: Callable[..., dict], *arguments: Any) -> dict[str, Any]:
    """Return what a function finds, or its error as a finding that is not right."""
    try:
        return measure(*arguments)
    # Other packages fail by errors of any class; none may end the measurements of the rest.
    except Exception as error:
        return {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}
