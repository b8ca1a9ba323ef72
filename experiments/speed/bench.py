"""How fast are a training step, evaluation of a segment and decoding of a token, ours and others'?

    make bench                        # as below, peers in an environment of their own
    PYTHONPATH=. .venv-peers/bin/python experiments/speed/bench.py [--original PATH]
    python experiments/speed/bench.py --compare experiments/speed/results/baseline.json

Each contestant is a process of its own; they take turns, and between them a product of 1024 cubed
is timed. A training step is forward, backward and fused AdamW. Where other work has spoilt a case,
it says so, and what counts is the sum over operations of count x fastest time, on one thread.

PATH is a checkout of kimiyoung/transformer-xl. Results are JSON with a figure beside it. With
--compare, what is ours and slower than in an earlier result is named, and the exit code is 1.
"""

import argparse
import json
import os
import shlex
import sys
from dataclasses import dataclass
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
from cases import CASES, Case
from contestants import FLOOR, ORIGINAL, PACKAGES, READING, WEIGHTS, find_missing, has_our_weights
from figures import draw_bench
from results import compare, format_case, summarize
from steps import Steps
from workers import Machine, Worker, sum_operations, take_turns

from txl_lightning.evaluation.environment import describe_environment
from txl_lightning.model.kernels import CUDA_KERNELS, KERNELS

RESULTS = Path(__file__).parent / "results"
VERSIONS = ("torch", "transformers", "x-transformers", "labml-nn", "labml", "numpy")


@dataclass(frozen=True)
class Plan:
    """What the command line asks for."""

    cases: list[Case]
    rounds: int
    threads: int
    kernels: list[str]
    weights: list[str]
    peers: list[str]
    original: Path | None
    always_sums: bool
    load_before: float
    turn_s: float = 0.25
    """A turn is one step, or as many as take so long."""
    summed_rounds: int = 4
    """Turns, of two steps, that operations are timed in."""

    def contestants(self, case: Case) -> list[str]:
        """Return who takes part."""
        narrow = [] if case.trains else self.weights
        ours = ["ours", *(f"ours, {variant}" for variant in [*self.kernels, *narrow])]
        limits = [FLOOR] if case.tgt_len > 1 else [FLOOR, READING]
        return [*ours, *self.peers, *([ORIGINAL] if self.original else []), *limits]


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CASE")
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant")
    parser.add_argument("--threads", type=int, help="by default one for each core")
    kernels = [name for name in KERNELS if name not in {"auto", *CUDA_KERNELS}]
    parser.add_argument("--kernels", nargs="+", choices=kernels, default=[], help="ours with these")
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=[], help="in evaluation")
    parser.add_argument("--no-peers", action="store_true", help="ours and the limits alone")
    parser.add_argument("--original", type=Path, help="checkout of kimiyoung/transformer-xl")
    parser.add_argument("--operations", action="store_true", help="sums on a quiet machine, too")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, two rounds, one thread")
    parser.add_argument("--out", type=Path, help="file of the results, beside it the figure")
    parser.add_argument("--compare", type=Path, metavar="BASELINE", help="an earlier result")
    parser.add_argument("--tolerance", type=float, default=0.15, help="slowdown that is allowed")
    return parser.parse_args()


def make_plan(given: argparse.Namespace, left_out: dict[str, str]) -> Plan:
    cases = [case for case in CASES if case.name in given.only]
    return Plan(
        cases=[case.shrink() for case in cases] if given.smoke else cases,
        rounds=2 if given.smoke else given.rounds,
        # Tiny products gain nothing from a second thread, and wait for it on a busy machine.
        threads=given.threads or (1 if given.smoke else os.cpu_count() or 1),
        kernels=given.kernels,
        weights=given.weights,
        peers=[] if given.no_peers else [name for name in PACKAGES if name not in left_out],
        original=given.original,
        # A spoilt baseline, or a run beside other work, can be compared by them alone.
        always_sums=given.operations or given.smoke or given.compare is not None,
        load_before=os.getloadavg()[0],
        **({"turn_s": 0, "summed_rounds": 1} if given.smoke else {}),
    )


def start_workers(case: Case, plan: Plan, left_out: dict[str, str]) -> dict[str, Worker]:
    """Start who takes part, and name who cannot."""
    workers = {}
    for name in plan.contestants(case):
        worker = Worker(Steps, name, case, plan.threads, plan.original)
        try:
            worker.answer()
        except RuntimeError as error:
            left_out[f"{name}, {case.name}"] = str(error)
            worker.stop()
        else:
            workers[name] = worker
    return workers


def measure_case(case: Case, plan: Plan, left_out: dict[str, str]) -> dict[str, Any]:
    """Measure one case; fall back to sums over operations where the run is spoilt."""
    machine = Machine(plan.threads, plan.load_before)
    workers = start_workers(case, plan, left_out)
    try:
        seconds = take_turns(workers, plan.rounds, machine, plan.turn_s)
        spoilt = machine.spoilt_by(seconds)
        about = {name: worker.call("describe") for name, worker in workers.items()}
        sums, single = None, None
        if spoilt or plan.always_sums:
            sums, single = sum_operations(workers, plan.summed_rounds, steps=2)
    finally:
        for worker in workers.values():
            worker.stop()
    check_nats(case, about)
    return summarize(case, seconds, sums, about, machine, single, spoilt)


def check_nats(case: Case, about: dict[str, Any]) -> None:
    """Add to each one's description how far its nats are from ours, where they must be the same."""
    for name, found in about.items():
        nats_BL = found.pop("nats")
        if name == "ours":
            ours_BL = nats_BL
        if nats_BL is not None and has_our_weights(name, case.config):
            found["nats_apart"] = float(abs(nats_BL - ours_BL).max())


def find_versions() -> dict[str, str]:
    found = {}
    for name in VERSIONS:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def run(given: argparse.Namespace) -> dict[str, Any]:
    """Measure all that is asked for, showing each case."""
    left_out = {} if given.no_peers else find_missing()
    plan = make_plan(given, left_out)
    load_before = os.getloadavg()
    cases = []
    for case in plan.cases:
        cases.append(measure_case(case, plan, left_out))
        print(format_case(cases[-1]), flush=True)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    return {
        "command": shlex.join(sys.argv),
        **describe_environment(torch.device("cpu")),
        "versions": find_versions(),
        "threads": plan.threads,
        "rounds": plan.rounds,
        "load": {"before": load_before, "after": os.getloadavg()},
        "left_out": left_out,
        "cases": cases,
    }


def main() -> int:
    """Return the exit code: 1 where something of ours got slower than the tolerance."""
    given = parse_arguments()
    baseline = json.loads(given.compare.read_text()) if given.compare else None
    found = run(given)
    name = f"{date.today()}-{(found['commit'] or 'unknown')[:7]}.json"
    path = given.out or RESULTS / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{path}, {draw_bench(path)}")
    if baseline is None:
        return 0
    lines, is_slower = compare(found, baseline, given.tolerance)
    print("\n".join(lines))
    return int(is_slower)


if __name__ == "__main__":
    sys.exit(main())
