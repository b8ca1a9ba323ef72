"""Does everything hold on this GPU, and how fast is it? One JSON says, within ten minutes.

    python -m experiments.gpu.check            # or make gpu
    python -m experiments.gpu.check --smoke    # tiny sizes, on a CPU

Needs a GPU, torch 2.11 or later and this checkout; lightning for a part, pytest and the package's
other requirements for some. A part is a process with a time of its own: one that is stopped, fails
or is left out is named in the file. Exit code: 0 all right, 1 something is wrong, 2 incomplete.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from experiments.gpu import golden, parts, speed

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 570  # seconds for all parts, within ten minutes
KERNELS = {
    f"kernel {kernel}": (partial(parts.compare_kernels, kernel), 100 if kernel == "triton" else 35)
    for kernel in parts.RACED
}
"""A process for each kernel: after an illegal access, nothing else works in the same one."""
SECONDS: dict[str, tuple[Callable[..., Iterator[dict[str, Any]]], int]] = {
    "peak": (speed.measure_peak, 25),
    **KERNELS,
    "golden": (golden.compare_golden, 40),
    "resume": (parts.resume_twice, 50),
    "tests": (parts.run_gpu_tests, 80),
    "speed": (speed.measure_speed, 110),
    "profile": (speed.profile_steps, 20),
    "ways": (speed.train_in_each_way, 60),
    "peers": (speed.measure_peers, 15),
}
"""Parts in the order in which they run, and the seconds that each may take: LIMIT in all."""
EXIT_CODES = {"all right": 0, "not all right": 1, "incomplete": 2}


def run_part(name: str, smoke: bool, seconds: float, log: Path) -> dict[str, Any]:
    """Run a part as a process, stopped after some seconds; return what it has found until then."""
    findings = log.with_suffix(".findings")
    findings.write_text("")
    words = [f"--part={name}", f"--limit={seconds}", f"--findings={findings}"]
    command = [sys.executable, "-m", "experiments.gpu.check", *words]
    began = time.monotonic()
    with log.open("w") as file:
        # A file, not a pipe, and a group: processes that compile hold a pipe open.
        options = {"stdout": file, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command + ["--smoke"] * smoke, cwd=ROOT, **options)
        try:
            code = process.wait(timeout=seconds)
            status = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            status = f"stopped after {seconds:.0f} s"
    # A part that was stopped may have written a line in part.
    found = [json.loads(line) for line in findings.read_text().splitlines() if line.endswith("}")]
    lines = log.read_text(errors="replace").splitlines()
    end = {} if status == "done" else {"end of output": lines[-8:]}
    return {"status": status, "seconds": round(time.monotonic() - began), "found": found} | end


def run_here(name: str, smoke: bool, seconds: float, findings: Path) -> None:
    """Run a part in this process; append each finding to a file as a line of JSON."""
    # Something started then may still end in time.
    ends_at = time.monotonic() + 0.8 * seconds
    # A file of its own: libraries print to stdout, too.
    with findings.open("a", buffering=1) as file:
        try:
            for found in SECONDS[name][0](smoke, ends_at):
                file.write(json.dumps(found) + "\n")
        except ModuleNotFoundError as error:
            file.write(json.dumps({"left out": str(error)}) + "\n")


def describe_machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "card": torch.cuda.get_device_name() if cuda else "cpu",
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        **describe_compilers(),
        "commit": git.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_compilers() -> dict[str, str]:
    """Return the versions of driver, Triton and its assembler, as far as they are installed."""
    versions = {}
    if shutil.which("nvidia-smi"):
        query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
        shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
        versions["driver, power limit"] = shown.strip()
    with suppress(ImportError):
        import triton

        versions["triton"] = triton.__version__
        assembler = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "ptxas"
        if assembler.exists():
            shown = subprocess.run([assembler, "--version"], capture_output=True, text=True)
            versions["ptxas"] = shown.stdout.strip().splitlines()[-1]
    return versions


def run_all(smoke: bool, limit: float, path: Path) -> dict[str, Any]:
    """Run every part for which there is time, and write the file after each."""
    began, result = time.monotonic(), describe_machine() | {"smoke": smoke, "parts": {}}
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, (_, seconds) in SECONDS.items():
        remaining = limit - (time.monotonic() - began)
        # A CPU may be busy, and has no machine time to save.
        seconds = remaining if smoke else min(seconds, remaining)
        print(f"{name}: at most {seconds:.0f} s", flush=True)
        part = {"status": "left out: no time was left", "seconds": 0, "found": []}
        if remaining > 10:
            part = run_part(name, smoke, seconds, path.with_suffix(".log"))
        result["parts"][name] = part
        print(f"  {part['status']}, {len(part['found'])} findings", flush=True)
        wrong = [found for found in part["found"] if found.get("right") is False]
        for found in wrong:
            print(f"  wrong: {found}", flush=True)
        result["seconds"] = round(time.monotonic() - began)
        path.write_text(json.dumps(result, indent=1) + "\n")
    for suffix in (".log", ".findings"):
        path.with_suffix(suffix).unlink(missing_ok=True)
    return result


def judge(result: dict[str, Any]) -> str:
    """Return "not all right", "incomplete" if a part was stopped or left out, or "all right"."""
    found = [each for part in result["parts"].values() for each in part["found"]]
    states = [part["status"] for part in result["parts"].values()]
    has_failed = any(state.startswith("failed") for state in states)
    if has_failed or not all(each.get("right", True) for each in found):
        return "not all right"
    is_whole = all(state == "done" for state in states) and not any("left out" in f for f in found)
    return "all right" if is_whole else "incomplete"


def main() -> None:
    """Run all parts, or one of them, as the first process asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder")
    for name in ("--part", "--findings"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_here(args.part, args.smoke, args.limit, Path(args.findings))
        return
    if not torch.cuda.is_available() and not args.smoke:
        sys.exit("check.py: no GPU is here; --smoke runs tiny sizes on a CPU")
    card = describe_machine()["card"].replace(" ", "_")
    path = args.results / f"{card}{'-smoke' if args.smoke else ''}.json"
    result = run_all(args.smoke, args.limit, path)
    print(f"{path}: {judge(result)}")
    sys.exit(EXIT_CODES[judge(result)])


if __name__ == "__main__":
    main()
