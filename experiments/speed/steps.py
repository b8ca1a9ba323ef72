"""A contestant's steps, as a process of its own takes them."""

import time
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW

from experiments.speed import contestants
from experiments.speed.cases import Case
from experiments.speed.timing import Operations
from txl_lightning.machine import peak_memory

TURN_STEPS = 20  # most steps of a turn
CPU = torch.device("cpu")


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
