"""How long does attention with (b) and (d) take, forward and backward? Parts of check.py.

The candidates are sdpa, compiled, as training has it, the kernels of flash.py, and FlexAttention.
Each is captured as a CUDA graph, so that no time is the host's, and timed by events on the GPU.

B rows   L queries   S states   H heads   K head width
"""

import statistics
from collections.abc import Callable
from itertools import pairwise
from typing import Any, NamedTuple
from unittest import mock

import torch
from torch import Tensor

from experiments.gpu import flex, parts
from experiments.gpu.correctness import Attend
from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import load_published, make_step, seconds_of, time_steps
from experiments.speed.cases import Case
from txl_lightning.model.graph import CudaGraph
from txl_lightning.model.kernels import sdpa
from txl_lightning.model.memory import Mask, attention_mask
from txl_lightning.model.positions import DistanceTerms

NETWORKS = ("paper/enwik8_base", "paper/enwik8_large")
LARGEST_SHARE = 0.65
"""A kernel is kept if it takes at most this share of the time of compiled sdpa at both networks."""
NEEDS_GPU = {"not measured": "a GPU is needed"}
Run = Callable[[], Any]


class Inputs(NamedTuple):
    """What attention gets in a layer, and the gradient of its output."""

    q_BLHK: Tensor
    kv_BS2HK: Tensor
    u_HK: Tensor
    v_HK: Tensor
    r_THK: Tensor
    mask_BLS: Tensor
    d_out_BLHK: Tensor
    dropatt: float

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        return self[:5]

    @property
    def terms(self) -> DistanceTerms:
        return DistanceTerms(r_THK=self.r_THK, u_HK=self.u_HK, v_HK=self.v_HK)


def make_inputs(case: Case) -> Inputs:
    """Draw inputs of a layer of a network whose memory is full."""
    B = case.rows
    L = case.tgt_len
    S = case.mem_len + L
    H = case.config.n_head
    K = case.config.head_width
    like = {"device": DEVICE, "dtype": torch.bfloat16}
    shapes = ((B, L, H, K), (B, S, 2, H, K), (H, K), (H, K), (S + 1, H, K))
    leaves = [torch.randn(shape, **like, requires_grad=True) for shape in shapes]
    filled_B = torch.full((B,), case.mem_len, device=DEVICE)
    mask_BLS = attention_mask(filled_B, case.mem_len, L, None, None)
    d_out_BLHK = torch.randn(B, L, H, K, **like)
    return Inputs(*leaves, mask_BLS, d_out_BLHK, case.config.dropatt)


def attend_by_sdpa(inputs: Inputs) -> Run:
    def attend(*leaves: Tensor) -> Tensor:
        q_BLHK, kv_BS2HK, u_HK, v_HK, r_THK = leaves
        terms = DistanceTerms(r_THK=r_THK, u_HK=u_HK, v_HK=v_HK)
        return sdpa.attend(q_BLHK, kv_BS2HK, terms, Mask(inputs.mask_BLS), inputs.dropatt)

    compiled = torch.compile(attend) if DEVICE == "cuda" else attend
    return lambda: compiled(*inputs.leaves)


def attend_by_flash(inputs: Inputs) -> Run:
    # Here, because triton may be missing.
    from experiments.gpu import flash

    q_BLHK, kv_BS2HK = inputs.leaves[:2]
    mask = Mask(inputs.mask_BLS)
    return lambda: flash.attend(q_BLHK, kv_BS2HK, inputs.terms, mask, inputs.dropatt)


def attend_by_flex(inputs: Inputs) -> Run:
    """Attend without dropout, which FlexAttention does not have."""
    seen = flex.make_block_mask(inputs.mask_BLS)
    compiled = torch.compile(flex.attend_blocks)
    return lambda: compiled(inputs.q_BLHK, inputs.kv_BS2HK, inputs.terms, seen)


CANDIDATES = {
    "sdpa, compiled": attend_by_sdpa,
    "flash": attend_by_flash,
    "flex, compiled": attend_by_flex,
}


def compare_flash(smoke: bool, ends_at: float) -> Findings:
    """Compare output and gradients of flash with the reference's, in both precisions."""
    if DEVICE == "cpu":
        yield {"kernel": "flash"} | NEEDS_GPU
        return
    from experiments.gpu import flash

    yield from parts.compare_kernels(smoke, ends_at, "flash", flash.attend)


