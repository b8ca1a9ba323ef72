"""How many bits per byte does a network need after equal minutes of training? A part of check.py.

Ours and peers of the size of enwik8_base read the same Python source as bytes, each in its fastest
way: compiled, and as CUDA graphs. One rate for all, not tuned. Each byte of other files is scored
after at least as many bytes as the segment, or its half where there is no memory.

B rows   L tokens in the segment
"""

import os
import sysconfig
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from math import isfinite, log
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from experiments.gpu import peers
from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import BASE, load_published, make_network, synchronize
from experiments.speed import contestants
from experiments.speed.cases import Case
from txl_lightning.model.reading import Reader

RATE = 3e-4
SECONDS = 45
N_SEGMENT = 8  # of the held-out text, in each row
Step = Callable[[Tensor, Tensor], Tensor]


def train_equal_time(smoke: bool, ends_at: float) -> Findings:
    """Train ours and each peer that is installed for as long; yield bits per byte."""
    text = read_python_source(1 << (14 if smoke else 24))
    for name in ("ours", *peers.SEGMENTS):
        about = {"config": BASE, "network": name}
        module = "x_transformers" if name == "x-transformers" else "transformers"
        if name != "ours" and not contestants.has(module):
            yield about | {"not installed": module}
            continue
        yield try_in_time(ends_at, about, train_and_score, name, text, smoke)


def read_python_source(n_byte: int) -> Tensor:
    """Return the bytes of the files of Python's library, one after another."""
    found = bytearray()
    for folder, names, files in os.walk(sysconfig.get_path("stdlib")):
        names[:] = sorted({*names} - {"site-packages"})
        for name in sorted(file for file in files if file.endswith(".py")):
            found += Path(folder, name).read_bytes()
        if len(found) >= n_byte:
            break
    return torch.frombuffer(found[:n_byte], dtype=torch.uint8)


def train_and_score(name: str, text: Tensor, smoke: bool) -> dict[str, Any]:
    """Train for SECONDS on nine tenths of a text; score the last one."""
    case = load_published(BASE, smoke)
    n_segment = peers.SEGMENTS.get(name, 1)
    case = replace(case, rows=case.rows // n_segment, tgt_len=case.tgt_len * n_segment)
    n_train = len(text) * 9 // 10
    step, score = make_ours(case) if name == "ours" else make_peer(name, case)
    batches = split_batches(text[:n_train], case)
    for _ in range(3):
        step(*next(batches))
    synchronize()
    began = time.monotonic()
    count = 0
    while (seconds := time.monotonic() - began) < (0.5 if smoke else SECONDS):
        step(*next(batches))
        count += 1
        # So that the host does not run ahead of the clock.
        synchronize()
    nats = score(text[n_train:])
    return {
        "tokens_per_second": count * case.tokens / seconds,
        "bits_per_byte": nats / log(2),
        "seconds": seconds,
        "right": isfinite(nats),
    }


def split_batches(text: Tensor, case: Case, stride: int | None = None) -> Iterator[tuple]:
    """Yield tokens_BL and targets_BL of rows that continue, again and again."""
    row_len = len(text) // case.rows
    rows_BT = text[: row_len * case.rows].view(case.rows, row_len).long().to(DEVICE)
    while True:
        for start in range(0, row_len - case.tgt_len, stride or case.tgt_len):
            both = rows_BT[:, start : start + case.tgt_len + 1]
            yield both[:, :-1], both[:, 1:]


def make_ours(case: Case) -> tuple[Step, Callable[[Tensor], float]]:
    """Return a training step of Transformer-XL, and a function that scores a text."""
    net = called = make_network(case).train()
    if DEVICE == "cuda":
        from txl_lightning.training.cuda_graph import CapturedNetwork, CapturedSegment
        from txl_lightning.training.segments import compile_in_place

        compile_in_place(net)
        called = CapturedNetwork(net, CapturedSegment)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=DEVICE == "cuda")
    memory = net.empty_memory(case.rows)

    def step(tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        nonlocal memory
        doc_pos_BL = torch.full_like(tokens_BL, 1 << 20)
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            nats_BL, memory = called.loss(tokens_BL, targets_BL, memory, doc_pos_BL, 0)
            loss = nats_BL.mean()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.25)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    return step, partial(score_ours, net, case)


@torch.inference_mode()
def score_ours(net: nn.Module, case: Case, text: Tensor) -> float:
    reader = Reader(net.eval())
    memory = None
    nats = []
    for _, (tokens_BL, targets_BL) in zip(
        range(N_SEGMENT), split_batches(text, case), strict=False
    ):
        nats_BL, memory = reader.loss(tokens_BL, targets_BL, memory)
        nats.append(nats_BL.mean())
    return torch.stack(nats[1:]).mean().item()


def make_peer(name: str, case: Case) -> tuple[Step, Callable[[Tensor], float]]:
    peer = peers.make_peer(name, case)
    if DEVICE == "cuda":
        peer.net = torch.compile(peer.net)
        step = peers.capture_step(peer, case, RATE)
    else:
        step = partial(peers.take_step, peer, torch.optim.Adam(peer.net.parameters(), lr=RATE))
    return step, partial(score_peer, peer, case)


@torch.no_grad()
def score_peer(peer: Any, case: Case, text: Tensor) -> float:
    """Return the nats of the tokens that have seen a memory, or half a segment."""
    stride = case.tgt_len if peer.has_memory else case.tgt_len // 2
    nats = []
    for _, batch in zip(range(N_SEGMENT), split_batches(text, case, stride), strict=False):
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            nats.append(peer(*batch)[:, -stride:].mean())
    return torch.stack(nats[1:]).mean().item()
