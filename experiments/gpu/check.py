"""Is everything right on this GPU, and how fast is it? Parts run one after the other.

    python -m experiments.gpu.check            # or make gpu: all parts
    python -m experiments.gpu.check first      # those of one call; then second
    python -m experiments.gpu.check --smoke    # tiny sizes, on a CPU

README.md beside this file says what is needed. In the folder --results are, named by the card: a
JSON file of everything; a .jsonl file with each finding, written as it is found; a .log file with
what the parts print. A part is a process with a time limit. One that is stopped, fails or is left
out is named in the JSON file. Exit code: 0 all right, 1 something is wrong, 2 incomplete.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import torch

from txl_lightning.machine import commit, cpu_name

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
LIMIT = 500  # seconds for all parts; a machine that is lent may stop a command after 600
LINE = 300  # most characters that are printed of a finding


class Part(NamedTuple):
    """A function that yields findings, as MODULE.NAME, the seconds that it may take, and a kernel.

    It is imported in the part's own process: an import that fails, fails alone.
    """

    name: str
    seconds: int
    kernel: str | None = None

    def find(self, smoke: bool, ends_at: float) -> Iterator[dict[str, Any]]:
        module, name = self.name.split(".")
        function = getattr(import_module(f"experiments.gpu.{module}"), name)
        return function(*[self.kernel] * bool(self.kernel), smoke, ends_at)


# What a user of a GPU gets.
FIRST = {
    "costs": Part("speed.measure_costs", 40),
    "kernel sdpa": Part("parts.compare_kernels", 40, "sdpa"),
    "speed": Part("speed.measure_speed", 150),
    "profile": Part("profiling.profile_steps", 60),
    "trainer": Part("trainer.train_in_each_way", 160),
    "peers": Part("speed.measure_peers", 40),
}
# What must stay right. Each kernel has a process of its own, because after
# an illegal access nothing else works in the same one.
SECOND = {
    "inference": Part("speed.measure_inference", 40),
    "resume": Part("trainer.resume_twice", 60),
    "tests": Part("parts.run_gpu_tests", 90),
    "golden": Part("parts.compare_golden", 40),
    "kernel matmul": Part("parts.compare_kernels", 40, "matmul"),
}
CALLS = {"first": FIRST, "second": SECOND, "all": FIRST | SECOND}
EXIT_CODES = {"all right": 0, "not all right": 1, "incomplete": 2}


class Files(NamedTuple):
    """The files of results."""

    result: Path
    findings: Path
    log: Path

    @classmethod
    def make(cls, folder: Path, name: str) -> "Files":
        folder.mkdir(parents=True, exist_ok=True)
        return cls(*(folder / f"{name}.{suffix}" for suffix in ("json", "jsonl", "log")))

    def read_findings(self, part: str) -> list[dict[str, Any]]:
        """Return the findings of a part; one that was stopped may have written a line in part."""
        lines = self.findings.read_text().splitlines() if self.findings.exists() else []
        found = [json.loads(line) for line in lines if line.endswith("}")]
        return [each["found"] for each in found if each["part"] == part]


def run_part(name: str, smoke: bool, seconds: float, files: Files) -> dict[str, Any]:
    """Run a part as a process, stopped after some seconds; return what it has found until then."""
    words = [f"--part={name}", f"--limit={seconds}", f"--findings={files.findings}"]
    command = [sys.executable, "-m", "experiments.gpu.check", *words]
    began = time.monotonic()
    with files.log.open("a") as log:
        print(f"== {name}", file=log, flush=True)
        begins_at = log.tell()
        # A file, not a pipe, and a group: processes that compile hold a pipe open.
        options = {"stdout": log, "stderr": subprocess.STDOUT, "start_new_session": True}
        process = subprocess.Popen(command + ["--smoke"] * smoke, cwd=ROOT, **options)
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
    printed = files.log.read_bytes()[begins_at:].decode(errors="replace").splitlines()
    end = {} if status == "done" else {"end of output": [line[:LINE] for line in printed[-8:]]}
    seconds_taken = round(time.monotonic() - began, 1)
    found = files.read_findings(name)
    return {"status": status, "seconds": seconds_taken, "found": found} | end


def run_here(name: str, smoke: bool, seconds: float, path: Path) -> None:
    """Run a part in this process; append each finding to a file as a line of JSON."""
    # Something started then may still end in time.
    ends_at = time.monotonic() + 0.8 * seconds
    # A file of its own: libraries print to stdout, too.
    with path.open("a", buffering=1) as file:
        try:
            for found in CALLS["all"][name].find(smoke, ends_at):
                file.write(json.dumps({"part": name, "found": found}) + "\n")
        except ModuleNotFoundError as error:
            file.write(json.dumps({"part": name, "found": {"left out": str(error)}}) + "\n")


def describe_machine() -> dict[str, Any]:
    cuda = torch.cuda.is_available()
    return {
        "card": torch.cuda.get_device_name() if cuda else "cpu",
        "memory_bytes": torch.cuda.get_device_properties(0).total_memory if cuda else 0,
        "cpu": cpu_name(),
        "cpus": len(os.sched_getaffinity(0)),
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "float32_matmul_precision": torch.get_float32_matmul_precision(),
        **describe_driver(),
        "date": time.strftime("%Y-%m-%d"),
    }


def describe_driver() -> dict[str, str]:
    """Return the version of the driver and the card's limit of power, where they can be asked."""
    if not shutil.which("nvidia-smi"):
        return {}
    query = ["nvidia-smi", "--query-gpu=driver_version,power.limit", "--format=csv,noheader"]
    shown = subprocess.run(query, capture_output=True, text=True, check=False).stdout
    return {"driver, power limit": shown.strip()}


