"""Processes that take turns, so that each has its own memory, and a machine that is watched."""

import multiprocessing
import os
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

FORKS = multiprocessing.get_context("forkserver")
# Imported once; a process that is forked before torch starts threads may start its own.
FORKS.set_forkserver_preload(["torch", "txl_lightning.model"])

SPOILT_SPREAD, SPOILT_MEDIAN, SPOILT_LOAD = 1.25, 1.5, 1.0
"""A run is spoilt where a quarter of the products, or half of the steps, take so many times as
long as the fastest; or where the machine's load was above so much before."""


class Worker:
    """A process that makes an object and calls its methods when it is asked to."""

    def __init__(self, make: Callable[..., Any], *arguments: Any) -> None:
        self.pipe, theirs = FORKS.Pipe()
        self.process = FORKS.Process(target=serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def ask(self, method: str, *arguments: Any) -> None:
        self.pipe.send((method, arguments))

    def answer(self) -> Any:
        """Return what was asked for, or the process's first answer: None, when it is ready.

        Raises:
            RuntimeError: the process failed; the message is the last line of its error.
        """
        try:
            failure, found = self.pipe.recv()
        except EOFError:
            failure, found = "the process ended", None
        if failure is not None:
            raise RuntimeError(failure)
        return found

    def call(self, method: str, *arguments: Any) -> Any:
        self.ask(method, *arguments)
        return self.answer()

    def stop(self) -> None:
        self.pipe.close()
        self.process.join(5)
        self.process.terminate()


def serve(pipe: Any, make: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
    """Make the object, then answer until nobody asks any more."""
    try:
        made = make(*arguments)
        pipe.send((None, None))
        while True:
            method, given = pipe.recv()
            pipe.send((None, getattr(made, method)(*given)))
    except EOFError:
        return
    except Exception as error:
        pipe.send((f"{type(error).__name__}: {error}".splitlines()[0], None))


class Machine:
    """The speed of a product of 1024 cubed, timed between contestants."""

    def __init__(self, threads: int, load_before: float = 0.0) -> None:
        """Watch from now on; load_before is the machine's, before anything was measured."""
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
        """Return how many times as long as the fastest product a quarter of them takes."""
        slow = sorted(self.seconds)[len(self.seconds) * 3 // 4]
        return slow / min(self.seconds)

    def describe(self) -> dict[str, float]:
        return {
            "threads": self.threads,
            "gflops_per_second": self.flops_per_second / 1e9,
            "spread": self.spread,
            "count": len(self.seconds),
        }

    def spoilt_by(self, seconds: dict[str, list[float]]) -> str | None:
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


def take_turns(
    workers: dict[str, Worker], rounds: int, machine: Machine, least_s: float = 0.25
) -> dict[str, list[float]]:
    """Return the seconds of each one's steps; a product is timed before each turn."""
    seconds: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, worker in workers.items():
            machine.watch()
            seconds[name] += worker.call("take_turn", least_s)
    return seconds


@contextmanager
def quiet() -> Iterator[None]:
    """Keep the profiler's library from writing to the terminal."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


class Operations:
    """The times of a step's operations, each told apart by its name and its inputs' shapes.

    A time is the operation's own, without that of the operations that it calls. Python's time is
    left out.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.steps = 0

    def add(self, step: Callable[[], Any]) -> None:
        with quiet(), profile(activities=[ProfilerActivity.CPU], record_shapes=True) as profiled:
            step()
        self.steps += 1
        for event in profiled.events():
            if "::" in event.name:
                key = (event.name, str(event.input_shapes))
                self.seconds[key].append(1e-6 * event.self_cpu_time_total)

    def total(self) -> float:
        """Return the seconds of a step: the sum of count x fastest time."""
        return sum(len(each) / self.steps * min(each) for each in self.seconds.values())


def sum_operations(
    workers: dict[str, Worker], rounds: int, steps: int
) -> tuple[dict[str, float], Machine]:
    """Return the sums over operations, on one thread, and the machine that made them."""
    machine, sums = Machine(threads=1), {}
    for _ in range(rounds):
        for name, worker in workers.items():
            machine.watch()
            sums[name] = worker.call("sum_operations", steps)
    return sums, machine
