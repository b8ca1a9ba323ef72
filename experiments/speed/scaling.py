"""How does a token's cost grow with memory, and what do two processes give over one?

    python -m experiments.speed.scaling

The time of a token in training and in evaluation against mem_len, with a line fitted to it; and the
quickstart's training step in one process of one thread beside two (DistributedDataParallel, gloo)
that have half of its rows each, or all of them each; two that share nothing show what the machine
allows. All take turns; results are JSON with a figure beside it.
"""

import argparse
import statistics
import tempfile
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim import AdamW

from experiments.speed.cases import NARROW, Case, quickstart_case
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.figures import draw_scaling
from experiments.speed.processes import Worker, start_workers
from experiments.speed.steps import Steps, draw_text
from experiments.speed.timing import STEPS, SUMS, Machine, time_workers
from txl_lightning.model import Memory, TransformerXL

MEM_LENS = (128, 256, 512, 1024, 2048, 4096)
SIZES = NARROW | {"n_layer": 4}
KINDS = {"training": (4, True), "evaluation": (1, False)}  # rows, and whether it trains
ONE, APART = "one process", "two, nothing shared"
SHARED, DOUBLED = "two, rows shared", "two, rows doubled"
TARGET = 1.7  # how many times as fast two processes should be


def main() -> None:
    """Measure both and write them down."""
    args = parse_args(make_parser(__doc__))
    results = {"memory": measure_memory(args), "processes": measure_processes(args)}
    print_results(**results)
    write_results(args, "scaling", results, draw_scaling)


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


def measure_memory(args: argparse.Namespace) -> dict[str, Any]:
    """Return the time of a token by length of memory, and a line through it."""
    cases = {}
    for mem_len in MEM_LENS:
        for kind, (rows, trains) in KINDS.items():
            case = Case(kind, SIZES, rows, 128, mem_len, trains)
            small = replace(case.shrink(), mem_len=mem_len // 8)
            cases[f"{kind}, {mem_len}"] = small if args.fast else case
    machine = Machine(args.threads, args.load_before[0])
    makers = {name: (Steps, "ours", case, args.threads) for name, case in cases.items()}
    with start_workers(makers) as workers:
        times = time_workers(workers, machine, args)
    results = {"sizes": SIZES, "spoilt": times.spoilt, "basis": SUMS if times.spoilt else STEPS}
    curves = {kind: fit_line(kind, cases, times.trusted) for kind in KINDS}
    return results | {"product": machine.describe(), "curves": curves}


def fit_line(kind: str, cases: dict[str, Case], seconds: dict[str, float]) -> dict[str, Any]:
    """Return microseconds of a token by length of memory, and the least squares line."""
    names = [name for name in cases if name.startswith(kind)]
    mem_len = [cases[name].mem_len for name in names]
    us = [1e6 * seconds[name] / cases[name].tokens for name in names]
    slope, intercept = np.polyfit(mem_len, us, 1)
    return {
        "mem_len": mem_len,
        "us_per_token": us,
        "slope_us": float(slope),
        "intercept_us": float(intercept),
        "r_squared": float(np.corrcoef(mem_len, us)[0, 1] ** 2),
    }


def measure_processes(args: argparse.Namespace) -> dict[str, Any]:
    """Return a step's time in one process, and in two in three ways."""
    case = quickstart_case().shrink() if args.fast else quickstart_case()
    machine, double = Machine(1, args.load_before[0]), replace(case, rows=2 * case.rows)
    # Ranks of the processes, how many share gradients, and the case that these share.
    kinds = {ONE: ([0], 1, case), APART: ([0, 0], 1, case)}
    kinds |= {SHARED: ([0, 1], 2, case), DOUBLED: ([0, 1], 2, double)}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        groups = {
            name: [
                stack.enter_context(Worker(Share, size, rank, n, f"{folder}/{name}"))
                for rank in ranks
            ]
            for name, (ranks, n, size) in kinds.items()
        }
        for worker in (worker for group in groups.values() for worker in group):
            worker.answer()
        seconds = time_groups(groups, machine, args.rounds, steps=2 if args.fast else 5)
    return {"rows": case.rows, **compare_processes(seconds)} | {
        "target": TARGET,
        "spoilt": machine.find_disturbance(seconds),
        "product": machine.describe(),
    }


def time_groups(
    groups: dict[str, list[Worker]], machine: Machine, rounds: int, steps: int
) -> dict[str, list[float]]:
    """Return the seconds of each step of groups that take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in groups}
    for _ in range(rounds):
        for name, group in groups.items():
            machine.watch()
            for worker in group:
                worker.ask("take_turn", steps)
            answers = [worker.answer() for worker in group]
            # A step ends when the slower process has ended it.
            seconds[name] += [max(each) for each in zip(*answers, strict=True)]
    return seconds


def compare_processes(seconds: dict[str, list[float]]) -> dict[str, dict[str, float]]:
    """Return the fastest and the median step of each way, and its speed relative to one process."""
    best = {name: min(each) for name, each in seconds.items()}
    middle = {name: statistics.median(each) for name, each in seconds.items()}
    work = {ONE: 1, APART: 2, SHARED: 1, DOUBLED: 2}
    return {
        "fastest_ms": {name: 1e3 * each for name, each in best.items()},
        "median_ms": {name: 1e3 * each for name, each in middle.items()},
        "speedup": {name: n * best[ONE] / best[name] for name, n in work.items()},
        "median_speedup": {name: n * middle[ONE] / middle[name] for name, n in work.items()},
    }


def print_results(memory: dict[str, Any], processes: dict[str, Any]) -> None:
    for kind, curve in memory["curves"].items():
        slope, r_squared = 1e3 * curve["slope_us"], curve["r_squared"]
        shown = ", ".join(f"{us:.1f}" for us in curve["us_per_token"])
        print(f"{kind}: {shown} us a token; {slope:.1f} us per 1,000 states, R2 {r_squared:.4f}")
    print(f"the line is of: {memory['basis']}")
    for name, speedup in list(processes["speedup"].items())[1:]:
        print(f"{name}: {speedup:.2f} times one process (to reach: {TARGET})")
    for name, part in (("memory", memory), ("processes", processes)):
        if part["spoilt"]:
            print(f"SPOILT: {name}: {part['spoilt']}")


if __name__ == "__main__":
    main()