def measure_attention(smoke: bool, ends_at: float) -> Findings:
    """Time each candidate at the sizes of two networks, and tell what the rule says."""
    for name in NETWORKS:
        case = load_published(name, smoke)
        seconds = {}
        for candidate, prepare in CANDIDATES.items():
            about = {"config": name, "attention": candidate}
            if DEVICE == "cpu" and candidate != "sdpa, compiled":
                yield about | NEEDS_GPU
                continue
            found = try_in_time(ends_at, about, time_attention, prepare, case)
            yield found
            if "seconds_forward" in found:
                seconds[candidate] = found["seconds_forward"] + found["seconds_backward"]
        yield from ({"config": name} | each for each in apply_rule(seconds))


def measure_tiles(smoke: bool, ends_at: float) -> Findings:
    """Time flash with other tiles at the sizes of each network."""
    if DEVICE == "cpu":
        yield {"attention": "flash"} | NEEDS_GPU
        return
    from experiments.gpu import flash

    for name in NETWORKS:
        case = load_published(name, smoke)
        for plan in flash.SWEEP:
            about = {"config": name, "attention": "flash", "plan": str([*map(tuple, plan)])}
            with mock.patch.dict(flash.PLANS, dict.fromkeys(flash.PLANS, plan)):
                yield try_in_time(ends_at, about, time_attention, attend_by_flash, case)


def measure_network(smoke: bool, ends_at: float) -> Findings:
    """Train enwik8_large with sdpa and with flash: does it fit in 80 GB, and how fast is it?"""
    name = "paper/enwik8_large"
    about = {"config": name, "attention": "sdpa"}
    yield try_in_time(ends_at, about, time_network, name, smoke, sdpa.attend)
    about = {"config": name, "attention": "flash"}
    if DEVICE == "cpu":
        yield about | NEEDS_GPU
        return
    from experiments.gpu import flash

    yield try_in_time(ends_at, about, time_network, name, smoke, flash.attend)


def time_network(name: str, smoke: bool, attend: Attend) -> dict[str, Any]:
    case = load_published(name, smoke)
    return time_steps(make_step(case, attend=attend), case, 0.2 if smoke else 4.0)


def apply_rule(seconds: dict[str, float]) -> Findings:
    """Yield for each candidate the share that it takes of the time of sdpa, and what follows."""
    baseline = seconds.pop("sdpa, compiled", None)
    for candidate, each in seconds.items():
        if baseline:
            share = each / baseline
            yield {
                "attention": candidate,
                "share of the time of compiled sdpa": round(share, 3),
                "rule": f"kept if at most {LARGEST_SHARE} at each of {', '.join(NETWORKS)}",
                "fulfilled": share <= LARGEST_SHARE,
            }


def time_attention(prepare: Callable[[Inputs], Run], case: Case) -> dict[str, Any]:
    """Return seconds of a layer's forward pass, of its backward pass, and the memory of both."""
    inputs = make_inputs(case)
    attend = prepare(inputs)

    def differentiate() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(), inputs.leaves, inputs.d_out_BLHK)

    gradients = differentiate()
    kept_bytes = measure_bytes(attend)
    forward = time_captured(attend)
    both = time_captured(differentiate)
    return {
        "seconds_forward": forward,
        "seconds_backward": both - forward,
        "bytes_kept_for_backward": kept_bytes,
        "right": all(bool(each.isfinite().all()) for each in gradients),
    }


def measure_bytes(attend: Run) -> int:
    """Return the bytes that are kept after a forward pass, the output among them."""
    if DEVICE == "cpu":
        return 0
    before = torch.cuda.memory_allocated()
    out_BLHK = attend()
    kept = torch.cuda.memory_allocated() - before
    del out_BLHK
    return kept


def time_captured(run: Run, rounds: int = 20) -> float:
    """Return the median of the seconds that a GPU takes for a run, captured as a graph."""
    if DEVICE == "cpu":
        return seconds_of(run)
    CudaGraph.warm_up(run)
    graph = CudaGraph(run)
    graph.replay()
    events = [torch.cuda.Event(enable_timing=True) for _ in range(rounds + 1)]
    for event in events:
        event.record()
        graph.replay()
    torch.cuda.synchronize()
    return statistics.median(start.elapsed_time(end) for start, end in pairwise(events)) / 1e3
