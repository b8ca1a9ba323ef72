"""Timers time what they should, and disturbed times are reported."""

import pytest
import torch

from txl_lightning.analysis import speed
from txl_lightning.model import CachedReader


class RecordingReader(CachedReader):
    """Records the number of tokens read, and of states in memory."""

    def hidden(self, tokens_BL, memory, *rest):
        lengths.append((tokens_BL.size(1), memory.filled_B.max().item()))
        return super().hidden(tokens_BL, memory, *rest)


lengths: list[tuple[int, int]] = []


def test_segment_is_read_with_a_full_memory_and_a_window_with_none(make_net, monkeypatch):
    monkeypatch.setattr(speed, "CachedReader", RecordingReader)
    net = make_net()
    with torch.inference_mode():
        timers = speed.time_segments(net, 20, 4, 2), speed.time_windows(net, 20)
        assert all(next(times) > 0 for times in timers * 2)
    assert lengths[-4:] == [(4, 20), (20, 0)] * 2


def fake_times(monkeypatch, name: str, seconds) -> None:
    monkeypatch.setattr(speed, name, lambda *_: iter(seconds))


def test_fastest_token_counts_after_a_first_round(make_net, monkeypatch):
    fake_times(monkeypatch, "time_segments", [0.001, 0.001, 0.004, 0.008, 0.016, 0.008])
    fake_times(monkeypatch, "time_windows", [0.1, 0.3, 0.5])
    (row,) = speed.compare_with_window(make_net(), [800], tgt_len=4, segments=4, positions=2)
    expected = {"memory_ms_per_token": 1, "memory_median_ms": 2, "segments": 4}
    expected |= {"window_ms_per_token": 300, "window_median_ms": 400, "window_positions": 2}
    expected |= {"speedup": 300, "published_speedup": 363, "attention_len": 800, "tgt_len": 4}
    assert row == pytest.approx(expected)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({}, False),
        ({"memory_median_ms": 4.0}, True),
        ({"window_median_ms": 60}, True),
        ({"window_ms_per_token": 9, "window_median_ms": 9}, True),
    ],
)
def test_times_lengthened_by_other_processes_are_disturbed(change, expected):
    names = ("attention_len", "memory_ms_per_token", "memory_median_ms")
    names += ("window_ms_per_token", "window_median_ms")
    times = ((8, 1, 1.2, 10, 11), (16, 2, 2.1, 30, 32))
    first, second = (dict(zip(names, row, strict=True)) for row in times)
    assert speed.is_disturbed([first, second | change]) is expected


@pytest.mark.parametrize(("p99_ms", "expected"), [(1.2, False), (2257, True)])
def test_latencies_far_beyond_the_median_are_disturbed(p99_ms, expected):
    quiet = {"p50_ms": 0.6, "p99_ms": 0.9}
    assert speed.is_disturbed([quiet, quiet | {"p99_ms": p99_ms}]) is expected


def test_latency_percentiles_are_times_that_were_measured(make_net, monkeypatch):
    """Percentiles are over 100 tokens, without the first one."""
    fake_times(monkeypatch, "time_segments", [1000.0, *range(100, 0, -1)])
    (row,) = speed.measure_latency(make_net(), 6, [4], 100)
    expected = {f"p{share}_ms": 1000 * share for share in (50, 90, 95, 99)}
    expected |= {"batch_size": 4, "mem_len": 6, "tokens": 100, "tokens_per_second": 4 / 50.5}
    assert row == expected
