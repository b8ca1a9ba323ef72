"""How fast are other implementations, as a user would run them? A part of check.py.

Each is compiled, and also captured as a CUDA graph, so that its speed is not the host's. Sizes are
those of enwik8_base. x-transformers has a memory. transformers' Llama has none, and sees the tokens
of its segment: 512, or 1,024. With a window (Mistral) each token sees the 512 before it.
"""

import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from experiments.gpu.operations import PEAK
from experiments.gpu.parts import DEVICE, Findings, try_in_time
from experiments.gpu.speed import BASE, draw_batch, load_published, time_steps, update_with
from experiments.speed import contestants
from experiments.speed.cases import Case
from txl_lightning.training import cuda_graph

SEGMENTS = {"x-transformers": 1, "Llama": 1, "Llama, longer": 2, "Llama with a window": 2}
"""Peers, and how many segments of ours are one of theirs, in as many fewer rows."""


class Llama:
    """transformers' Llama, or Mistral, which is Llama with a window; both attend by sdpa."""

    memory = ()
    has_memory = False

    def __init__(self, case: Case, window: int | None = None) -> None:
        theirs = import_module("transformers")
        config = case.config
        sizes = {
            "vocab_size": config.n_token, "hidden_size": config.d_model,
            "num_hidden_layers": config.n_layer, "num_attention_heads": config.n_head,
            "num_key_value_heads": config.n_head, "head_dim": config.head_width,
            # It has three matrices where ours has two.
            "intermediate_size": round(config.inner_width / 12) * 8, "use_cache": False,
            "max_position_embeddings": case.tgt_len, "tie_word_embeddings": True,
        }  # fmt: skip
        options = {"attn_implementation": "sdpa"}
        if window is None:
            self.net = theirs.LlamaForCausalLM(theirs.LlamaConfig(**sizes, **options))
        else:
            sizes |= {"sliding_window": window}
            self.net = theirs.MistralForCausalLM(theirs.MistralConfig(**sizes, **options))

    def __call__(self, tokens_BL: Tensor, targets_BL: Tensor) -> Tensor:
        logits_BLV = self.net(input_ids=tokens_BL).logits
        return F.cross_entropy(logits_BLV.float().mT, targets_BL, reduction="none")


def make_peer(name: str, case: Case) -> Any:
    """Return a peer, with rows and segments as SEGMENTS says, on the device."""
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    with torch.device(DEVICE):
        if name == "x-transformers":
            return contestants.XTransformers(case)
        window = case.tgt_len // 2 if name == "Llama with a window" else None
        return Llama(case, window)


def measure_peers(smoke: bool, ends_at: float) -> Findings:
    """Measure the step of enwik8_base with each peer that is installed, in each way."""
    for name, n_segment in SEGMENTS.items():
        about = {"config": BASE, "peer": name}
        module = "x_transformers" if name == "x-transformers" else "transformers"
        if not contestants.has(module):
            yield about | {"not installed": module}
            continue
        case = load_published(BASE, smoke)
        case = replace(case, rows=case.rows // n_segment, tgt_len=case.tgt_len * n_segment)
        peer = make_peer(name, case)
        yield try_in_time(ends_at, about | {"way": "plain"}, time_peer, peer, case, smoke)
        # A CPU has no graphs, and compiles for minutes.
        if DEVICE == "cuda":
            peer.net = torch.compile(peer.net)
            for way, make in {"compiled": make_step, "graphs, compiled": capture_step}.items():
                inputs = (peer, case, smoke, make)
                yield try_in_time(ends_at, about | {"way": way}, time_peer, *inputs)


def make_step(peer: Any, case: Case) -> Callable[[], Tensor]:
    return update_with(peer, peer.net.parameters(), case)


def time_peer(
    peer: Any, case: Case, smoke: bool, make: Callable[[Any, Case], Callable] = make_step
) -> dict[str, Any]:
    """Return the speed of training steps, and their share of peak."""
    if make is make_step and not hasattr(peer, "products"):
        peer.products = count_products(peer, case)
    found = time_steps(make(peer, case), case, 0.2 if smoke else 4.0)
    return found | {"share_of_peak": peer.products / found["seconds_per_step"] / PEAK}


def count_products(peer: Any, case: Case) -> int:
    """Return the operations that torch counts in a step of a peer whose memory is full."""
    step = make_step(peer, case)
    for _ in range(-(-case.mem_len // case.tgt_len)):
        step()
    with FlopCounterMode(display=False) as counter:
        step()
    return counter.get_total_flops()


def capture_step(peer: Any, case: Case, lr: float = 1e-5) -> Callable[..., Tensor]:
    """Return a training step whose forward and backward pass are one CUDA graph.

    It takes tokens_BL and targets_BL of the same shape, or uses those of the capture again.
    """
    weights = [*peer.net.parameters()]
    optimizer = torch.optim.Adam(weights, lr=lr, fused=DEVICE == "cuda")
    static = [each.clone() for each in draw_batch(case)]
    for _ in range(1 + -(-case.mem_len // case.tgt_len)):
        # Until the memory is full: its shapes no longer change.
        with torch.no_grad(), torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            peer(*static)
    states = [each.detach().clone() for each in peer.memory or ()]

    def compute() -> list[Tensor]:
        for weight in weights:
            # The graph makes the gradients, always in the same place.
            weight.grad = None
        peer.memory = [*states]
        with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
            loss = peer(*static).mean()
        loss.backward()
        for state, after in zip(states, peer.memory or (), strict=True):
            state.copy_(after.detach())
        return [loss.detach(), *(weight.grad for weight in weights if weight.grad is not None)]

    cuda_graph.CudaGraph.warm_up(compute)
    graph = cuda_graph.CudaGraph(compute)

    def step(*batch: Tensor) -> Tensor:
        for kept, given in zip(static, batch, strict=False):
            kept.copy_(given)
        graph.replay()
        nn.utils.clip_grad_norm_(weights, 0.25)
        optimizer.step()
        return graph.outputs[0].clone()

    return step


def take_step(
    peer: Any, optimizer: torch.optim.Optimizer, tokens_BL: Tensor, targets_BL: Tensor
) -> Tensor:
    """Take a training step without graphs."""
    with torch.autocast(DEVICE, torch.bfloat16, cache_enabled=False):
        loss = peer(tokens_BL, targets_BL).mean()
    loss.backward()
    nn.utils.clip_grad_norm_(peer.net.parameters(), 0.25)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()
