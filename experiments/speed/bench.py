"""How fast are a training step, evaluation of a segment and decoding of a token, ours and others'?

    make bench                        # as below, peers in an environment of their own
    .venv-peers/bin/python -m experiments.speed.bench [--original PATH]
    python -m experiments.speed.bench --compare experiments/speed/results/baseline.json

Each contestant is a process of its own; they take turns, and between them a product of 1024 cubed
is timed. A training step is forward, backward and fused AdamW. Where other work has spoilt a case,
it says so, and what counts is the sum over operations of count x fastest time, on one thread.

PATH is a checkout of kimiyoung/transformer-xl. With --before TREE, another checkout of this project
takes part, too, if its steps.py has make_here. Results are JSON with a figure beside it. With
--compare, what is ours and slower than in an earlier result is named, and the exit code is 1.
"""

import argparse
import json
import os
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from experiments.speed import contestants
from experiments.speed.cases import CASES, Case
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.figures import draw_bench
from experiments.speed.steps import Steps, call_here, start_workers
from experiments.speed.summary import Machine, compare, format_case, summarize, time_workers
from txl_lightning.machine import commit
from txl_lightning.model.kernels import KERNELS

VERSIONS = ("torch", "transformers", "x-transformers", "labml-nn", "labml", "numpy")


def main() -> int:
    """Return the exit code: 1 where something of ours got slower than the tolerance."""
    args = parse_arguments()
    baseline = json.loads(args.compare.read_text()) if args.compare else None
    results = measure_cases(args)
    write_results(args, "bench", results, draw_bench)
    if baseline is None:
        return 0
    lines, is_slower = compare(results, baseline, args.tolerance)
    print("\n".join(lines))
    return int(is_slower)


def parse_arguments() -> argparse.Namespace:
    parser = make_parser(__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CASE")
    kernels = [name for name in KERNELS if name != "auto"]
    parser.add_argument("--kernels", nargs="+", choices=kernels, default=[], help="ours with these")
    parser.add_argument(
        "--weights", nargs="+", choices=contestants.WEIGHTS, default=[], help="in evaluation"
    )
    parser.add_argument("--no-peers", action="store_true", help="ours and the limits alone")
    parser.add_argument("--original", type=Path, help="checkout of kimiyoung/transformer-xl")
    parser.add_argument("--before", type=Path, metavar="TREE", help="ours in another checkout, too")
    parser.add_argument("--operations", action="store_true", help="sums on a quiet machine, too")
    parser.add_argument("--compare", type=Path, metavar="BASELINE", help="an earlier result")
    parser.add_argument("--tolerance", type=float, default=0.15, help="slowdown that is allowed")
    return parse_args(parser)


def measure_cases(args: argparse.Namespace) -> dict[str, Any]:
    """Measure the cases, printing each."""
    left_out = {} if args.no_peers else contestants.find_missing()
    peers = [] if args.no_peers else [name for name in contestants.PACKAGES if name not in left_out]
    peers += [contestants.ORIGINAL] if args.original else []
    cases = []
    for case in (case for case in CASES if case.name in args.only):
        variants = args.kernels if case.trains else [*args.kernels, *args.weights]
        names = ["ours", *(f"ours, {variant}" for variant in variants)]
        names += [contestants.BEFORE] if args.before else []
        names += [*peers, contestants.FLOOR]
        names += [contestants.READING] if case.kind == "decoding" else []
        failures: dict[str, str] = {}
        record = measure_case(case.shrink() if args.fast else case, names, args, failures)
        left_out |= {f"{name}, {case.name}": reason for name, reason in failures.items()}
        if record is not None:
            cases.append(record)
            print(format_case(record), flush=True)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    options = {"versions": find_versions(), "threads": args.threads, "rounds": args.rounds}
    options |= {"before": commit(args.before)} if args.before else {}
    return options | {"left_out": left_out, "cases": cases}


def find_versions() -> dict[str, str]:
    versions = {}
    for name in VERSIONS:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    return versions


def measure_case(
    case: Case, names: list[str], args: argparse.Namespace, failures: dict[str, str]
) -> dict[str, Any] | None:
    """Return the record of a case, or None where ours cannot take part.

    Contestants that cannot take part are named in `failures`: bfloat16 products need AVX-512.
    """
    machine = Machine(args.threads, args.load_before[0])
    trees = {contestants.BEFORE: args.before} if args.before else {}
    makers = {
        name: (Steps, "ours" if name in trees else name, case, args.threads, args.original)
        for name in names
    }
    # A spoilt baseline, or a run beside other work, can be compared by sums alone.
    needs_sums = args.operations or args.fast or args.compare is not None
    with start_workers(makers, failures, trees) as workers:
        if "ours" in failures:
            return None
        times = time_workers(workers, machine, args, needs_sums)
        details = {
            name: worker.submit(call_here, "describe").result() for name, worker in workers.items()
        }
    nats_by_name = {name: detail.pop("nats") for name, detail in details.items()}
    for name, nats_BL in nats_by_name.items():
        # Where the weights are ours, so must be the nats.
        same = case.dtype == torch.float32 and contestants.has_our_weights(name, case.config)
        if nats_BL is not None and same:
            details[name]["nats_apart"] = float(abs(nats_BL - nats_by_name["ours"]).max())
    return summarize(case, times, details)


if __name__ == "__main__":
    sys.exit(main())
