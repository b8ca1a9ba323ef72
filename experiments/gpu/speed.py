"""How fast is it? Parts of check.py: each yields its findings, and begins nothing after `ends_at`.

B rows   L tokens in the segment   T = L + 1
"""

import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn

from experiments.gpu.parts import DEVICE, ROOT, Findings, try_in_time
from experiments.speed import contestants
from experiments.speed.cases import Case, count_flops
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model import make_reader

PUBLISHED = {
    "paper/enwik8_base": {}, "paper/wt103_base": {}, "paper/enwik8_large": {},
    # As in NVIDIA's published table: 59,961 tokens/s on an A100, mixed precision.
    "nvidia/wt103_base": {"batch_size": 32},
}  # fmt: skip
"""Networks of configs/, and what is changed of their batches."""
TINY = {"n_layer": 1, "n_head": 2, "d_model": 8, "d_head": 4, "d_inner": 16, "mem_len": 6}
WORDS, BYTES = 267_735, 256  # sizes of their vocabularies


class Training(NamedTuple):
    """A published network and its batches."""

    config: TransformerXLConfig
    tgt_len: int
    batch_size: int


def load_published(name: str, smoke: bool) -> Training:
    """Return the network and the batches of a config; for a smoke test, tiny ones."""
    run = yaml.safe_load((ROOT / f"configs/{name}.yaml").read_text())
    settings = run["model"]["net"] | {"n_token": WORDS if "wt103" in name else BYTES}
    config = TransformerXLConfig(**settings)
    if smoke:
        small = TINY | {"n_token": 300, "cutoffs": (), "tie_projs": (), "div_val": 1}
        return Training(replace(config, **small), 6, 2)
    data = run["data"] | PUBLISHED[name]
    return Training(config, data["tgt_len"], data["batch_size"])


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
    small, count = torch.ones(9, device=DEVICE), 1000
    best = min(host_seconds_of(lambda: [small + small for _ in range(count)]) for _ in range(9))
    yield {"seconds per launch": best / count}


def measure_speed(smoke: bool, ends_at: float) -> Findings:
    """Measure training of the published networks: forward, backward, update."""
    for kernel in ("sdpa", "matmul"):
        for name in PUBLISHED:
            yield measure_training(name, kernel, smoke, ends_at)


def measure_training(
    name: str, kernel: str, smoke: bool, ends_at: float, seconds: float = 4.0
) -> dict[str, Any]:
    training = load_published(name, smoke)
    about = {"config": name, "kernel": kernel}
    return try_in_time(ends_at, about, time_ours, training, kernel, 0.2 if smoke else seconds)


def measure_peers(smoke: bool, ends_at: float) -> Findings:
    """Measure the same step of enwik8_base with each other implementation that is installed."""
    config, tgt_len, batch_size = load_published("paper/enwik8_base", smoke)
    fields = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "dropout")
    sizes = {name: getattr(config, name) for name in fields}
    case = Case("enwik8_base", sizes, batch_size, tgt_len, config.mem_len, trains=True)
    missing = contestants.find_missing()
    for name in contestants.PACKAGES:
        about = {"config": "enwik8_base", "peer": name}
        if name in missing:
            yield about | {"not installed": missing[name]}
        else:
            yield try_in_time(ends_at, about, time_peer, name, case, 0.2 if smoke else 4.0)


