"""Timers read what they say, and disturbed times are told."""

import pytest
import torch

from txl_lightning.analysis.speed import (
    is_disturbed,
    make_segment_timer,
    make_window_timer,
    measure_latency,
)
from txl_lightning.model import CachedReader


class RecordingReader(CachedReader):
    """Records how many tokens are read, and how many states are remembered."""

    def hidden(self, tokens_BL, memory, *rest):
        lengths.append((tokens_BL.size(1), memory.filled_B.max().item()))
        return super().hidden(tokens_BL, memory, *rest)


lengths: list[tuple[int, int]] = []


def test_segment_is_read_with_a_full_memory_and_a_window_with_none(make_net, monkeypatch):
    monkeypatch.setattr("txl_lightning.analysis.speed.CachedReader", RecordingReader)
    net = make_net()
    with torch.inference_mode():
        timers = make_segment_timer(net, 20, 4, 2), make_window_timer(net, 20)
        assert all(timer() > 0 for timer in timers * 2)
    assert lengths[-4:] == [(4, 20), (20, 0)] * 2


def make_row(attention_len: int, memory_ms: tuple[float, float], window_ms: tuple[float, float]):
    names = ("memory_ms_per_token", "memory_median_ms", "window_ms_per_token", "window_median_ms")
    times = dict(zip(names, (*memory_ms, *window_ms), strict=True))
    return {"attention_len": attention_len} | times


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        (((2, 2.1), (30, 32)), False),
        (((2, 4.0), (30, 32)), True),
        (((2, 2.1), (30, 60)), True),
        (((2, 2.1), (9, 9)), True),
    ],
)
def test_times_lengthened_by_other_processes_are_disturbed(second, expected):
    assert is_disturbed([make_row(8, (1, 1.2), (10, 11)), make_row(16, *second)]) is expected


def test_latency_percentiles_are_times_that_were_measured(make_net, monkeypatch):
    """Of 100 tokens, the time that so many do not exceed; the first is not counted."""
    seconds = iter([1000.0, *range(100, 0, -1)])
    monkeypatch.setattr(
        "txl_lightning.analysis.speed.make_segment_timer", lambda *_: lambda: next(seconds)
    )
    (row,) = measure_latency(make_net(), 6, [4], 100)
    percentiles = {f"p{p}_ms": p * 1e3 for p in (50, 90, 95, 99)}
    rate = {"tokens_per_second": 4 / 50.5}
    assert row == {"batch_size": 4, "mem_len": 6, "tokens": 100} | rate | percentiles
