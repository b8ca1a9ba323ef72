"""How does a token's cost grow with memory, and what do two processes give over one?

    PYTHONPATH=. python experiments/speed/scaling.py

The time of a token in training and in evaluation against mem_len, with a line fitted to it; and the
quickstart's training step in one process of one thread beside two (DistributedDataParallel, gloo)
that have half of its rows each, or all of them each; two that share nothing show what the machine
allows. All take turns; results are JSON with a figure beside it.
"""

import argparse
import json
import os
import shlex
import statistics
import sys
import tempfile
import time
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import NARROW, Case, quickstart_case
from figures import draw_scaling
from results import STEPS, SUMS
from steps import Steps, draw_text
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW
from workers import Machine, Worker, sum_operations, take_turns

from txl_lightning.evaluation.environment import describe_environment
from txl_lightning.model import Memory, TransformerXL

RESULTS = Path(__file__).parent / "results"
MEM_LENS = (128, 256, 512, 1024, 2048, 4096)
SIZES = NARROW | {"n_layer": 4}
ONE, APART = "one process", "two, nothing shared"
SHARED, DOUBLED = "two, rows shared", "two, rows doubled"
TARGET = 1.7
"""How many times as fast two processes should be."""


class Loss(nn.Module):
    """The network as a module whose forward is its loss, as DistributedDataParallel needs it."""

    def __init__(self, net: TransformerXL) -> None:
        super().__init__()
        self.net = net

    def forward(
        self, tokens_BL: Tensor, targets_BL: Tensor, memory: Memory
    ) -> tuple[Tensor, Memory]:
        nats_BL, memory = self.net.loss(tokens_BL, targets_BL, memory)
        return nats_BL.mean(), memory


class Share:
    """One process's share of the rows of a training step."""

    def __init__(self, case: Case, rank: int, n_process: int, meeting: str) -> None:
        torch.set_num_threads(1)
        torch.set_flush_denormal(True)
        rows = case.rows // n_process
        text = draw_text(case)[rank * rows : (rank + 1) * rows]
        self.tokens, self.targets = text[:, :-1], text[:, 1:]
        torch.manual_seed(0)
        net = TransformerXL(case.config)
        self.memory, self.loss = net.empty_memory(rows), Loss(net)
        if n_process > 1:
            distributed.init_process_group("gloo", f"file://{meeting}", None, n_process, rank)
            self.loss = DistributedDataParallel(self.loss, gradient_as_bucket_view=True)
        self.optimizer = AdamW(net.parameters(), lr=1e-4, fused=True)
        self.take_turn(3)

    def take_turn(self, steps: int) -> list[float]:
        """Return the seconds of each step."""
        seconds = []
        for _ in range(steps):
            began = time.perf_counter()
            loss, self.memory = self.loss(self.tokens, self.targets, self.memory)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            seconds.append(time.perf_counter() - began)
        return seconds


