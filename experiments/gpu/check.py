"""Does everything hold on this GPU, and how fast is it? One JSON says, within ten minutes.

    python -m experiments.gpu.check            # or make gpu
    python -m experiments.gpu.check --smoke    # tiny sizes, on a CPU

Needs a GPU, torch 2.11 or later and this checkout; lightning for a part, pytest and the package's
other requirements for some. A part is a process with a time of its own: one that is stopped, fails
or is left out is named in the file.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

from experiments.gpu import parts

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 570
"""Seconds for all parts, within ten minutes."""
MARK = "FOUND "
"""Begins a line of a part's output that holds a finding; others are warnings."""
SECONDS: dict[str, tuple[Callable[..., Iterator[dict[str, Any]]], int]] = {
    "peak": (parts.measure_peak, 30),
    "correctness": (parts.compare_kernels, 140),
    "golden": (parts.compare_golden, 40),
    "resume": (parts.resume_twice, 50),
    "tests": (parts.run_gpu_tests, 110),
    "speed": (parts.measure_speed, 240),
}
"""Parts in the order in which they run, and the seconds that each may take."""


def run_part(name: str, smoke: bool, seconds: float, log: Path) -> dict[str, Any]:
    """Run a part as a process, stopped after some seconds: what it has found until then."""
    command = [
        sys.executable,
        "-m",
        "experiments.gpu.check",
        f"--part={name}",
        f"--limit={seconds}",
    ]
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
    lines = log.read_text(errors="replace").splitlines()
    found = [json.loads(line.removeprefix(MARK)) for line in lines if line.startswith(MARK)]
    end = {} if status == "done" else {"end of output": lines[-8:]}
    return {"status": status, "seconds": round(time.monotonic() - began), "found": found} | end


def run_here(name: str, smoke: bool, seconds: float) -> None:
    """Run a part in this process, and print what it finds as it finds it."""
    # What is begun last may end.
    ends_at = time.monotonic() + 0.8 * seconds
    try:
        for found in SECONDS[name][0](smoke, ends_at):
            print(MARK + json.dumps(found), flush=True)
    except ModuleNotFoundError as error:
        print(MARK + json.dumps({"left out": str(error)}), flush=True)


def describe_machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    git = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True)
    return {
        "card": torch.cuda.get_device_name() if cuda else "cpu",
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else 0,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "commit": git.stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
    }


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
    path.with_suffix(".log").unlink(missing_ok=True)
    return result


def is_right(result: dict[str, Any]) -> bool:
    """Return whether no part failed and nothing was found wrong; being left out is no failure."""
    found = [each for part in result["parts"].values() for each in part["found"]]
    failed = [part for part in result["parts"].values() if part["status"].startswith("failed")]
    return not failed and all(each.get("right", True) for each in found)


def main() -> None:
    """Run all parts, or one of them, as the first process asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder")
    parser.add_argument("--part", choices=SECONDS, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_here(args.part, args.smoke, args.limit)
        return
    if not torch.cuda.is_available() and not args.smoke:
        sys.exit("check.py: no GPU is here; --smoke runs tiny sizes on a CPU")
    card = describe_machine()["card"].replace(" ", "_")
    path = args.results / f"{card}{'-smoke' if args.smoke else ''}.json"
    result = run_all(args.smoke, args.limit, path)
    print(f"{path}: {'all right' if is_right(result) else 'not all right'}")
    sys.exit(0 if is_right(result) else 1)


if __name__ == "__main__":
    main()
