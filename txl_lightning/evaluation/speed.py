"""How long a token takes: with memory against a sliding window (Dai et al. 2019, Table 9).

B rows   L segment   M remembered
"""

import statistics
import time
from typing import Any

import torch
from torch import Tensor

from ..model import TransformerXL

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""By attention length, how many times slower the paper's sliding window was (Table 9, one GPU)."""

PERCENTILES = (50, 90, 95, 99)


@torch.inference_mode()
def with_memory(
    model: TransformerXL, attention_len: int, tgt_len: int, batch_size: int, segments: int
) -> list[float]:
    """Seconds of each of some segments of tgt_len tokens, when the memory is full.

    Each token sees attention_len tokens before its segment, and those of the segment before it.
    """
    memory = model.empty_cache(batch_size, attention_len)
    draw = torch.Generator().manual_seed(0)

    def tokens(count: int) -> Tensor:
        drawn = torch.randint(model.config.n_token, (batch_size, count), generator=draw)
        return drawn.to(model.probe.device)

    for start in range(0, attention_len, FILLING):
        _, memory = model.hidden(tokens(min(FILLING, attention_len - start)), memory)
    seconds = []
    for _ in range(segments + 1):
        segment, targets = tokens(tgt_len), tokens(tgt_len)
        began = clock(model)
        _, memory = model.nats(segment, targets, memory)
        seconds.append(clock(model) - began)
    # The first one finds everything cold.
    return seconds[1:]


FILLING = 256
"""Tokens in a segment that only fills the memory."""


@torch.inference_mode()
def with_window(model: TransformerXL, attention_len: int, positions: int) -> list[float]:
    """Seconds of each of some tokens, when all attention_len tokens before it are read anew."""
    draw = torch.Generator().manual_seed(0)
    size = (positions + 1, 1, attention_len)
    window_X1L = torch.randint(model.config.n_token, size, generator=draw).to(model.probe.device)
    seconds = []
    for window_1L in window_X1L:
        began = clock(model)
        h_1LD, _ = model.hidden(window_1L, model.empty_cache(1, 0))
        model.head(h_1LD[:, -1:])
        seconds.append(clock(model) - began)
    return seconds[1:]


def against_window(
    model: TransformerXL, lengths: list[int], tgt_len: int, segments: int, positions: int
) -> list[dict[str, Any]]:
    """A row for each attention length: what a token takes, and how many times less with memory.

    One after the other; what counts is the fastest of each.
    """
    return [
        compared(
            length,
            min(with_memory(model, length, tgt_len, 1, segments)) / tgt_len,
            min(with_window(model, length, positions)),
        )
        | {"tgt_len": tgt_len, "segments": segments, "window_positions": positions}
        for length in lengths
    ]


def compared(length: int, memory: float, window: float) -> dict[str, Any]:
    """A row of Table 9."""
    return {
        "attention_len": length,
        "memory_ms_per_token": memory * 1e3,
        "window_ms_per_token": window * 1e3,
        "speedup": window / memory,
        "published_speedup": PUBLISHED.get(length),
    }


def latencies(
    model: TransformerXL, mem_len: int, tgt_len: int, batches: list[int], segments: int
) -> list[dict[str, Any]]:
    """A row for each batch size: tokens a second, and percentiles of a segment's time in ms."""
    rows = []
    for batch_size in batches:
        seconds = with_memory(model, mem_len, tgt_len, batch_size, segments)
        ms = {f"p{p}_ms": percentile(seconds, p) * 1e3 for p in PERCENTILES}
        rate = batch_size * tgt_len / statistics.median(seconds)
        sizes = {"batch_size": batch_size, "tgt_len": tgt_len, "mem_len": mem_len}
        rows.append(sizes | {"tokens_per_second": rate} | ms | {"segments": segments})
    return rows


def percentile(seconds: list[float], percent: int) -> float:
    """The least time that `percent` of them do not exceed."""
    ordered = sorted(seconds)
    return ordered[max(-(-len(ordered) * percent // 100) - 1, 0)]


def clock(model: TransformerXL) -> float:
    """Seconds, when all that was asked for is done."""
    if model.probe.is_cuda:
        torch.cuda.synchronize()
    return time.perf_counter()
