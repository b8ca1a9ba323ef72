"""How much memory does the loss of a large vocabulary take, and how long?

    python experiments/vocabulary/loss_memory.py [--n_token 267735] [--tokens 2048]

Forward and backward of the loss alone, each kind in a process of its own: the plain softmax at once
and by chunks, torch's own linear_cross_entropy, the adaptive softmax at once and by chunks. Prints
the rise of the peak resident memory over that of weights and their gradients, and the seconds of
the faster of two passes, as JSON.
"""

import argparse
import json
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from txl_lightning import TransformerXL, TransformerXLConfig

CHUNK = 128
KINDS = {
    "plain": {},
    "plain by chunks": {"loss_chunk_size": CHUNK},
    "torch's linear_cross_entropy": {},
    "adaptive": {"cutoffs": (20_000, 40_000, 200_000)},
    "adaptive by chunks": {"cutoffs": (20_000, 40_000, 200_000), "loss_chunk_size": CHUNK},
    "adaptive, div_val 4": {"cutoffs": (20_000, 40_000, 200_000), "div_val": 4},
}


def by_torch(head: nn.Module) -> Callable[[Tensor, Tensor], Tensor]:
    """Torch's own loss by chunks of as many tokens."""
    options = nn.LinearCrossEntropyOptions(batch_chunk_size=CHUNK, chunking_method=None)
    return lambda h_YD, target_Y: F.linear_cross_entropy(
        h_YD, head.out.weight, target_Y, linear_bias=head.out.bias, options=options
    )


def peak() -> float:
    """Most memory that this process has held, in MB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def measure(kind: str, n_token: int, count: int, width: int) -> dict[str, float]:
    """Peak and seconds of one kind."""
    config = TransformerXLConfig(n_token=n_token, n_layer=1, n_head=1, d_model=width, **KINDS[kind])
    head = TransformerXL(config).head
    loss = by_torch(head) if kind.startswith("torch") else head.nats
    h_YD = torch.randn(count, width, requires_grad=True)
    # Words are as frequent as their rank says.
    target_Y = (n_token ** torch.rand(count)).long() - 1
    for parameter in head.parameters():
        parameter.grad = torch.ones_like(parameter)
    before, seconds = peak(), []
    for _ in range(2):
        began = time.perf_counter()
        loss(h_YD, target_Y).mean().backward()
        seconds.append(time.perf_counter() - began)
    return {"peak_MB": round(peak() - before), "seconds": round(min(seconds), 2)}


def main() -> None:
    """Measure each kind in a new process."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--n_token", type=int, default=267_735)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--width", type=int, default=410)
    parser.add_argument("--kind")
    given = parser.parse_args()
    if given.kind:
        print(json.dumps(measure(given.kind, given.n_token, given.tokens, given.width)))
        return
    sizes = {"n_token": given.n_token, "tokens": given.tokens, "width": given.width}
    for kind in KINDS:
        options = [f"--{name}={value}" for name, value in {**sizes, "kind": kind}.items()]
        run = subprocess.run([sys.executable, __file__, *options], capture_output=True, check=True)
        print(kind, run.stdout.decode().strip(), flush=True)
    machine = {"torch": torch.__version__, "processor": platform.machine(), "chunk": CHUNK}
    print(json.dumps(sizes | machine | {"threads": torch.get_num_threads()}))


if __name__ == "__main__":
    main()
