"""Time per token: memory against a sliding window (Dai et al. 2019, Table 9)."""

import time
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from txl_lightning.model import EvalLengths, Network, find_device, make_reader

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""The paper's speedup over a sliding window, by attention length (Table 9, one GPU)."""
FILL_LEN = 256  # length of the segments that fill the memory


def time_segments(model: Network, attention_len: int, tgt_len: int) -> Iterator[float]:
    """Yield the seconds of each further tgt_len tokens, after a memory of attention_len."""
    reader, generator = make_reader(model), torch.Generator().manual_seed(0)
    # Allocate the full memory now, so that a failure does not come after hours of filling it.
    model.empty_memory(1, EvalLengths(attention_len))
    memory = reader.empty_memory(1, EvalLengths(attention_len))
    for start in range(0, attention_len, FILL_LEN):
        shape = (1, min(FILL_LEN, attention_len - start))
        _, memory = reader.hidden(draw_tokens(model, shape, generator), memory)
    while True:
        tokens_BL, targets_BL = draw_tokens(model, (2, 1, tgt_len), generator)
        start = read_clock(model)
        _, memory = reader.loss(tokens_BL, targets_BL, memory)
        yield read_clock(model) - start


def time_windows(model: Network, attention_len: int) -> Iterator[float]:
    """Yield the seconds of each prediction of one token from a new window of attention_len."""
    reader, generator = make_reader(model), torch.Generator().manual_seed(0)
    while True:
        window_1L = draw_tokens(model, (1, attention_len), generator)
        start = read_clock(model)
        h_1LD, _ = reader.hidden(window_1L, reader.empty_memory(1, EvalLengths(0)))
        reader.head(h_1LD[:, -1:])
        yield read_clock(model) - start


def draw_tokens(model: Network, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.randint(model.config.n_token, shape, generator=draw).to(find_device(model))


def read_clock(model: Network) -> float:
    """Return seconds, after the device has finished all work."""
    if find_device(model).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def compare_with_window(
    model: Network, lengths: list[int], tgt_len: int, segments: int, positions: int
) -> list[dict[str, Any]]:
    """Return a row for each attention length: times per token, and the speedup by memory.

    Each round times a window and some segments of every length, so that other load on the machine
    affects all of them; the fastest of each counts.
    """
    n_segment = -(-segments // positions)
    timers = [(time_segments(model, n, tgt_len), time_windows(model, n)) for n in lengths]
    rounds, rows = [], []
    for _ in range(positions + 1):
        rounds.append([(list(islice(each, n_segment)), next(window)) for each, window in timers])
    # The first round is a warm-up.
    for attention_len, times in zip(lengths, zip(*rounds[1:], strict=True), strict=True):
        memory_s, window_s = zip(*times, strict=True)
        memory_ms, window_ms = 1e3 * np.ravel(memory_s) / tgt_len, 1e3 * np.array(window_s)
        row = {"attention_len": attention_len, "tgt_len": tgt_len}
        for name, ms in (("memory", memory_ms), ("window", window_ms)):
            row[f"{name}_ms_per_token"] = float(ms.min())
            row[f"{name}_median_ms"] = float(np.median(ms))
        row["speedup"] = row["window_ms_per_token"] / row["memory_ms_per_token"]
        row["published_speedup"] = PUBLISHED.get(attention_len)
        rows.append(row | {"segments": len(memory_ms), "window_positions": len(window_ms)})
    return rows


def is_disturbed(rows: list[dict[str, Any]]) -> bool:
    """Return True if times differ so much that other processes must have disturbed them."""
    windows = [row["window_ms_per_token"] for row in sorted(rows, key=itemgetter("attention_len"))]
    return windows != sorted(windows) or any(
        row[f"{name}_median_ms"] > 1.5 * row[f"{name}_ms_per_token"]
        for row in rows
        for name in ("memory", "window")
    )
