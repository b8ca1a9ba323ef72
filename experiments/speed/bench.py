"""How fast are a training step, evaluation of a segment and decoding of a token, ours and others'?

    make bench                        # as below, peers in an environment of their own
    .venv-peers/bin/python -m experiments.speed.bench [--original PATH]

Contestants take turns. A training step is forward, backward and fused AdamW. A case that other work
has spoilt says so. PATH is a checkout of kimiyoung/transformer-xl. Results are JSON with a figure
beside it.
"""

import argparse
import os
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import torch

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

from experiments.speed import contestants, steps
from experiments.speed.cases import CASES, Case
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.figures import draw_bench
from txl_lightning.model.kernels import KERNELS

VERSIONS = ("torch", "transformers", "x-transformers", "labml-nn", "labml", "numpy")


def main() -> None:
    parser = make_parser(__doc__)
    names = [case.name for case in CASES]
    parser.add_argument("--only", nargs="+", choices=names, default=names, metavar="CASE")
    kernels = [name for name in KERNELS if name != "auto"]
    parser.add_argument("--kernels", nargs="+", choices=kernels, default=[], help="ours with these")
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--original", type=Path, help="checkout of kimiyoung/transformer-xl")
    args = parse_args(parser)
    torch.set_num_threads(args.threads)
    torch.set_flush_denormal(True)
    write_results(args, "bench", measure_cases(args), draw_bench)


def measure_cases(args: argparse.Namespace) -> dict[str, Any]:
    left_out = {} if args.no_peers else contestants.find_missing()
    peers = [] if args.no_peers else [name for name in contestants.PACKAGES if name not in left_out]
    peers += [contestants.ORIGINAL] if args.original else []
    names = ["ours", *(f"ours, {kernel}" for kernel in args.kernels), *peers]
    cases = []
    for case in (case for case in CASES if case.name in args.only):
        used = case.shrink() if args.fast else case
        ready = make_steps(used, names, args.original, left_out)
        if "ours" in ready:
            cases.append(measure_case(used, ready, args))
            print(steps.format_case(cases[-1]), flush=True)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    versions = {each.name: each.version for each in distributions() if each.name in VERSIONS}
    options = {"versions": versions, "threads": args.threads, "rounds": args.rounds}
    return options | {"left_out": left_out, "cases": cases}


def make_steps(
    case: Case, names: list[str], original: Path | None, left_out: dict[str, str]
) -> dict[str, steps.Steps]:
    """Return those that can take part; others are named in `left_out`, with the reason."""
    ready = {}
    for name in names:
        try:
            contestant = contestants.make_contestant(name, case, original)
            ready[name] = steps.Steps(contestant, case)
        # Others fail by errors of any class.
        except Exception as error:
            reason = f"{type(error).__name__}: {error}".splitlines()[0]
            left_out[f"{name}, {case.name}"] = reason
    return ready


def measure_case(
    case: Case, ready: dict[str, steps.Steps], args: argparse.Namespace
) -> dict[str, Any]:
    seconds = steps.time_in_turn(ready, args.rounds, 0 if args.fast else steps.TURN_S)
    spoilt = steps.find_disturbance(seconds, args.load_before[0])
    record = steps.summarize(case, seconds, spoilt)
    for name, each in ready.items():
        # Where the weights are ours, so must be the nats.
        if contestants.has_our_weights(name, case.config):
            apart = (each.nats_BL - ready["ours"].nats_BL).abs().max().item()
            record["contestants"][name]["nats_apart"] = apart
    return record


if __name__ == "__main__":
    main()