def run_call(
    call: str, smoke: bool, limit: float, files: Files, at_commit: str | None = None
) -> dict[str, Any]:
    """Run the parts of a call for which there is time, and write the result after each."""
    began = time.monotonic()
    result = describe_machine() | {"commit": at_commit or commit(), "call": call, "smoke": smoke}
    result["parts"] = {}
    files.findings.unlink(missing_ok=True)
    files.log.unlink(missing_ok=True)
    names = CALLS.get(call) or call.split(",")
    for name in names:
        planned = CALLS["all"][name]
        remaining = limit - (time.monotonic() - began)
        # A CPU may be busy, and has no machine time to save.
        seconds = remaining if smoke else min(planned.seconds, remaining)
        part = {"status": "left out: no time was left", "seconds": 0, "found": []}
        if remaining > 10:
            part = run_part(name, smoke, seconds, files)
        result["parts"][name] = part
        print(f"{name}: {part['status']}, {part['seconds']} s", flush=True)
        print_findings(part["found"])
        result["seconds"] = round(time.monotonic() - began)
        files.result.write_text(json.dumps(result, indent=1) + "\n")
    return result


def print_findings(findings: list[dict[str, Any]]) -> None:
    """Print what is wrong or left out, and everything that was measured."""
    for found in findings:
        is_shown = not found.get("right", False) or "tokens_per_second" in found
        # A list of kernels or of outcomes is only in the files.
        short = {key: found[key] for key in found if not isinstance(found[key], list)}
        if is_shown:
            print(f"  {json.dumps(shorten(short))}"[:LINE], flush=True)


def shorten(found: dict[str, Any]) -> dict[str, Any]:
    """Return the same with four digits of each number that is not whole."""
    return {k: float(f"{v:.4g}") if isinstance(v, float) else v for k, v in found.items()}


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
    """Run the parts of a call, or one of them, as the first process asks for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("call", nargs="?", default="all", help="first, second, all, or PART,PART")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, on a CPU too")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds for all parts")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="folder")
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
    card = describe_machine()["card"].replace(" ", "_")
    call = args.call if args.call in CALLS else "parts"
    files = Files.make(args.results, f"{card}-{call}{'-smoke' * args.smoke}")
    result = run_call(args.call, args.smoke, args.limit, files, args.commit)
    print(f"{files.result}: {judge(result)}")
    sys.exit(EXIT_CODES[judge(result)])


if __name__ == "__main__":
    main()
