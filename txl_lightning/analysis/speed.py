"""Time of a token: memory against a sliding window (Dai et al. 2019, Table 9), and decoding."""

import statistics
import time
from collections.abc import Callable
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..model import CachedReader, EvalLengths, TransformerXL

# By attention length, how many times slower the paper's sliding window was (Table 9, one GPU).
PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
PERCENTILES = (50, 90, 95, 99)
# Tokens in a segment that only fills the memory.
FILLING = 256

Timer = Callable[[], float]
"""Does something once more, and returns how many seconds it took."""


def make_segment_timer(
    model: TransformerXL, attention_len: int, tgt_len: int, batch_size: int = 1
) -> Timer:
    """Return a timer that reads the next segment of tgt_len tokens, with a full memory.

    Each token sees attention_len tokens before its segment, and those of the segment before it.
    """
    reader, generator = CachedReader(model), torch.Generator().manual_seed(0)
    memory = reader.empty_memory(batch_size, EvalLengths(attention_len))
    for place in range(0, attention_len, FILLING):
        shape = (batch_size, min(FILLING, attention_len - place))
        _, memory = reader.hidden(draw_tokens(model, shape, generator), memory)

    def time_segment() -> float:
        nonlocal memory
        tokens_BL, targets_BL = draw_tokens(model, (2, batch_size, tgt_len), generator)
        start = read_clock(model)
        _, memory = reader.loss(tokens_BL, targets_BL, memory)
        return read_clock(model) - start

    return time_segment


def make_window_timer(model: TransformerXL, attention_len: int) -> Timer:
    """Return a timer that predicts one token from attention_len tokens, which are read anew."""
    reader, generator = CachedReader(model), torch.Generator().manual_seed(0)

    def time_window() -> float:
        window_1L = draw_tokens(model, (1, attention_len), generator)
        start = read_clock(model)
        h_1LD, _ = reader.hidden(window_1L, reader.empty_memory(1, EvalLengths(0)))
        model.head(h_1LD[:, -1:])
        return read_clock(model) - start

    return time_window


def draw_tokens(model: TransformerXL, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    """Return random tokens on the model's device."""
    return torch.randint(model.config.n_token, shape, generator=draw).to(model.device)


@torch.inference_mode()
def compare_with_window(
    model: TransformerXL, lengths: list[int], tgt_len: int, segments: int, positions: int
) -> list[dict[str, Any]]:
    """Return a row for each attention length: a token's times, and the speedup by memory.

    They take turns, a window and some segments of each length in each round, so that what else the
    machine does meets all of them; what counts is the fastest of each.
    """
    timers = [
        (make_segment_timer(model, at, tgt_len), make_window_timer(model, at)) for at in lengths
    ]
    times: list[tuple[list[float], list[float]]] = [([], []) for _ in lengths]
    for index in range(positions + 1):
        for (time_segment, time_window), (memory_s, window_s) in zip(timers, times, strict=True):
            memory_s += [time_segment() / tgt_len for _ in range(-(-segments // positions))]
            window_s.append(time_window())
            # The first round finds everything cold.
            if index == 0:
                memory_s.clear()
                window_s.clear()
    rows = [compare_times(at, *seconds) for at, seconds in zip(lengths, times, strict=True)]
    return [row | {"tgt_len": tgt_len} for row in rows]


def compare_times(length: int, memory_s: list[float], window_s: list[float]) -> dict[str, Any]:
    """Return a row of Table 9, from the seconds of a token."""
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
    """Tell whether times differ so much that other processes must have taken part of them."""
    halves = [(row["memory_median_ms"], row["memory_ms_per_token"]) for row in rows]
    halves += [(row["window_median_ms"], row["window_ms_per_token"]) for row in rows]
    windows = [row["window_ms_per_token"] for row in sorted(rows, key=itemgetter("attention_len"))]
    return any(half > 1.5 * least for half, least in halves) or windows != sorted(windows)


@torch.inference_mode()
def measure_latency(
    model: TransformerXL, mem_len: int, batches: list[int], tokens: int
) -> list[dict[str, Any]]:
    """Return a row for each batch size: tokens a second, and percentiles of a token's ms."""
    rows = []
    for batch_size in batches:
        time_token = make_segment_timer(model, mem_len, 1, batch_size)
        # The first one finds everything cold.
        seconds = [time_token() for _ in range(tokens + 1)][1:]
        rate = batch_size / statistics.median(seconds)
        row = {"batch_size": batch_size, "mem_len": mem_len, "tokens_per_second": rate}
        ms = 1e3 * np.percentile(seconds, PERCENTILES, method="inverted_cdf")
        names = [f"p{percentile}_ms" for percentile in PERCENTILES]
        rows.append(row | dict(zip(names, ms.tolist(), strict=True)) | {"tokens": tokens})
    return rows


def read_clock(model: TransformerXL) -> float:
    """Return seconds, when all that was asked for is done."""
    if model.device.type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()
