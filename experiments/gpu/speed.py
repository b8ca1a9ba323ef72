"""How fast is it? Parts of check.py: each yields its findings, and begins nothing after `ends_at`.

B rows   L tokens in the segment   T = L + 1
"""

import statistics
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
import yaml
from torch import Tensor, nn

from experiments.gpu import ids, operations
from experiments.gpu.correctness import Attend
from experiments.gpu.parts import DEVICE, ROOT, Findings, try_in_time
from experiments.speed.cases import SAME_LENGTH, Case
from txl_lightning import Adaptation, TransformerXL
from txl_lightning.generation import Sampling, decode_steps, start_decoding
from txl_lightning.model.captured import CapturedReader
from txl_lightning.model.reading import Reader
from txl_lightning.model.ring import CapturedDecoder, Decoder

PUBLISHED = {
    "paper/enwik8_base": {}, "paper/wt103_base": {}, "paper/enwik8_large": {},
    # As in NVIDIA's published table: 59,961 tokens/s on an A100, mixed precision.
    "nvidia/wt103_base": {"batch_size": 32},
}  # fmt: skip
"""Networks of configs/, and what is changed of their batches."""
BASE = "paper/enwik8_base"
WAYS = {"plain": {}, "graphs": {"captures": True}}
WAYS["graphs, compiled"] = {"captures": True, "compiles": True}
"""How a segment is computed; as CUDA graphs, so that its speed is not that of the host."""
WORDS = 267_735  # of a vocabulary of words
BYTES = 256
READERS = {"plain": Reader, "graphs": CapturedReader}
"""What reads segments."""
DECODERS = {"plain": Decoder, "graphs": CapturedDecoder}
"""What reads single tokens."""
INFERENCE = {
    "evaluation": {"rows": 10, "tgt_len": 128},
    # By graphs, keys and values of the memory are computed again for each segment.
    "evaluation as published": {
        "rows": 10,
        "tgt_len": 80,
        "mem_len": 2100,
        "sizes": SAME_LENGTH | {"clamp_len": 820},
    },
    "decoding": {"rows": 1, "tgt_len": 1},
    "generate": {"rows": 1, "tgt_len": 1},
}
"""Sizes of each task; its `sizes` are added to those of the network."""


def load_published(name: str, smoke: bool) -> Case:
    """Return the network and the batches of a config; for a smoke test, tiny ones."""
    run = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    sizes = run["model"]["net"]
    data = run["data"] | PUBLISHED[name]
    sizes["n_token"] = WORDS if "wt103" in name else BYTES
    mem_len = sizes.pop("mem_len")
    case = Case(name, sizes, data["batch_size"], data["tgt_len"], mem_len, trains=True)
    return case.shrink() if smoke else case


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any]) -> float:
    synchronize()
    began = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - began


def host_seconds_of(run: Callable[[], Any]) -> float:
    """Return the time until everything is launched, with an idle device before."""
    synchronize()
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def measure_costs(smoke: bool, ends_at: float) -> Findings:
    """Measure what large products reach, a large copy, and the launch of a small operation."""
    size, rounds = (256, 3) if smoke else (8192, 30)
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(size, size, device=DEVICE).to(dtype)
        best = min(seconds_of(lambda a=a: a @ a) for _ in range(rounds))
        yield {"dtype": str(dtype), "flops_per_second": 2 * size**3 / best}
    source = torch.randn(1 << (12 if smoke else 29), device=DEVICE)
    target = torch.empty_like(source)
    best = min(seconds_of(lambda: target.copy_(source)) for _ in range(rounds))
    yield {"copy, bytes read and written per second": 2 * source.nbytes / best}
    small = torch.ones(9, device=DEVICE)
    count = 1000
    best = min(host_seconds_of(lambda: [small + small for _ in range(count)]) for _ in range(9))
    yield {"seconds per launch": best / count}


def measure_speed(smoke: bool, ends_at: float) -> Findings:
    """Measure training of the published networks: forward, backward, update."""
    # Those with graphs first, because their speed is not the host's.
    runs = [(name, way) for way in ("graphs", "plain") for name in PUBLISHED]
    for name, way in [*runs, (BASE, "graphs, compiled")]:
        # A CPU has no graphs.
        if way == "plain" or DEVICE == "cuda":
            about = {"config": name, "kernel": "sdpa", "way": way}
            case = load_published(name, smoke)
            yield try_in_time(ends_at, about, time_ours, case, way, 0.2 if smoke else 4.0)


