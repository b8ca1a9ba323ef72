"""A contestant's steps, as a process of its own takes them, so that each has its own memory."""

import multiprocessing
import os
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from torch.profiler import ProfilerActivity, profile

from experiments.speed import contestants
from experiments.speed.cases import Case
from txl_lightning.machine import peak_memory

TURN_STEPS = 20  # most steps of a turn
CPU = torch.device("cpu")
FORKS = multiprocessing.get_context("forkserver")
# Imported once; a process that is forked before torch starts threads may start its own.
FORKS.set_forkserver_preload(["torch", "txl_lightning.model"])
Workers = Mapping[str, ProcessPoolExecutor]
"""A process for each contestant, which has one object."""
made: list[Any] = []
"""The object of this process."""


@contextmanager
def start_workers(
    makers: Mapping[str, tuple[Any, ...]], failures: dict[str, str], trees: Mapping[str, Path]
) -> Iterator[Workers]:
    """Start a process for each function with arguments; one that fails is named in `failures`.

    Those named in `trees` import another checkout of this project.
    """
    workers = {}
    with ExitStack() as stack:
        for name, (make, *arguments) in makers.items():
            # Another tree is imported by a process that has imported nothing yet.
            context = multiprocessing.get_context("spawn") if name in trees else FORKS
            worker = stack.enter_context(ProcessPoolExecutor(1, context))
            try:
                with import_first_from(trees.get(name)):
                    worker.submit(make_here, make, arguments).result()
                workers[name] = worker
            # Others fail by errors of any class; they are left out.
            except Exception as error:
                failures[name] = f"{type(error).__name__}: {error}".splitlines()[0]
                worker.shutdown()
        yield workers


@contextmanager
def import_first_from(tree: Path | None) -> Iterator[None]:
    """Let processes that are started here import from a tree before all others."""
    path = sys.path.copy()
    sys.path[:0] = [str(tree.resolve())] if tree else []
    try:
        yield
    finally:
        sys.path[:] = path


def make_here(make: Callable[..., Any], arguments: list[Any]) -> None:
    made.append(make(*arguments))


def call_here(method: str, *arguments: Any) -> Any:
    return getattr(made[0], method)(*arguments)


class Steps:
    """A contestant whose memory is full."""

    def __init__(self, name: str, case: Case, threads: int, original: Path | None = None) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        if name in contestants.PACKAGES:
            import_module(contestants.PACKAGES[name])
        self.imported_bytes, self.operations = peak_memory(CPU), Operations()
        self.first_nats: np.ndarray | None = None
        if name == contestants.FLOOR:
            self.step = contestants.Products(case.products(), case.dtype)
        elif name == contestants.READING:
            self.step = contestants.Reading(case.bytes_read())
        else:
            self.prepare(contestants.make_contestant(name, case, original), case)
        for _ in range(2):
            self.step()

    def prepare(self, contestant: Any, case: Case) -> None:
        """Fill the memory, and make the step."""
        contestant.net.train(case.trains)
        is_cast = case.dtype == torch.bfloat16 and not contestants.is_narrow(contestant)
        compute = torch.autocast("cpu", torch.bfloat16, enabled=is_cast)(contestant)
        with torch.no_grad():
            for start in range(0, case.mem_len, contestants.FILLING):
                text = draw_text(case, contestants.FILLING, seed=start)
                nats_BL = compute(text[:, :-1], text[:, 1:])
        self.first_nats = nats_BL.float().numpy()
        text = draw_text(case)
        self.step = partial(read_segment, compute, text)
        if case.trains:
            optimizer = AdamW(contestant.net.parameters(), lr=1e-4, fused=True)
            self.step = partial(train_step, compute, text, optimizer)

    def take_turn(self, least_s: float) -> list[float]:
        """Return the seconds of each step of a turn: of one, or of as many as take least_s."""
        seconds: list[float] = []
        while not seconds or (sum(seconds) < least_s and len(seconds) < TURN_STEPS):
            began = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - began)
        return seconds

    def describe(self) -> dict[str, Any]:
        """Return the nats of the segment that filled the memory, and megabytes above imports."""
        peak = peak_memory(CPU) - self.imported_bytes
        return {"nats": self.first_nats, "memory_mb": peak / 1e6}

    def sum_operations(self, steps: int) -> float:
        """Return the sum over operations, on one thread, of these steps and those before."""
        torch.set_num_threads(1)
        for _ in range(steps):
            self.operations.add(self.step)
        return self.operations.total()


@torch.inference_mode()
def read_segment(compute: Any, text: Tensor) -> None:
    compute(text[:, :-1], text[:, 1:])


def train_step(compute: Any, text: Tensor, optimizer: AdamW) -> None:
    nats_BL = compute(text[:, :-1], text[:, 1:])
    optimizer.zero_grad()
    nats_BL.mean().backward()
    optimizer.step()


def draw_text(case: Case, tgt_len: int | None = None, seed: int = 0) -> Tensor:
    shape = (case.rows, (tgt_len or case.tgt_len) + 1)
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(case.config.n_token, shape, generator=draw)


class Operations:
    """The times of a step's operations, each told apart by its name and its inputs' shapes.

    A time is the operation's own, without that of the operations that it calls. Python's time is
    left out.
    """

    def __init__(self) -> None:
        self.seconds: dict[tuple[str, str], list[float]] = defaultdict(list)
        self.steps = 0

    def add(self, step: Callable[[], Any]) -> None:
        activities = [ProfilerActivity.CPU]
        with silence_stderr(), profile(activities=activities, record_shapes=True) as profiled:
            step()
        self.steps += 1
        for event in profiled.events():
            if "::" in event.name:
                key = (event.name, str(event.input_shapes))
                self.seconds[key].append(1e-6 * event.self_cpu_time_total)

    def total(self) -> float:
        """Return the seconds of a step: the sum of count x fastest time."""
        return sum(len(each) / self.steps * min(each) for each in self.seconds.values())


@contextmanager
def silence_stderr() -> Iterator[None]:
    """Keep the profiler's library from writing to the terminal."""
    kept, nowhere = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)
