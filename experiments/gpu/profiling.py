"""What takes the time of a training step, on the device and on the host? A part of check.py."""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import PUBLISHED, load_published, make_step, seconds_of

N_ROW = 25  # kernels or operators that are listed


def profile_steps(smoke: bool, ends_at: float) -> Findings:
    """List what ten steps start on the device, by the time that it takes, for two networks."""
    for compiles in (False,) if smoke else (False, True):
        for name in list(PUBLISHED)[:2]:
            about = {"config": name, "compiled": compiles}
            step = make_step(load_published(name, smoke), compiles=compiles)
            yield try_in_time(ends_at, about, profile_step, step)
            yield try_in_time(ends_at, about, list_host_operators, step)


def profile_step(step: Callable[[], Tensor], count: int = 10) -> dict[str, Any]:
    """Return how long the device is busy, and the kernels that take most of it."""
    for _ in range(3):
        step()
    activity = ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        seconds = seconds_of(lambda: [step() for _ in range(count)])
    times: dict[str, list[float]] = {}
    for event in profiler.events():
        if DEVICE in str(event.device_type).lower():
            times.setdefault(event.name, []).append(event.time_range.elapsed_us())
    busy = sum(map(sum, times.values())) / 1e6
    slowest = sorted(times, key=lambda kernel: -sum(times[kernel]))[:N_ROW]
    return {
        "kernels_per_step": sum(map(len, times.values())) / count,
        "busy_share": busy / seconds,
        "busy_seconds_per_step": busy / count,
        "kernel, calls per step, us per step": [
            [kernel[:120], len(times[kernel]) / count, round(sum(times[kernel]) / count)]
            for kernel in slowest
        ],
    }


def list_host_operators(step: Callable[[], Tensor], count: int = 3) -> dict[str, Any]:
    """Return the operators in which the host spends most time; the profiler itself takes some."""
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(count):
            step()
    slowest = sorted(profiler.key_averages(), key=lambda each: -each.self_cpu_time_total)[:N_ROW]
    rows = [
        [each.key[:60], each.count / count, round(each.self_cpu_time_total / count)]
        for each in slowest
    ]
    return {"operator, calls per step, us of the host per step": rows}
