"""Steps of contestants that take turns: their times, as a record and as text."""

import statistics
import time
from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.optim import AdamW

from experiments.speed.cases import Case
from experiments.speed.contestants import FILLING
from txl_lightning.model.config import describe_config

SAME_NATS = 1e-4  # nats of the same weights differ by less
SPOILT_MEDIAN = 1.5
"""Other work spoilt a case where half of the steps take so many times as long as the fastest."""
SPOILT_LOAD = 1.0
"""It also spoilt a case where the machine's load was above this before."""
TURN_S = 0.25
"""A turn is one step, or as many as take so many seconds."""
TURN_STEPS = 20
"""Most steps of a turn."""
Seconds = Mapping[str, list[float]]
"""Of each step, by contestant."""


class Steps:
    """A contestant whose memory is full."""

    def __init__(self, contestant: Any, case: Case) -> None:
        contestant.net.train(case.trains)
        with torch.no_grad():
            for start in range(0, case.mem_len, FILLING):
                text = draw_text(case, FILLING, seed=start)
                # Of the segment that filled the memory, at last.
                self.nats_BL = contestant(text[:, :-1], text[:, 1:])
        text = draw_text(case, case.tgt_len)
        self.step = partial(torch.inference_mode()(contestant), text[:, :-1], text[:, 1:])
        if case.trains:
            optimizer = AdamW(contestant.net.parameters(), lr=1e-4, fused=True)
            self.step = partial(train_step, contestant, text, optimizer)
        for _ in range(2):
            self.step()

    def take_turn(self, least_s: float) -> list[float]:
        """Return the seconds of each step of a turn: of one, or of as many as take least_s."""
        seconds: list[float] = []
        while not seconds or (sum(seconds) < least_s and len(seconds) < TURN_STEPS):
            began = time.perf_counter()
            self.step()
            seconds.append(time.perf_counter() - began)
        return seconds


def train_step(contestant: Any, text: Tensor, optimizer: AdamW) -> None:
    nats_BL = contestant(text[:, :-1], text[:, 1:])
    optimizer.zero_grad()
    nats_BL.mean().backward()
    optimizer.step()


def draw_text(case: Case, tgt_len: int, seed: int = 0) -> Tensor:
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(case.config.n_token, (case.rows, tgt_len + 1), generator=draw)


def time_in_turn(steps: Mapping[str, Steps], rounds: int, least_s: float) -> Seconds:
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, each in steps.items():
            seconds[name] += each.take_turn(least_s)
    return seconds


def find_disturbance(seconds: Seconds, load_before: float) -> str | None:
    """Return what shows that other work took part of the machine, or None."""
    medians = {name: statistics.median(each) / min(each) for name, each in seconds.items()}
    slowest = max(medians, key=lambda name: medians[name])
    if load_before > SPOILT_LOAD:
        return f"the load was {load_before:.1f} before it"
    if medians[slowest] > SPOILT_MEDIAN:
        return f"half of {slowest}'s steps took {medians[slowest]:.2f} times the fastest"
    return None


def summarize(case: Case, seconds: Seconds, spoilt: str | None) -> dict[str, Any]:
    return {
        "name": case.name,
        "kind": case.kind,
        "sizes": describe_config(case.config),
        "rows": case.rows,
        "tgt_len": case.tgt_len,
        "mem_len": case.mem_len,
        "spoilt": spoilt,
        "contestants": {
            name: {
                "fastest_ms": 1e3 * min(each),
                "median_ms": 1e3 * statistics.median(each),
                "steps": len(each),
                "times_ours": min(each) / min(seconds["ours"]),
            }
            for name, each in seconds.items()
        },
    }


def format_case(record: dict[str, Any]) -> str:
    lengths = f"{record['rows']} x {record['tgt_len']} tokens, {record['mem_len']} remembered"
    spoilt = [f"SPOILT: {record['spoilt']}."] if record["spoilt"] else []
    lines = [f"\n{record['name']}: {lengths}", *spoilt]
    lines.append(f"{'milliseconds':20}{'fastest':>10}{'median':>10}{'x ours':>8}")
    for name, each in record["contestants"].items():
        times = f"{each['fastest_ms']:10.2f}{each['median_ms']:10.2f}{each['times_ours']:8.2f}"
        lines.append(f"{name:20}{times}")
        if each.get("nats_apart", 0) > SAME_NATS:
            lines.append(f"  NOT THE SAME: its nats are {each['nats_apart']:.1e} from ours")
    return "\n".join(lines)
