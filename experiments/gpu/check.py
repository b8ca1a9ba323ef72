"""Is everything right on this GPU, and how fast is it? Parts run one after the other.

    python -m experiments.gpu.check                         # or make gpu: all but ON_REQUEST
    python -m experiments.gpu.check --only speed trainer    # these parts
    python -m experiments.gpu.check --smoke                 # tiny sizes, on a CPU

README.md beside this file says what is needed, and what is written. A part is a process with a
time limit. Exit code: 0 all right, 1 something is wrong, 2 a part was stopped or left out.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from txl_lightning.machine import describe_environment

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "experiments/gpu/results"
LIMIT = 560  # seconds for all parts; a machine that is lent may stop a command after 600
PARTS = {
    "costs": ("speed.measure_costs", 40),
    "kernels": ("parts.compare_kernels", 60),
    "speed": ("speed.measure_speed", 160),
    "trainer": ("trainer.train_in_each_way", 160),
    "tests": ("parts.run_gpu_tests", 90),
    "golden": ("parts.compare_golden", 40),
    "inference": ("speed.measure_inference", 50),
    "others": ("trainer.train_others", 160),
    "peers": ("peers.measure_peers", 220),
    "minutes": ("minutes.train_equal_time", 420),
    "layers": ("kernels.measure_kernels", 120),
    "profile": ("kernels.profile_steps", 100),
    "flash": ("attention.compare_flash", 60),
    "attention": ("attention.measure_attention", 90),
    "network": ("attention.measure_network", 60),
    "tiles": ("attention.measure_tiles", 200),
}
"""Functions that yield findings, as MODULE.NAME, and the seconds that each may take."""
ON_REQUEST = (
    "others", "peers", "minutes", "layers", "profile", "flash", "attention", "network", "tiles",
)  # fmt: skip
"""Only where --only names them: larger networks, other code, what takes the time, candidates."""
EXIT_CODES = {"all right": 0, "not all right": 1, "incomplete": 2}


def read_findings(path: Path, part: str) -> list[dict[str, Any]]:
    """Return the findings of a part; one that was stopped may have written a line in part."""
    lines = path.read_text().splitlines() if path.exists() else []
    found = [json.loads(line) for line in lines if line.endswith("}")]
    return [each["found"] for each in found if each["part"] == part]


def run_part(name: str, smoke: bool, seconds: float, file: Path) -> dict[str, Any]:
    """Run a part as a process, stopped after some seconds; return what it has found until then."""
    findings = file.with_suffix(".jsonl")
    words = [f"--part={name}", f"--limit={seconds}", f"--findings={findings}"]
    command = [sys.executable, "-m", "experiments.gpu.check", *words, *["--smoke"] * smoke]
    began = time.monotonic()
    with file.with_suffix(".log").open("a") as log:
        print(f"== {name}", file=log, flush=True)
        # A file, not a pipe, and a group: processes that compile hold a pipe open.
        options = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command, cwd=ROOT, **options)
        try:
            code = process.wait(timeout=seconds)
            status = "done" if code == 0 else f"failed with exit code {code}"
        except subprocess.TimeoutExpired:
            status = f"stopped after {seconds:.0f} s"
        finally:
            # Also when this process is stopped.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    seconds_taken = round(time.monotonic() - began, 1)
    return {"status": status, "seconds": seconds_taken, "found": read_findings(findings, name)}


def run_here(name: str, smoke: bool, seconds: float, path: Path) -> None:
    """Run a part in this process; append each finding to a file as a line of JSON."""
    # Something started then may still end in time.
    ends_at = time.monotonic() + 0.8 * seconds
    module, function = PARTS[name][0].split(".")
    # A file of its own: libraries print to stdout, too.
    with path.open("a", buffering=1) as file:
        try:
            # Not at the start: an import that fails, fails alone.
            find = getattr(import_module(f"experiments.gpu.{module}"), function)
            for found in find(smoke, ends_at):
                file.write(json.dumps({"part": name, "found": found}) + "\n")
        except ModuleNotFoundError as error:
            file.write(json.dumps({"part": name, "found": {"left out": str(error)}}) + "\n")


def describe_machine() -> dict[str, Any]:
    has_gpu = torch.cuda.is_available()
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    has_tool = shutil.which(query[0])
    shown = subprocess.run(query, capture_output=True, text=True).stdout if has_tool else ""
    return describe_environment(torch.device("cuda" if has_gpu else "cpu")) | {
        "driver, power limit": shown.strip(),
        "cuda": torch.version.cuda,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
    }


def run_parts(
    names: list[str], smoke: bool, limit: float, file: Path, at_commit: str | None = None
) -> dict[str, Any]:
    """Run the parts for which there is time; write the result to a file after each."""
    began = time.monotonic()
    result = describe_machine() | {"smoke": smoke, "parts": {}}
    result["commit"] = at_commit or result["commit"]
    for suffix in (".jsonl", ".log"):
        file.with_suffix(suffix).unlink(missing_ok=True)
    for name in names:
        remaining = limit - (time.monotonic() - began)
        # A CPU may be busy, and has no machine time to save.
        seconds = remaining if smoke else min(PARTS[name][1], remaining)
        left_out = {"status": "left out: no time was left", "seconds": 0, "found": []}
        part = run_part(name, smoke, seconds, file) if remaining > 10 else left_out
        result["parts"][name] = part
        print(f"{name}: {part['status']}, {part['seconds']} s", flush=True)
        print_findings(part["found"])
        result["seconds"] = round(time.monotonic() - began)
        file.write_text(json.dumps(result, indent=1) + "\n")
    return result


def print_findings(findings: list[dict[str, Any]]) -> None:
    """Print what is wrong or left out, and everything that was measured."""
    for found in findings:
        is_measured = found.keys() & {"tokens_per_second", "seconds_forward"}
        if is_measured or not found.get("right", False):
            # A list of kernels or of outcomes is only in the files.
            short = {key: each for key, each in found.items() if not isinstance(each, list)}
            print(f"  {json.dumps(short)}"[:300], flush=True)


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
    """Run parts, or one of them, as the first process asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    always = [name for name in PARTS if name not in ON_REQUEST]
    parser.add_argument("--only", nargs="+", choices=PARTS, default=always, help="parts")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder")
    parser.add_argument("--commit", help="of this code, in a copy that is no repository")
    for name in ("--part", "--findings"):
        parser.add_argument(name, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.part:
        run_here(args.part, args.smoke, args.limit, Path(args.findings))
        return
    if not torch.cuda.is_available() and not args.smoke:
        sys.exit("check.py: no GPU is here; --smoke runs tiny sizes on a CPU")
    # `timeout` and schedulers stop a command so: the part that runs is stopped, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(EXIT_CODES["incomplete"]))
    args.results.mkdir(parents=True, exist_ok=True)
    card = torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"
    file = args.results / f"{card.replace(' ', '_')}{'-smoke' * args.smoke}.json"
    outcome = judge(run_parts(args.only, args.smoke, args.limit, file, args.commit))
    print(f"{file}: {outcome}")
    sys.exit(EXIT_CODES[outcome])


if __name__ == "__main__":
    main()
