"""A contestant's steps, as a process of its own takes them."""

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cases import Case
from contestants import FILLING, FLOOR, LIMITS, PACKAGES, Products, Reading, make_contestant
from torch import Tensor
from torch.optim import AdamW
from workers import Operations

from txl_lightning.evaluation.environment import peak_memory

TURN_STEPS = 20
"""Most steps of a turn."""
CPU = torch.device("cpu")


class Steps:
    """A contestant whose memory is full."""

    def __init__(self, name: str, case: Case, threads: int, original: Path | None = None) -> None:
        torch.set_num_threads(threads)
        torch.set_flush_denormal(True)
        if name in PACKAGES:
            import_module(PACKAGES[name])
        self.case, self.imported_bytes = case, peak_memory(CPU)
        self.first_nats: np.ndarray | None = None
        self.step = self.make_limit(name) if name in LIMITS else self.make_reader(name, original)
        self.operations = Operations()
        for _ in range(2):
            self.step()

    def make_limit(self, name: str) -> Callable[[], Any]:
        if name == FLOOR:
            return Products(self.case.products())
        return Reading(self.case.bytes_read())

    def make_reader(self, name: str, original: Path | None) -> Callable[[], Any]:
        contestant = make_contestant(name, self.case, original)
        contestant.net.train(self.case.trains)
        self.text = draw_text(self.case)
        with torch.no_grad():
            for start in range(0, self.case.mem_len, FILLING):
                text = draw_text(self.case, FILLING, seed=start)
                nats_BL = contestant(text[:, :-1], text[:, 1:])
        self.first_nats = nats_BL.numpy()
        if not self.case.trains:
            return lambda: self.evaluate(contestant)
        optimizer = AdamW(contestant.net.parameters(), lr=1e-4, fused=True)
        return lambda: self.train(contestant, optimizer)

    @torch.inference_mode()
    def evaluate(self, contestant: Any) -> None:
        contestant(self.text[:, :-1], self.text[:, 1:])

    def train(self, contestant: Any, optimizer: AdamW) -> None:
        nats_BL = contestant(self.text[:, :-1], self.text[:, 1:])
        optimizer.zero_grad()
        nats_BL.mean().backward()
        optimizer.step()

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


def draw_text(case: Case, tgt_len: int | None = None, seed: int = 0) -> Tensor:
    shape = (case.rows, (tgt_len or case.tgt_len) + 1)
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(case.config.n_token, shape, generator=draw)