def time_ours(training: Training, kernel: str, seconds: float) -> dict[str, Any]:
    """Time steps, with fewer rows where memory is short."""
    while True:
        with suppress(torch.OutOfMemoryError):
            rate = time_steps(make_step(training, kernel), training, seconds)
            # None with an adaptive softmax.
            flops = count_flops(training.config, training.tgt_len)
            per_second = {"flops_per_second": rate["tokens_per_second"] * flops} if flops else {}
            return rate | per_second
        if training.batch_size == 1:
            raise MemoryError("one row does not fit into the memory of this GPU")
        training = training._replace(batch_size=-(-training.batch_size // 2))
        torch.cuda.empty_cache()


def make_network(training: Training, kernel: str = "sdpa") -> TransformerXL:
    torch.manual_seed(0)
    with torch.device(DEVICE):
        return TransformerXL(replace(training.config, kernel=kernel))


def make_step(
    training: Training, kernel: str = "sdpa", compiles: bool = False
) -> Callable[[], Tensor]:
    """Return a function that takes a training step under bf16 autocast, and returns the loss."""
    net, memory = make_network(training, kernel).train(), None
    if compiles:
        # Here, because importing Lightning takes half a minute where transformers is installed.
        from txl_lightning.training.segments import compile_in_place

        compile_in_place(net)
    # As in training with LanguageModel: an adaptive softmax reads targets on the host.
    device = "cpu" if net.head.reads_targets else DEVICE

    def compute_nats(tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nonlocal memory
        nats_BL, memory = net.loss(tokens_BL, targets_BL.to(device), memory)
        return nats_BL

    return update_with(compute_nats, net.parameters(), training)


def time_peer(name: str, case: Case, seconds: float) -> dict[str, Any]:
    with torch.device(DEVICE):
        peer = contestants.make_contestant(name, case, None)
    training = Training(case.config, case.tgt_len, case.rows)
    step = update_with(peer, peer.net.train().parameters(), training)
    return time_steps(step, training, seconds)


def update_with(
    compute_nats: Callable[[Tensor, Tensor], Tensor],
    parameters: Iterable[nn.Parameter],
    training: Training,
) -> Callable[[], Tensor]:
    """Return a function that takes one step of Adam on random tokens, and returns its loss."""
    weights = list(parameters)
    optimizer = torch.optim.Adam(weights, lr=1e-5, fused=DEVICE == "cuda")
    # Log-uniform ids, as frequent as Zipf says, matter to an adaptive softmax.
    n_token = training.config.n_token
    ids_BT = (n_token ** torch.rand(training.batch_size, training.tgt_len + 1)).long()
    ids_BT = ids_BT.clamp(max=n_token - 1)
    tokens_BL, targets_BL = ids_BT[:, :-1].to(DEVICE), ids_BT[:, 1:]
    if training.config.n_token == BYTES:
        targets_BL = targets_BL.to(DEVICE)

    def step() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = compute_nats(tokens_BL, targets_BL).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 0.25)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step


def time_steps(step: Callable[[], Tensor], training: Training, seconds: float) -> dict[str, Any]:
    """Return the speed of steps that follow until about so many seconds are over."""
    # Until the memory is full and everything is compiled.
    for _ in range(2 + -(-training.config.mem_len // training.tgt_len)):
        loss = step()
    if DEVICE == "cuda":
        torch.cuda.reset_peak_memory_stats()
    host = statistics.median(host_seconds_of(step) for _ in range(5))
    count = max(int(seconds / seconds_of(step)), 3)
    each = seconds_of(lambda: [step() for _ in range(count)]) / count
    return {
        "tokens_per_second": training.batch_size * training.tgt_len / each,
        "batch_size": training.batch_size,
        "seconds_per_step": each,
        "host_seconds_per_step": host,
        "steps": count,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "right": bool(loss.isfinite()),
    }


@torch.inference_mode()
def measure_inference(smoke: bool, ends_at: float) -> Findings:
    """Measure evaluation and decoding of enwik8_base in bfloat16, as evaluate and generate do."""
    training = load_published("paper/enwik8_base", smoke)
    net = make_network(training).eval().to(torch.bfloat16 if DEVICE == "cuda" else torch.float32)
    reader = make_reader(net)
    for task, batch_size, tgt_len in (("evaluation", 10, 128), ("decoding", 1, 1)):
        memory = reader.empty_memory(batch_size)
        tokens_BL = torch.randint(BYTES, (batch_size, tgt_len), device=DEVICE)

        def step(memory: Any = memory, tokens_BL: Tensor = tokens_BL) -> Any:
            return reader.loss(tokens_BL, tokens_BL, memory)[1]

        for _ in range(2 + -(-training.config.mem_len // tgt_len)):
            memory = step(memory)
        full = partial(step, memory)
        count = max(int((0.1 if smoke else 2.0) / seconds_of(full)), 3)
        each = seconds_of(lambda full=full, count=count: [full() for _ in range(count)]) / count
        host = statistics.median(host_seconds_of(full) for _ in range(5))
        rate = {"tokens_per_second": batch_size * tgt_len / each, "host_seconds_per_step": host}
        yield {"config": "paper/enwik8_base", "task": task} | rate
