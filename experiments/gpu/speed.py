"""How fast is it? Parts of check.py: each yields its findings, and begins nothing after `ends_at`.

B rows   L tokens in the segment   T = L + 1
"""

import math
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
import yaml
from torch import Tensor, nn
from torch.profiler import ProfilerActivity, profile

from experiments.gpu.candidates import use_kernel
from experiments.gpu.parts import DEVICE, NO_TIME, RACED, ROOT, Findings
from txl_lightning import TransformerXL, TransformerXLConfig

PAPER = {
    "enwik8_base": 256, "wt103_base": 267_735, "enwik8_large": 256, "wt103_large": 267_735,
}  # fmt: skip
"""Configs of configs/paper/ and the sizes of their vocabularies."""
TINY = {"n_layer": 1, "n_head": 2, "d_model": 8, "d_head": 4, "d_inner": 16, "mem_len": 6}
WAYS = {
    "bf16-mixed": {"precision": "bf16-mixed"},
    "16-mixed": {"precision": "16-mixed"},
    "compile": {"precision": "bf16-mixed", "compile": True},
    "fsdp2": {"precision": "bf16-mixed", "strategy": "fsdp2"},
}
"""Settings with which a user may train."""
ON_CPU = ("bf16-mixed", "fsdp2")  # those that a CPU has, or does not need a minute for


class Training(NamedTuple):
    """A published network and its batches."""

    config: TransformerXLConfig
    tgt_len: int
    batch_size: int
    kernel: str = "auto"


def load_published(name: str, smoke: bool) -> Training:
    """Return the network and the batches of a config; for a smoke test, tiny ones."""
    run = yaml.safe_load((ROOT / f"configs/paper/{name}.yaml").read_text())
    config = TransformerXLConfig(**run["model"]["net"] | {"n_token": PAPER[name]})
    if smoke:
        small = TINY | {"n_token": 300, "cutoffs": (), "tie_projs": (), "div_val": 1}
        return Training(replace(config, **small), 6, 2)
    return Training(config, run["data"]["tgt_len"], run["data"]["batch_size"])


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def seconds_of(run: Callable[[], Any]) -> float:
    synchronize()
    began = time.perf_counter()
    run()
    synchronize()
    return time.perf_counter() - began


def measure_peak(smoke: bool, ends_at: float) -> Findings:
    """Measure what products of large square matrices reach, in operations a second."""
    size, rounds = (256, 3) if smoke else (8192, 30)
    for dtype in (torch.bfloat16, torch.float32):
        a = torch.randn(size, size, device=DEVICE).to(dtype)
        best = min(seconds_of(lambda a=a: a @ a) for _ in range(rounds))
        yield {"dtype": str(dtype), "flops_per_second": 2 * size**3 / best}


def measure_speed(smoke: bool, ends_at: float) -> Findings:
    """Measure training of the published networks with each kernel: forward, backward, update."""
    [peak, *_] = [found["flops_per_second"] for found in measure_peak(smoke, ends_at)]
    for name in list(PAPER)[: 2 if smoke else None]:
        published = load_published(name, smoke)
        for kernel in RACED:
            about = {"config": name, "kernel": kernel, "tgt_len": published.tgt_len}
            about["dropatt"] = published.config.dropatt
            if time.monotonic() > ends_at:
                yield about | NO_TIME
                continue
            training = published._replace(kernel=kernel)
            found = try_to(time_ours, training, 0.2 if smoke else 4.0)
            if "flops_per_second" in found:
                found["share_of_peak"] = found["flops_per_second"] / peak
            yield about | found


def measure_peers(smoke: bool, ends_at: float) -> Findings:
    """Measure the same step of enwik8_base with each other implementation that is installed."""
    from experiments.speed import contestants
    from experiments.speed.cases import Case

    config, tgt_len, batch_size, _ = load_published("enwik8_base", smoke)
    fields = ("n_token", "n_layer", "n_head", "d_model", "d_head", "d_inner", "dropout")
    sizes = {name: getattr(config, name) for name in fields}
    case = Case("enwik8_base", sizes, batch_size, tgt_len, config.mem_len, trains=True)
    missing = contestants.find_missing()
    for name in contestants.PACKAGES:
        about = {"config": "enwik8_base", "peer": name}
        if name in missing:
            yield about | {"not installed": missing[name]}
        elif time.monotonic() > ends_at:
            yield about | NO_TIME
        else:
            yield about | try_to(time_peer, name, case, 0.2 if smoke else 4.0)


def try_to(measure: Callable[..., dict], *arguments: Any) -> dict[str, Any]:
    """Return what a function finds, or its error as a finding that is not right."""
    try:
        return measure(*arguments)
    # Other packages fail by errors of any class; none may end the measurements of the rest.
    except Exception as error:
        return {"right": False, "error": f"{type(error).__name__}: {error}"[:300]}


