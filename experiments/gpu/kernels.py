"""What does each part of a network take on a GPU, and which kernels? Parts of check.py.

Each part of a layer, and the loss, is timed by events on the GPU, forward and backward apart. Parts
of a layer are captured as CUDA graphs, so that no time is the host's. An adaptive softmax reads
targets on the host, which no graph can. So the loss is launched before the GPU begins, and so is an
update by LAMB, plain and compiled.

B rows   L tokens in the segment   M in memory   D width
"""

import statistics
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from experiments.gpu import wide
from experiments.gpu.attention import NEEDS_GPU, attend_by_sdpa, make_inputs, time_captured
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
from txl_lightning.model.parts import join
from txl_lightning.model.precision import cast_together
from txl_lightning.model.transformer_xl import FeedForward, RelativeAttention

N_KERNEL = 40  # kernels that are listed
UNALIGNED = "paper/wt103_base"  # of width 410, with heads of 41 and 2,100 inner units
WIDE = {"projections": "projections, wide", "feed-forward": "feed-forward, wide"}
"""Parts of a layer with linear maps, and the same with wide ones."""
UPDATED = "nvidia/wt103_base"  # with 192 million numbers, and LAMB
UPDATES = {"update": "update, compiled"}
LARGEST_SHARES = {UNALIGNED: 0.7, UPDATED: 0.6}
"""The changed parts are taken if they need at most this share of the time of the plain ones."""
Run = Callable[[], Sequence[Tensor]]


def measure_kernels(smoke: bool, ends_at: float) -> Findings:
    """Time each part of a layer, and the loss, of the published networks."""
    for name in PUBLISHED:
        case = load_published(name, smoke)
        parts = {
            "projections": project,
            WIDE["projections"]: partial(project, is_wide=True),
            "feed-forward": feed_forward,
            WIDE["feed-forward"]: partial(feed_forward, is_wide=True),
            "attention": attend,
            "norm": normalize,
        }
        seconds = {}
        for part, make in parts.items():
            found = try_in_time(ends_at, {"config": name, "part": part}, time_part, make, case)
            yield found
            if "seconds_forward" in found:
                seconds[part] = found["seconds_forward"] + found["seconds_backward"]
        if name == UNALIGNED:
            yield from apply_rule(name, WIDE, seconds)
        about = {"config": name, "part": "loss"}
        yield try_in_time(ends_at, about, time_loss, case)
    yield from measure_update(load_published(UPDATED, smoke), ends_at)


def measure_update(case: Case, ends_at: float) -> Findings:
    """Time an update of all weights by LAMB, plain and compiled."""
    seconds = {}
    for part in (*UPDATES, *UPDATES.values()):
        about = {"config": UPDATED, "part": part}
        compiles = part not in UPDATES
        if compiles and DEVICE == "cpu":
            yield about | NEEDS_GPU
            continue
        found = try_in_time(ends_at, about, time_update, case, compiles)
        yield found
        if "seconds_forward" in found:
            seconds[part] = found["seconds_forward"]
    yield from apply_rule(UPDATED, UPDATES, seconds)


def time_update(case: Case, compiles: bool) -> dict[str, Any]:
    # Here, because it imports Lightning.
    from txl_lightning.training.lamb import Lamb

    weights = list(make_network(case).parameters())
    for weight in weights:
        weight.grad = torch.randn_like(weight)
    optimizer = Lamb(weights)
    # Without moments, another update would be compiled.
    optimizer.step()
    if compiles:
        optimizer.step_group = torch.compile(optimizer.step_group)
    return {"seconds_forward": time_by_events(optimizer.step)}


def draw_states(*shape: int) -> Tensor:
    return torch.randn(shape, device=DEVICE, dtype=torch.bfloat16, requires_grad=True)


@contextmanager
def train_layer(module: nn.Module, is_wide: bool) -> Iterator[None]:
    """Compute a part of a layer as training does: from float32 weights, which are cast together.

    Wide maps cast their own weights.
    """
    casts = nullcontext() if is_wide else cast_together(module, torch.bfloat16)
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False), casts:
        yield


def make_part(kind: Callable[[Any], nn.Module], case: Case, is_wide: bool) -> nn.Module:
    module = kind(case.config).to(DEVICE).train()
    if is_wide:
        wide.widen_maps(module)
    return module


def project(case: Case, is_wide: bool = False) -> tuple[Run, list[Tensor]]:
    """Return the products for queries, for keys and values, and for the output."""
    attention = make_part(RelativeAttention, case, is_wide)
    h_BLD = draw_states(case.rows, case.tgt_len, case.config.d_model)
    memory_BMD = torch.randn(case.rows, case.mem_len, case.config.d_model, device=DEVICE)
    memory_BMD = memory_BMD.to(torch.bfloat16)

    def run() -> list[Tensor]:
        with train_layer(attention, is_wide):
            context_BXD = join(memory_BMD, h_BLD)
            out_BLD = attention.o_net(attention.q_net(h_BLD))
            return [out_BLD, attention.kv_net(context_BXD)]

    return run, [h_BLD, *attention.parameters()]


def attend(case: Case) -> tuple[Run, list[Tensor]]:
    inputs = make_inputs(case)
    attend_all = attend_by_sdpa(inputs)
    return lambda: [attend_all()], [*inputs.leaves]


def feed_forward(case: Case, is_wide: bool = False) -> tuple[Run, list[Tensor]]:
    """Return the feed-forward part with its dropout, residual sum and norm."""
    part = make_part(FeedForward, case, is_wide)
    h_BLD = draw_states(case.rows, case.tgt_len, case.config.d_model)

    def run() -> list[Tensor]:
        with train_layer(part, is_wide):
            return [part(h_BLD)]

    return run, [h_BLD, *part.parameters()]


def normalize(case: Case) -> tuple[Run, list[Tensor]]:
    """Return the sum of two states, with dropout of one, and its norm."""
    shape = (case.rows, case.tgt_len, case.config.d_model)
    both = [draw_states(*shape), draw_states(*shape)]
    norm = nn.LayerNorm(shape[-1], device=DEVICE, dtype=torch.bfloat16)
    drop = nn.Dropout(case.config.dropout)
    return lambda: [norm(both[0] + drop(both[1]))], [*both, *norm.parameters()]


def apply_rule(config: str, changed: dict[str, str], seconds: dict[str, float]) -> Findings:
    """Yield the share that changed parts take of the time of plain ones, and what follows."""
    if not {*changed, *changed.values()} <= {*seconds}:
        return
    share = sum(seconds[part] for part in changed.values()) / sum(seconds[part] for part in changed)
    yield {
        "config": config,
        "changed": list(changed.values()),
        "share of the time of plain ones": round(share, 3),
        "rule": f"taken if at most {LARGEST_SHARES[config]}",
        "fulfilled": share <= LARGEST_SHARES[config],
    }


def time_part(make: Callable[[Case], tuple[Run, list[Tensor]]], case: Case) -> dict[str, Any]:
    """Return seconds of the forward pass, and of the backward pass, of one layer."""
    run, leaves = make(case)
    d_out = [torch.ones_like(each) for each in run()]
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
