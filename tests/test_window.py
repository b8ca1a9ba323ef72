"""experiments/speed/table_9.py: timers time what they should."""

import pytest
import torch

from experiments.speed import table_9

calls: list = []


def recorded(name: str, function):
    return lambda *args: calls.append(name) or function(*args)


def test_a_segment_after_a_full_memory_or_a_window_alone_is_timed_with_its_softmax(
    make_net, monkeypatch
):
    net = make_net()
    hidden = net.hidden

    def note(tokens_BL, memory, *rest):
        calls.append((tokens_BL.size(1), memory.filled_B.max().item()))
        return hidden(tokens_BL, memory, *rest)

    monkeypatch.setattr(net, "hidden", note)
    monkeypatch.setattr(table_9, "read_clock", recorded("clock", table_9.read_clock))
    monkeypatch.setattr(net.head, "forward", recorded("softmax", net.head.forward))
    with torch.inference_mode():
        timers = table_9.time_segments(net, 20, 4), table_9.time_windows(net, 20)
        for timer, read in zip(timers * 2, [(4, 20), (20, 0)] * 2, strict=True):
            assert next(timer) > 0
            assert calls[-4:] == ["clock", read, "softmax", "clock"]


def fake_times(monkeypatch, name: str, seconds) -> None:
    monkeypatch.setattr(table_9, name, lambda *_: iter(seconds))


def test_fastest_token_counts_after_a_first_round(make_net, monkeypatch):
    fake_times(monkeypatch, "time_segments", [0.001, 0.001, 0.004, 0.008, 0.016, 0.008])
    fake_times(monkeypatch, "time_windows", [0.1, 0.3, 0.5])
    (row,) = table_9.compare_with_window(make_net(), [800], tgt_len=4, segments=4, positions=2)
    expected = {"memory_ms_per_token": 1, "window_ms_per_token": 300}
    assert row == pytest.approx(expected | {"speedup": 300, "attention_len": 800})