def measure_memory(given: argparse.Namespace, threads: int, load_before: float) -> dict[str, Any]:
    """Return the time of a token by length of memory, and a line through it."""
    cases = {}
    for mem_len in MEM_LENS:
        for kind, rows, trains in (("training", 4, True), ("evaluation", 1, False)):
            case = Case(kind, SIZES, rows, 128, mem_len, trains)
            small = replace(case.shrink(), mem_len=mem_len // 8)
            cases[f"{kind}, {mem_len}"] = small if given.smoke else case
    machine = Machine(threads, load_before)
    workers = {name: Worker(Steps, "ours", case, threads) for name, case in cases.items()}
    try:
        for worker in workers.values():
            worker.answer()
        seconds = take_turns(workers, given.rounds, machine, 0 if given.smoke else 0.25)
        spoilt = machine.spoilt_by(seconds)
        best = {name: min(each) for name, each in seconds.items()}
        if spoilt:
            best, _ = sum_operations(workers, rounds=1 if given.smoke else 4, steps=2)
    finally:
        for worker in workers.values():
            worker.stop()
    kinds = ("training", "evaluation")
    curves = {kind: fit_line(kind, cases, best) for kind in kinds}
    basis = SUMS if spoilt else STEPS
    about = {"sizes": SIZES, "spoilt": spoilt, "basis": basis, "product": machine.describe()}
    return about | {"curves": curves}


def fit_line(kind: str, cases: dict[str, Case], best: dict[str, float]) -> dict[str, Any]:
    """Return microseconds of a token by length of memory, and the least squares line."""
    names = [name for name in cases if name.startswith(kind)]
    mem_len = [cases[name].mem_len for name in names]
    us = [1e6 * best[name] / cases[name].tokens for name in names]
    slope, intercept = np.polyfit(mem_len, us, 1)
    r_squared = np.corrcoef(mem_len, us)[0, 1] ** 2
    line = {"slope_us": slope, "intercept_us": intercept, "r_squared": r_squared}
    return {"mem_len": mem_len, "us_per_token": us} | {name: float(at) for name, at in line.items()}


def measure_processes(given: argparse.Namespace, load_before: float) -> dict[str, Any]:
    """Return a step's time in one process, and in two in three ways."""
    case = quickstart_case().shrink() if given.smoke else quickstart_case()
    machine, steps = Machine(1, load_before), 2 if given.smoke else 5
    double = replace(case, rows=2 * case.rows)
    # Ranks of the processes, how many share gradients, and the case that these share.
    kinds = {ONE: ([0], 1, case), APART: ([0, 0], 1, case)}
    kinds |= {SHARED: ([0, 1], 2, case), DOUBLED: ([0, 1], 2, double)}
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    with tempfile.TemporaryDirectory() as folder:
        groups = {
            name: [Worker(Share, size, rank, n, f"{folder}/{name}") for rank in ranks]
            for name, (ranks, n, size) in kinds.items()
        }
        workers = [worker for group in groups.values() for worker in group]
        try:
            for worker in workers:
                worker.answer()
            for _ in range(given.rounds):
                for name, group in groups.items():
                    machine.watch()
                    for worker in group:
                        worker.ask("take_turn", steps)
                    answers = [worker.answer() for worker in group]
                    # A step ends when the slower process has ended it.
                    seconds[name] += [max(each) for each in zip(*answers, strict=True)]
        finally:
            for worker in workers:
                worker.stop()
    best = {name: min(each) for name, each in seconds.items()}
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    tokens = {ONE: 1, APART: 2, SHARED: 1, DOUBLED: 2}
    return {
        "rows": case.rows,
        "fastest_ms": {name: 1e3 * each for name, each in best.items()},
        "median_ms": {name: 1e3 * each for name, each in middle.items()},
        "speedup": {name: n * best[ONE] / best[name] for name, n in tokens.items()},
        "median_speedup": {name: n * middle[ONE] / middle[name] for name, n in tokens.items()},
        "target": TARGET,
        "spoilt": machine.spoilt_by(seconds),
        "product": machine.describe(),
    }


def main() -> None:
    """Measure both and write them down."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=10, help="turns of each contestant")
    parser.add_argument("--threads", type=int, help="of the first part; one for each core")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes, two rounds, one thread")
    parser.add_argument("--out", type=Path, help="file of the results, beside it the figure")
    given = parser.parse_args()
    threads = given.threads or (1 if given.smoke else os.cpu_count() or 1)
    given.rounds = 2 if given.smoke else given.rounds
    load_before = os.getloadavg()
    memory = measure_memory(given, threads, load_before[0])
    processes = measure_processes(given, load_before[0])
    found = {"command": shlex.join(sys.argv), **describe_environment(torch.device("cpu"))}
    found |= {"load": {"before": load_before, "after": os.getloadavg()}}
    found |= {"memory": memory, "processes": processes}
    path = given.out or RESULTS / f"{date.today()}-scaling.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1) + "\n")
    print_results(found)
    print(f"{path}, {draw_scaling(path)}")


def print_results(found: dict[str, Any]) -> None:
    for kind, curve in found["memory"]["curves"].items():
        slope, r_squared = 1e3 * curve["slope_us"], curve["r_squared"]
        shown = ", ".join(f"{us:.1f}" for us in curve["us_per_token"])
        print(f"{kind}: {shown} us a token; {slope:.1f} us per 1,000 states, R2 {r_squared:.4f}")
    processes = found["processes"]
    for name, speedup in list(processes["speedup"].items())[1:]:
        print(f"{name}: {speedup:.2f} times one process (to reach: {TARGET})")
    for part in ("memory", "processes"):
        if found[part]["spoilt"]:
            print(f"SPOILT: {part}: {found[part]['spoilt']}")
    print(f"the line is of: {found['memory']['basis']}")


if __name__ == "__main__":
    main()
