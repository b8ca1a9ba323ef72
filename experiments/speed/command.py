"""The options of bench.py and table_9.py, and their file of results with a figure beside it."""

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch

from txl_lightning.machine import describe_environment

RESULTS = Path(__file__).parent / "results"


def make_parser(doc: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant")
    parser.add_argument("--threads", type=int, help="by default one for each core")
    parser.add_argument("--fast", action="store_true", help="tiny sizes, two rounds, one thread")
    parser.add_argument("--out", type=Path, help="file of the results, beside it the figure")
    return parser


def parse_args(parser: argparse.ArgumentParser) -> argparse.Namespace:
    args = parser.parse_args()
    args.rounds = 2 if args.fast else args.rounds
    # Tiny products gain nothing from a second thread, and wait for it on a busy machine.
    args.threads = args.threads or (1 if args.fast else os.cpu_count() or 1)
    args.load_before = os.getloadavg()
    return args


def write_results(
    args: argparse.Namespace, name: str, results: dict[str, Any], draw: Callable[[Path, Path], None]
) -> None:
    """Write results with their command, commit, machine and load, and draw them."""
    origin = {"command": shlex.join(sys.argv), **describe_environment(torch.device("cpu"))}
    origin |= {"load": {"before": args.load_before, "after": os.getloadavg()}}
    path = args.out or RESULTS / f"{date.today()}-{name}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(origin | results, indent=1) + "\n")
    draw(path, path.with_suffix(".png"))
    print(f"{path}, with a figure beside it")