def time_ours(case: Case, way: str, seconds: float) -> dict[str, Any]:
    """Time steps, with fewer rows where memory is short."""
    while True:
        try:
            found = time_steps(make_step(case, **WAYS[way]), case, seconds)
            return found | {
                "share_of_peak": operations.share_of_peak(case, found["tokens_per_second"])
            }
        except torch.OutOfMemoryError:
            if case.rows == 1:
                raise
        torch.cuda.empty_cache()
        case = replace(case, rows=case.rows // 2)


def make_network(case: Case, kernel: str = "sdpa") -> TransformerXL:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return TransformerXL(replace(case.config, kernel=kernel))


def make_step(
    case: Case, compiles: bool = False, captures: bool = False, attend: Attend | None = None
) -> Callable[[], Tensor]:
    """Return a function that takes a training step under bf16 autocast, and returns the loss."""
    net = called = make_network(case).train()
    for layer in net.layers if attend else ():
        layer.attention.attend = attend
    memory = None
    # Here, because importing Lightning takes half a minute where transformers is installed.
    if compiles:
        from txl_lightning.training.segments import compile_in_place

        compile_in_place(net)
    if captures:
        from txl_lightning.training.cuda_graph import CapturedNetwork, CapturedSegment

        called = CapturedNetwork(net, CapturedSegment)
    # As in training with LanguageModel: an adaptive softmax reads targets on the host.
    device = "cpu" if net.head.reads_targets else DEVICE

    def compute_nats(tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nonlocal memory
        # Of rows whose documents have begun long before.
        doc_pos_BL = torch.full_like(tokens_BL, 1 << 20)
        before = net.empty_memory(len(tokens_BL)) if memory is None else memory
        nats_BL, memory = called.loss(tokens_BL, targets_BL.to(device), before, doc_pos_BL, 0)
        return nats_BL

    return update_with(compute_nats, net.parameters(), case)


def draw_batch(case: Case) -> tuple[Tensor, Tensor]:
    """Draw tokens_BL and targets_BL; an adaptive softmax reads targets on the host."""
    n_token = case.config.n_token
    ids_BT = ids.draw_words(n_token, (case.rows, case.tgt_len + 1))
    targets_BL = ids_BT[:, 1:]
    return ids_BT[:, :-1].to(DEVICE), targets_BL.to(DEVICE if n_token == BYTES else "cpu")


def update_with(
    compute_nats: Callable[[Tensor, Tensor], Tensor], parameters: Iterable[nn.Parameter], case: Case
) -> Callable[[], Tensor]:
    """Return a function that takes one step of Adam on random tokens, and returns its loss."""
    weights = list(parameters)
    optimizer = torch.optim.Adam(weights, lr=1e-5, fused=DEVICE == "cuda")
    tokens_BL, targets_BL = draw_batch(case)

    def step() -> Tensor:
        # Without a cache, as in Lightning, and as graphs need.
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            loss = compute_nats(tokens_BL, targets_BL).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.25)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def time_steps(step: Callable[[], Tensor], case: Case, seconds: float) -> dict[str, Any]:
    """Return the speed of steps that follow until about so many seconds are over."""
    # Until the memory is full and everything is compiled.
    losses = [step() for _ in range(2 + -(-case.mem_len // case.tgt_len))]
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    host = statistics.median(host_seconds_of(step) for _ in range(5))
    count = max(int(seconds / seconds_of(step)), 3)
    each = seconds_of(lambda: [step() for _ in range(count)]) / count
    return {
        "tokens_per_second": case.tokens / each,
        "batch_size": case.rows,
        "seconds_per_step": each,
        "host_seconds_per_step": host,
        "steps": count,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "first_losses": [loss.item() for loss in losses],
        "right": all(bool(loss.isfinite()) for loss in losses),
    }


def measure_inference(smoke: bool, ends_at: float) -> Findings:
    """Measure evaluation, decoding and generation of enwik8_base in bfloat16."""
    for task, sizes in INFERENCE.items():
        case = load_published(BASE, smoke)
        net_sizes = case.sizes | sizes.get("sizes", {})
        case = replace(case, **sizes | {"sizes": net_sizes}, trains=False)
        measure = time_generation if task == "generate" else time_reading
        for way in READERS:
            # A CPU has no graphs.
            if way == "plain" or DEVICE == "cuda":
                about = {"config": BASE, "task": task, "way": way}
                yield try_in_time(ends_at, about, measure, case, way, 0.1 if smoke else 2.0)


def make_inference_network(case: Case) -> TransformerXL:
    dtype = torch.bfloat16 if DEVICE == "cuda" else torch.float32
    return make_network(case, kernel="auto").eval().to(dtype)


@torch.inference_mode()
def time_reading(case: Case, way: str, seconds: float) -> dict[str, Any]:
    """Time segments, or single tokens, that follow one another."""
    net = make_inference_network(case)
    is_one = case.tgt_len == 1
    reader = DECODERS[way](net, Adaptation()) if is_one else READERS[way](net)
    memory = reader.empty_memory(case.rows)
    tokens_BL = torch.randint(BYTES, (case.rows, case.tgt_len), device=DEVICE)
    # Each row's document has begun long before; a decoder reads a row as one document.
    doc_pos_BL = None if is_one else torch.full_like(tokens_BL, case.mem_len + case.tgt_len)

    def read() -> Tensor:
        nonlocal memory
        h_BLD, memory = reader.hidden(tokens_BL, memory, doc_pos_BL)
        return reader.head.nats(h_BLD, tokens_BL).mean()

    return time_steps(read, case, seconds)


def time_generation(case: Case, way: str, seconds: float) -> dict[str, Any]:
    """Time tokens that are sampled, after a prompt that fills the memory."""
    net = make_inference_network(case)
    state = start_decoding(net, [torch.randint(BYTES, (case.mem_len + 1,))])
    steps = decode_steps(net, state, 1 << 40, Sampling(seed=0), cuda_graph=way == "graphs")

    def decode() -> Tensor:
        return next(steps).tokens_BL[:, -1].double().mean()

    # The prompt is read, and a graph captured.
    first = seconds_of(decode)
    return time_steps(decode, case, seconds) | {"seconds_to_first_token": first}
