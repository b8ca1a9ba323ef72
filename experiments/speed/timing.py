"""Times of contestants that take turns, on a machine that is watched for other work."""

import argparse
import statistics
import time
from dataclasses import dataclass

import torch

from experiments.speed.steps import Workers, call_here

STEPS, SUMS = "fastest step", "sum over operations, one thread"
SPOILT_SPREAD, SPOILT_MEDIAN, SPOILT_LOAD = 1.25, 1.5, 1.0
"""A run is spoilt where a quarter of the products, or half of the steps, take so many times as
long as the fastest; or where the machine's load was above so much before."""
TURN_S = 0.25  # A turn is one step, or as many as take so long
SUM_ROUNDS = 4  # turns, of two steps, in which operations are timed


class Machine:
    """The speed of a product of 1024 cubed, timed between contestants."""

    def __init__(self, threads: int, load_before: float = 0.0) -> None:
        torch.set_num_threads(threads)
        self.threads, self.size = threads, 1024
        self.left, self.right = torch.randn(2, self.size, self.size).unbind()
        self.out, self.seconds = torch.empty_like(self.left), []
        self.load_before = load_before

    def watch(self) -> None:
        """Time the product, at the faster of two."""
        # Threads of the process before wait for more work for a while.
        time.sleep(0.005)
        times = []
        for _ in range(2):
            began = time.perf_counter()
            torch.mm(self.left, self.right, out=self.out)
            times.append(time.perf_counter() - began)
        self.seconds.append(min(times))

    @property
    def flops_per_second(self) -> float:
        return 2 * self.size**3 / min(self.seconds)

    @property
    def spread(self) -> float:
        """How many times as long as the fastest product a quarter of them takes."""
        slow = sorted(self.seconds)[len(self.seconds) * 3 // 4]
        return slow / min(self.seconds)

    def describe(self) -> dict[str, float]:
        return {
            "threads": self.threads,
            "gflops_per_second": self.flops_per_second / 1e9,
            "spread": self.spread,
            "count": len(self.seconds),
        }

    def find_disturbance(self, seconds: dict[str, list[float]]) -> str | None:
        """Return what shows that other work took part of the machine, or None."""
        medians = {name: statistics.median(each) / min(each) for name, each in seconds.items()}
        slowest = max(medians, key=lambda name: medians[name])
        if self.load_before > SPOILT_LOAD:
            return f"the load was {self.load_before:.1f} before it"
        if self.spread > SPOILT_SPREAD:
            return f"a quarter of the products took {self.spread:.2f} times the fastest, or more"
        if medians[slowest] > SPOILT_MEDIAN:
            return f"half of {slowest}'s steps took {medians[slowest]:.2f} times the fastest"
        return None


@dataclass(frozen=True)
class Times:
    """The seconds of each contestant's steps, and sums over operations where they are needed."""

    seconds: dict[str, list[float]]
    machine: Machine
    spoilt: str | None
    """What disturbed the run."""
    sums: dict[str, float] | None = None
    single: Machine | None = None
    """The machine with one thread, during the sums."""

    @property
    def trusted(self) -> dict[str, float]:
        """The seconds of a step: the fastest, or the sum over operations of a spoilt run."""
        fastest = {name: min(each) for name, each in self.seconds.items()}
        return self.sums if self.spoilt else fastest


def time_workers(
    workers: Workers, machine: Machine, args: argparse.Namespace, needs_sums: bool = False
) -> Times:
    """Let workers take turns; a product is timed before each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(args.rounds):
        for name, worker in workers.items():
            machine.watch()
            least_s = 0 if args.fast else TURN_S
            seconds[name] += worker.submit(call_here, "take_turn", least_s).result()
    spoilt = machine.find_disturbance(seconds)
    if not (spoilt or needs_sums):
        return Times(seconds, machine, spoilt)
    single, sums = Machine(threads=1), {}
    for _ in range(1 if args.fast else SUM_ROUNDS):
        for name, worker in workers.items():
            single.watch()
            sums[name] = worker.submit(call_here, "sum_operations", 2).result()
    return Times(seconds, machine, spoilt, sums, single)
