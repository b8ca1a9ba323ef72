"""Times of contestants that take turns, on a machine that is watched for other work.

A case's results as a record, as text, and beside those of an earlier run.
"""

import argparse
import statistics
import time
from dataclasses import dataclass
from typing import Any

import torch

from experiments.speed.cases import Case
from experiments.speed.contestants import FLOOR
from experiments.speed.steps import Workers, call_here
from txl_lightning.model.config import describe_config

SAME_NATS = 1e-4  # nats of the same weights differ by less
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


def summarize(case: Case, times: Times, details: dict[str, Any]) -> dict[str, Any]:
    """Return the record of a case; tokens and shares are of what can be trusted."""
    basis, machine = (SUMS, times.single) if times.spoilt else (STEPS, times.machine)
    trusted, contestants = times.trusted, {}
    for name, seconds in times.seconds.items():
        contestants[name] = {
            "fastest_ms": 1e3 * min(seconds),
            "median_ms": 1e3 * statistics.median(seconds),
            "steps": len(seconds),
            "operations_ms": None if times.sums is None else 1e3 * times.sums[name],
            "tokens_per_second": case.tokens / trusted[name],
            "share_of_peak": case.flops / trusted[name] / machine.flops_per_second,
            "share_of_floor": trusted[FLOOR] / trusted[name],
            "times_ours": trusted[name] / trusted["ours"],
            **details[name],
        }
    return {
        "name": case.name,
        "kind": case.kind,
        "dtype": str(case.dtype).removeprefix("torch."),
        "sizes": describe_config(case.config),
        "rows": case.rows,
        "tgt_len": case.tgt_len,
        "mem_len": case.mem_len,
        "model_gflop": case.flops / 1e9,
        "spoilt": times.spoilt,
        "basis": basis,
        "product": times.machine.describe(),
        "product_one_thread": None if times.single is None else times.single.describe(),
        "contestants": contestants,
    }


def format_case(record: dict[str, Any]) -> str:
    """Return a table of a case."""
    product = record["product"]
    lines = [
        f"\n{record['name']}: {record['rows']} x {record['tgt_len']} tokens, {record['mem_len']} "
        f"remembered; {record['model_gflop']:.1f} GFLOP a step, products at "
        f"{product['gflops_per_second']:.0f} GFLOP/s (spread {product['spread']:.2f})"
    ]
    if record["spoilt"]:
        lines.append(f"SPOILT: {record['spoilt']}. What counts: {record['basis']}.")
    lines.append(
        f"{'':20}{'fastest':>10}{'median':>10}{'sum':>10}{'tokens/s':>11}{'of peak':>9}"
        f"{'of floor':>9}{'x ours':>8}{'MB':>7}"
    )
    for name, each in record["contestants"].items():
        total = each["operations_ms"]
        lines.append(
            f"{name:20}{each['fastest_ms']:10.2f}{each['median_ms']:10.2f}"
            f"{'' if total is None else format(total, '.2f'):>10}{each['tokens_per_second']:11.0f}"
            f"{each['share_of_peak']:9.1%}{each['share_of_floor']:9.1%}{each['times_ours']:8.2f}"
            f"{each['memory_mb']:7.0f}"
        )
        if each.get("nats_apart", 0) > SAME_NATS:
            lines.append(f"  NOT THE SAME: its nats are {each['nats_apart']:.1e} from ours")
    return "\n".join(lines)


def compare(
    results: dict[str, Any], baseline: dict[str, Any], tolerance: float
) -> tuple[list[str], bool]:
    """Return a line for each result of ours in both, and whether one got slower.

    Times are compared in units of the products' own time, since machines and hours differ: by
    steps, where neither run is spoilt, and by sums over operations otherwise.
    """
    old_cases = {case["name"]: case for case in baseline["cases"]}
    lines, is_slower = [], False
    for case in results["cases"]:
        for name in (name for name in case["contestants"] if name.startswith("ours")):
            times = comparable_times(case, old_cases.get(case["name"]), name)
            if times is None:
                lines.append(f"{case['name']}, {name}: nothing to compare with")
                continue
            now, before, basis = times
            result = "SLOWER" if now > before * (1 + tolerance) else "as fast"
            is_slower |= result == "SLOWER"
            lines.append(f"{case['name']}, {name}: {now / before - 1:+.1%} by {basis}: {result}")
    return lines, is_slower


def comparable_times(
    case: dict[str, Any], old_case: dict[str, Any] | None, name: str
) -> tuple[float, float, str] | None:
    """Return the time now and before in products of 1024 cubed, and what they are times of."""
    shape = ("sizes", "rows", "tgt_len", "mem_len")
    if old_case is None or name not in old_case["contestants"]:
        return None
    if any(case[key] != old_case[key] for key in shape):
        return None
    threads = case["product"]["threads"] == old_case["product"]["threads"]
    if not (case["spoilt"] or old_case["spoilt"]) and threads:
        field, product, basis = "fastest_ms", "product", STEPS
    else:
        field, product, basis = "operations_ms", "product_one_thread", SUMS
    both = (case, old_case)
    if any(each["contestants"][name][field] is None for each in both):
        return None
    now, before = (
        each["contestants"][name][field] * each[product]["gflops_per_second"] for each in both
    )
    return now, before, basis
