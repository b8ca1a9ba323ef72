"""How much memory does the loss of a large vocabulary take, and how long?

    python -m experiments.vocabulary.loss_memory [--n_token 267735] [--tokens 2048]

Forward and backward of the loss alone, each kind in a process of its own: the plain softmax at once
and by chunks, torch's own linear_cross_entropy, the adaptive softmax at once and by chunks. Prints
the rise of the peak resident memory over that of weights and their gradients, and the seconds of
the faster of two passes, as JSON.
"""

import argparse
import json
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.machine import describe_environment, peak_memory

CHUNK = 128
ADAPTIVE = {"cutoffs": (20_000, 40_000, 200_000)}
KINDS = {
    "plain": {},
    "plain by chunks": {"loss_chunk_size": CHUNK},
    "torch's linear_cross_entropy": {},
    "adaptive": ADAPTIVE,
    "adaptive by chunks": ADAPTIVE | {"loss_chunk_size": CHUNK},
    "adaptive, div_val 4": ADAPTIVE | {"div_val": 4},
}
CPU = torch.device("cpu")


def main() -> None:
    """Measure each kind in a new process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n_token", type=int, default=267_735)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=410)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS))
    args = parser.parse_args()
    sizes = {"n_token": args.n_token, "tokens": args.tokens, "width": args.width}
    # A process starts with the peak of its parent, and this one has only imported torch.
    how = {"mp_context": get_context("spawn"), "max_tasks_per_child": 1}
    with ProcessPoolExecutor(1, **how) as pool:
        peaks = {kind: pool.submit(measure, kind, **sizes).result() for kind in args.only}
    print(json.dumps({"kinds": peaks, "chunk": CHUNK} | sizes | describe_environment(CPU)))


def measure(kind: str, n_token: int, tokens: int, width: int) -> dict[str, float]:
    """Return the rise of the peak and the seconds of one kind."""
    config = TransformerXLConfig(n_token=n_token, n_layer=1, n_head=1, d_model=width, **KINDS[kind])
    head = TransformerXL(config).head
    h_YD = torch.randn(tokens, width, requires_grad=True)
    # Words are as frequent as their rank says.
    target_Y = (n_token ** torch.rand(tokens)).long() - 1
    for parameter in head.parameters():
        parameter.grad = torch.ones_like(parameter)
    loss, seconds = torch_nats if kind.startswith("torch") else type(head).nats, []
    # The first checkpoint of a process imports torch._dynamo: 170 MB that are not the loss's.
    checkpoint(torch.exp, torch.ones(1), use_reentrant=False)
    before = peak_memory(CPU)
    for _ in range(2):
        began = time.perf_counter()
        loss(head, h_YD, target_Y).mean().backward()
        seconds.append(time.perf_counter() - began)
    rise = (peak_memory(CPU) - before) / 2**20
    return {"peak_MB": round(rise), "seconds": round(min(seconds), 2)}


def torch_nats(head: nn.Module, h_YD: Tensor, target_Y: Tensor) -> Tensor:
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)
    weights = {"linear_bias": head.out.bias, "options": options}
    return F.linear_cross_entropy(h_YD, head.out.weight, target_Y, **weights)


if __name__ == "__main__":
    main()
