"""How long a token takes: with memory against a sliding window (Dai et al. 2019, Table 9).

B rows   L segment   M remembered
"""

import statistics
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor

from ..model import CachedReader, EvalLengths, TransformerXL

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""By attention length, how many times slower the paper's sliding window was (Table 9, one GPU)."""

PERCENTILES = (50, 90, 95, 99)


Timed = Callable[[], float]
"""Does something once more, and says how many seconds it took."""


def with_memory(
    model: TransformerXL, attention_len: int, tgt_len: int, batch_size: int = 1
) -> Timed:
    """Reads the next segment of tgt_len tokens, with a full memory.

    Each token sees attention_len tokens before its segment, and those of the segment before it.
    """
    reader = CachedReader(model)
    memory = reader.empty_memory(batch_size, EvalLengths(attention_len))
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> Tensor:
        drawn = torch.randint(model.config.n_token, (batch_size, count), generator=draw)
        return drawn.to(model.device)

    def read() -> float:
        nonlocal memory
        segment, targets = tokens(tgt_len), tokens(tgt_len)
        began = clock(model)
        _, memory = reader.loss(segment, targets, memory)
        return clock(model) - began

    for start in range(0, attention_len, FILLING):
        _, memory = reader.hidden(tokens(min(FILLING, attention_len - start)), memory)
    return read


FILLING = 256
"""Tokens in a segment that only fills the memory."""


def with_window(model: TransformerXL, attention_len: int) -> Timed:
    """Predicts one token, from all attention_len tokens before it, which are read anew."""
    draw, reader = torch.Generator().manual_seed(0), CachedReader(model)

    def read() -> float:
        window_1L = torch.randint(model.config.n_token, (1, attention_len), generator=draw)
        window_1L = window_1L.to(model.device)
        began = clock(model)
        h_1LD, _ = reader.hidden(window_1L, reader.empty_memory(1, EvalLengths(0)))
        model.head(h_1LD[:, -1:])
        return clock(model) - began

    return read


@torch.inference_mode()
def compare_with_window(
    model: TransformerXL, lengths: list[int], tgt_len: int, segments: int, positions: int
) -> list[dict[str, Any]]:
    """A row for each attention length: what a token takes, and how many times less with memory.

    They take turns, a window and some segments of each length in each round, so that what else the
    machine does meets all of them; what counts is the fastest of each.
    """
    pairs = [(with_memory(model, at, tgt_len), with_window(model, at)) for at in lengths]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in lengths]
    for index in range(positions + 1):
        for (segment, window), (memory_s, window_s) in zip(pairs, times, strict=True):
            found = [segment() / tgt_len for _ in range(-(-segments // positions))]
            # The first round finds everything cold.
            if index:
                memory_s += found
            alone = window()
            if index:
                window_s.append(alone)
    return [
        compared(length, *both) | {"tgt_len": tgt_len}
        for length, both in zip(lengths, times, strict=True)
    ]


def compared(length: int, memory_s: list[float], window_s: list[float]) -> dict[str, Any]:
    """A row of Table 9, from the seconds of a token."""
    return {
        "attention_len": length,
        "memory_ms_per_token": min(memory_s) * 1e3,
        "window_ms_per_token": min(window_s) * 1e3,
        "speedup": min(window_s) / min(memory_s),
        "published_speedup": PUBLISHED.get(length),
        "memory_median_ms": statistics.median(memory_s) * 1e3,
        "window_median_ms": statistics.median(window_s) * 1e3,
        "segments": len(memory_s),
        "window_positions": len(window_s),
    }


def is_disturbed(rows: list[dict[str, Any]]) -> bool:
    """Whether times differ so much that other work must have had its part in them."""
    halves = [(row["memory_median_ms"], row["memory_ms_per_token"]) for row in rows]
    halves += [(row["window_median_ms"], row["window_ms_per_token"]) for row in rows]
    windows = [row["window_ms_per_token"] for row in sorted(rows, key=itemgetter("attention_len"))]
    return any(half > 1.5 * least for half, least in halves) or windows != sorted(windows)


@torch.inference_mode()
def measure_latency(
    model: TransformerXL, mem_len: int, batches: list[int], tokens: int
) -> list[dict[str, Any]]:
    """A row for each batch size: tokens a second, and percentiles of a token's time in ms."""
    rows = []
    for batch_size in batches:
        read = with_memory(model, mem_len, 1, batch_size)
        # The first one finds everything cold.
        seconds = [read() for _ in range(tokens + 1)][1:]
        ms = {f"p{p}_ms": compute_percentile(seconds, p) * 1e3 for p in PERCENTILES}
        sizes = {"batch_size": batch_size, "mem_len": mem_len}
        rate = batch_size / statistics.median(seconds)
        rows.append(sizes | {"tokens_per_second": rate} | ms | {"tokens": tokens})
    return rows


def compute_percentile(seconds: list[float], percent: int) -> float:
    """The least time that `percent` of them do not exceed."""
    ordered = sorted(seconds)
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]


def clock(model: TransformerXL) -> float:
    """Seconds, when all that was asked for is done."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
