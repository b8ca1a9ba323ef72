"""What does each part of a network take on a GPU, and which kernels? Parts of check.py.

Each part of a layer, and the loss, is timed by events on the GPU, forward and backward apart. All
but the loss are captured as CUDA graphs, so that no time is the host's; an adaptive softmax reads
targets on the host, which no graph can.

B rows   L tokens in the segment   S = M + L states   D width   H heads   K head width
"""

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from experiments.gpu.attention import attend_by_sdpa, make_inputs, time_captured
from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import (
    PUBLISHED,
    draw_batch,
    load_published,
    make_network,
    make_step,
    seconds_of,
)
from experiments.speed.cases import Case

N_KERNEL = 40  # kernels that are listed
Run = Callable[[], Tensor]


def measure_kernels(smoke: bool, ends_at: float) -> Findings:
    """Time each part of a layer, and the loss, of the published networks."""
    for name in PUBLISHED:
        case = load_published(name, smoke)
        parts = {
            "projections": project,
            "projections, width rounded up to 8": project_wider,
            "attention": attend,
            "feed-forward": feed_forward,
            "feed-forward, widths rounded up to 8": feed_forward_wider,
            "norm": normalize,
        }
        for part, make in parts.items():
            yield try_in_time(ends_at, {"config": name, "part": part}, time_part, make, case)
        about = {"config": name, "part": "loss"}
        yield try_in_time(ends_at, about, time_loss, case)


def draw_states(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)


def make_linear(n_in: int, n_out: int) -> nn.Linear:
    return nn.Linear(n_in, n_out, device=DEVICE, dtype=torch.bfloat16)


def round_up(width: int) -> int:
    return width + -width % 8


def project(case: Case, widen: Callable[[int], int] = int) -> tuple[Run, list[Tensor]]:
    """Return the products for queries, for keys and values, and for the output."""
    config = case.config
    width = widen(config.d_model)
    inner = widen(config.n_head * config.head_width)
    h_BLD = draw_states(case.rows, case.tgt_len, width)
    context_BSD = draw_states(case.rows, case.mem_len + case.tgt_len, width)
    maps = [make_linear(width, inner), make_linear(width, 2 * inner), make_linear(inner, width)]

    def run() -> Tensor:
        query, keys_values, output = maps
        return output(query(h_BLD)).sum() + keys_values(context_BSD).sum()

    return run, [h_BLD, context_BSD, *list_weights(maps)]


def project_wider(case: Case) -> tuple[Run, list[Tensor]]:
    return project(case, round_up)


def attend(case: Case) -> tuple[Run, list[Tensor]]:
    inputs = make_inputs(case)
    return attend_by_sdpa(inputs), [*inputs.leaves]


def feed_forward(case: Case, widen: Callable[[int], int] = int) -> tuple[Run, list[Tensor]]:
    width = widen(case.config.d_model)
    inner = widen(case.config.inner_width)
    h_BLD = draw_states(case.rows, case.tgt_len, width)
    maps = [make_linear(width, inner), make_linear(inner, width)]
    return lambda: maps[1](maps[0](h_BLD).relu()), [h_BLD, *list_weights(maps)]


def feed_forward_wider(case: Case) -> tuple[Run, list[Tensor]]:
    return feed_forward(case, round_up)


def normalize(case: Case) -> tuple[Run, list[Tensor]]:
    """Return the sum of two states, with dropout of one, and its norm."""
    shape = (case.rows, case.tgt_len, case.config.d_model)
    both = [draw_states(*shape), draw_states(*shape)]
    norm = nn.LayerNorm(shape[-1], device=DEVICE, dtype=torch.bfloat16)
    drop = nn.Dropout(case.config.dropout)
    return lambda: norm(both[0] + drop(both[1])), [*both, *norm.parameters()]


def list_weights(maps: Sequence[nn.Linear]) -> list[Tensor]:
    return [weight for each in maps for weight in each.parameters()]


def time_part(make: Callable[[Case], tuple[Run, list[Tensor]]], case: Case) -> dict[str, Any]:
    """Return seconds of the forward pass, and of the backward pass, of one layer."""
    run, leaves = make(case)
    d_out = torch.ones_like(run())
    forward = time_captured(run)
    both = time_captured(lambda: torch.autograd.grad(run(), leaves, d_out))
    return {"seconds_forward": forward, "seconds_backward": both - forward}


def time_loss(case: Case) -> dict[str, Any]:
    """Return seconds of the loss, forward and backward, with a bound: what the host launches."""
    head = make_network(case).train().head
    h_BLD = draw_states(case.rows, case.tgt_len, case.config.d_model)
    _, targets_BL = draw_batch(case)
    leaves = [h_BLD, *head.parameters()]

    def run() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            return head.nats(h_BLD, targets_BL).mean()

    forward = time_by_events(run)
    both = time_by_events(lambda: torch.autograd.grad(run(), leaves))
    return {"seconds_forward": forward, "seconds_backward": both - forward}


def time_by_events(run: Callable[[], Any], rounds: int = 10) -> float:
    """Return the median seconds of a run on a GPU that begins when the host has launched it."""
    if DEVICE == "cpu":
        return seconds_of(run)
    run()
    seconds = []
    for _ in range(rounds):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        # The GPU is busy meanwhile, so that it does not wait for launches.
        torch.cuda._sleep(50_000_000)
        start.record()
        run()
        end.record()
        torch.cuda.synchronize()
        seconds.append(start.elapsed_time(end) / 1e3)
    return statistics.median(seconds)


def profile_steps(smoke: bool, ends_at: float) -> Findings:
    """List what ten steps of each published network start on the device, by the time it takes."""
    for name in PUBLISHED:
        yield try_in_time(ends_at, {"config": name}, profile_network, name, smoke)


def profile_network(name: str, smoke: bool) -> dict[str, Any]:
    step = make_step(load_published(name, smoke))
    count = 2 if smoke else 10
    for _ in range(3):
        step()
    activity = ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU
    with profile(activities=[activity]) as profiler:
        seconds = seconds_of(lambda: [step() for _ in range(count)])
    times: dict[str, list[float]] = {}
    for event in profiler.events():
        if DEVICE in str(event.device_type).lower():
            times.setdefault(event.name, []).append(event.time_range.elapsed_us())
    slowest = sorted(times, key=lambda kernel: -sum(times[kernel]))[:N_KERNEL]
    return {
        "kernels_per_step": sum(map(len, times.values())) / count,
        "busy_seconds_per_step": sum(map(sum, times.values())) / 1e6 / count,
        "seconds_per_step": seconds / count,
        "kernel, calls per step, us per step": [
            [kernel[:120], len(times[kernel]) / count, round(sum(times[kernel]) / count)]
            for kernel in slowest
        ],
    }
