"""Do new processes compute the same bits on two threads?

    python -m experiments.first_computation.run [--processes N] [--forks N]
        [--intel | --pause MICROSECONDS] [--name RECORD] [--out FILE]

Counts the processes whose numbers (numbers.py) differ from those of most processes, or from their
own second computation. The record is added to results.json. With --forks, each new interpreter
imports everything, computes nothing, and starts so many processes by fork, which is faster.
slow_detection.c describes --intel and --pause.
"""

import json
import os
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from experiments.common import REPOSITORY, measure_once, parse_args
from experiments.results import load_records

LIBRARY = Path(__file__).with_name("slow_detection.c")
OPTIONS = {
    "processes": {"type": int, "default": 300},
    "forks": {"type": int, "default": 0, "help": "processes per interpreter; 0: one, not forked"},
    "intel": {"action": "store_true", "help": "MKL treats this CPU as one of Intel's"},
    "pause": {"type": int, "help": "microseconds, implies --intel"},
    "name": {"help": "of the record in results.json"},
}


def main() -> None:
    """Measure, print, and exit with 1 if a process differs."""
    vary = "nothing: processes repeat one computation"
    args = parse_args(__file__, __doc__, vary=vary, seeds=(1,), **OPTIONS)
    values = (f"{name} {getattr(args, name)}" for name in OPTIONS if name != "name")
    name = args.name or ", ".join(values)
    measure_once(args, name, measure)
    record = load_records(args.out)[name]
    print(json.dumps({name: record}))
    sys.exit(record["wrong"] > 0)


def measure(args: Namespace) -> dict[str, Any]:
    """Start the processes and compare them."""
    # Threads that wait for each other busily are slow where there is other work.
    environment = {"OMP_WAIT_POLICY": "passive"} | os.environ | {"OMP_NUM_THREADS": "2"}
    with tempfile.TemporaryDirectory() as folder:
        if args.intel or args.pause is not None:
            library = environment["LD_PRELOAD"] = f"{folder}/detection.so"
            pause = [] if args.pause is None else [f"-DPAUSE={args.pause}"]
            subprocess.run(["gcc", "-shared", "-fPIC", *pause, "-o", library, LIBRARY], check=True)
        batch = args.forks or 1
        lines = []
        for first in range(0, args.processes, batch):
            count = min(batch, args.processes - first)
            lines += compute_numbers(first, count, args.forks > 0, environment)
    interpreters = -(-args.processes // batch)
    return compare(lines) | {"interpreters": interpreters, "load_after": os.getloadavg()[0]}


def compute_numbers(
    first: int, count: int, forks: bool, environment: dict[str, str]
) -> list[dict[str, Any]]:
    """Return what each process printed."""
    options = [str(first), str(count), *(["fork"] if forks else [])]
    command = [sys.executable, "-m", "experiments.first_computation.numbers", *options]
    printed = subprocess.check_output(command, cwd=REPOSITORY, env=environment, text=True)
    assert printed.count("\n") == count, printed
    return [json.loads(line) for line in printed.splitlines()]


def compare(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Count the processes and numbers that differ, and give the largest difference of each."""
    usual = {n: Counter(line[n][0] for line in lines).most_common(1)[0][0] for n in lines[0]}
    wrong = [
        {n: change for n, (bits, change) in line.items() if change or bits != usual[n]}
        for line in lines
    ]
    counts = Counter(name for numbers in wrong for name in numbers)
    largest = {n: max(numbers.get(n, 0) for numbers in wrong) for n in counts}
    differing = {n: {"processes": counts[n], "largest": largest[n]} for n in counts}
    return {"processes": len(lines), "wrong": sum(map(bool, wrong)), "numbers": differing}


if __name__ == "__main__":
    main()