def time_ours(training: Training, seconds: float) -> dict[str, Any]:
    """Time steps, with fewer rows where memory is short."""
    torch._dynamo.reset()
    while True:
        with suppress(torch.OutOfMemoryError):
            rate = time_steps(make_step(training), training, seconds)
            flops = rate["tokens_per_second"] * training.config.flops_per_token(training.tgt_len)
            return rate | {"flops_per_second": flops}
        if training.batch_size == 1:
            raise MemoryError("one row does not fit into the memory of this GPU")
        training = training._replace(batch_size=-(-training.batch_size // 2))
        torch.cuda.empty_cache()


def make_step(training: Training) -> Callable[[], Tensor]:
    """Return a function that takes a training step under bf16 autocast, and returns the loss."""
    torch.manual_seed(0)
    with torch.device(DEVICE):
        net = TransformerXL(training.config).train()
    use_kernel(net, training.kernel)
    memory = None

    def compute_nats(tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nonlocal memory
        nats_BL, memory = net.loss(tokens_BL, targets_BL, memory)
        return nats_BL

    return update_with(compute_nats, net.parameters(), training)


def time_peer(name: str, case: Any, seconds: float) -> dict[str, Any]:
    from experiments.speed.contestants import make_contestant

    with torch.device(DEVICE):
        peer = make_contestant(name, case, None)
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
    ids_BT = ids_BT.clamp(max=n_token - 1).to(DEVICE)

    def step() -> Tensor:
        with torch.autocast(DEVICE, torch.bfloat16):
            loss = compute_nats(ids_BT[:, :-1], ids_BT[:, 1:]).mean()
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
    count = max(int(seconds / seconds_of(step)), 3)
    each = seconds_of(lambda: [step() for _ in range(count)]) / count
    return {
        "batch_size": training.batch_size,
        "steps": count,
        "tokens_per_second": training.batch_size * training.tgt_len / each,
        "peak_memory_bytes": torch.cuda.max_memory_allocated() if DEVICE == "cuda" else 0,
        "right": bool(loss.isfinite()),
    }


def profile_steps(smoke: bool, ends_at: float) -> Findings:
    """Count what ten steps of enwik8_base start on the device, and how long it is busy."""
    activities = [ProfilerActivity.CUDA if DEVICE == "cuda" else ProfilerActivity.CPU]
    step, count = make_step(load_published("enwik8_base", smoke)), 10
    for _ in range(3):
        step()
    with profile(activities=activities) as profiler:
        seconds = seconds_of(lambda: [step() for _ in range(count)])
    events = [each for each in profiler.events() if DEVICE in str(each.device_type).lower()]
    busy = sum(each.time_range.elapsed_us() for each in events) / 1e6
    found = {"config": "enwik8_base", "kernels_per_step": len(events) / count}
    yield found | {"seconds_per_step": seconds / count, "busy_share": busy / seconds}


def train_in_each_way(smoke: bool, ends_at: float) -> Findings:
    """Train enwik8_base with LanguageModel under a Trainer, in each way that a user may choose."""
    training = load_published("enwik8_base", smoke)
    for name in ON_CPU if DEVICE == "cpu" else WAYS:
        if time.monotonic() > ends_at:
            yield {"way": name} | NO_TIME
        else:
            with tempfile.TemporaryDirectory() as folder:
                yield {"way": name} | try_to(
                    partial(train_with_lightning, **WAYS[name]),
                    training,
                    Path(folder),
                    6 if smoke else 60,
                )


def train_with_lightning(
    training: Training,
    folder: Path,
    steps: int,
    precision: str,
    compile: bool = False,
    strategy: str = "auto",
) -> dict[str, Any]:
    """Return the speed of some steps on random letters after the first third of them."""
    from lightning.pytorch import Callback, Trainer

    from txl_lightning import CorpusDataModule, LanguageModel, OptimConfig
    from txl_lightning.training import fsdp  # noqa: F401 (it registers its strategy)

    class Clock(Callback):
        times, losses = [], []

        def on_train_batch_end(self, *inputs: Any) -> None:
            if (batch_idx := inputs[-1]) in (steps // 3, steps - 1):
                synchronize()
                self.times.append((batch_idx, time.perf_counter()))
                self.losses.append(inputs[2]["loss"].item())

    text, count = folder / "letters.txt", training.batch_size * training.tgt_len
    text.write_bytes(bytes(torch.randint(97, 123, (2 * count * steps,)).tolist()))
    data = CorpusDataModule(
        path=str(text), vocab="bytes", data_dir=str(folder), tgt_len=training.tgt_len,
        batch_size=training.batch_size,
    )  # fmt: skip
    optim = OptimConfig(lr=1e-5, schedule="constant")
    model = LanguageModel(training.config, optim, compile=compile)
    use_kernel(model.net, training.kernel)
    quiet = ("logger", "enable_progress_bar", "enable_model_summary", "enable_checkpointing")
    trainer = Trainer(
        accelerator="auto", devices=1, precision=precision, strategy=strategy, max_steps=steps,
        max_epochs=-1, limit_val_batches=0, gradient_clip_val=0.25, use_distributed_sampler=False,
        callbacks=[Clock()], default_root_dir=folder, **dict.fromkeys(quiet, False),
    )  # fmt: skip
    trainer.fit(model, datamodule=data)
    (first, began), (last, ended) = Clock.times
    return {
        "tokens_per_second": count * (last - first) / (ended - began),
        "right": all(map(math.isfinite, Clock.losses)),
    }
