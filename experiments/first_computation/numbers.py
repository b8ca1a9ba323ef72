"""Fingerprints of the numbers that one process computes on two threads, as lines of JSON.

    python -m experiments.first_computation.numbers FIRST COUNT [fork]

A process computes the numbers in turn, beginning with one of its own, because only its first
vector function can be wrong; then it computes them again. With `fork`, the processes are children
of one that has imported everything and has computed nothing.
"""

import hashlib
import json
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from txl_lightning import TransformerXL, stream_nats
from txl_lightning.convert import load_original
from txl_lightning.generation.decoding import Sampling
from txl_lightning.model import EvalLengths
from txl_lightning.model.positions import sinusoids

GOLDEN = Path(__file__).parents[2] / "tests" / "golden" / "original" / "default.npz"
FUNCTIONS = (
    "acos", "asin", "atan", "cos", "erf", "erfc", "erfinv", "exp", "expm1", "log", "log1p", "log2",
    "log10", "rsqrt", "sigmoid", "sin", "sqrt", "tan", "tanh",
)  # fmt: skip
SIZE = 33_000  # elements of an argument; torch computes 2,048 and fewer on one thread

Numbers = Mapping[str, Callable[[], Tensor]]


def list_numbers() -> Numbers:
    """Return what is computed, after the network of the golden file has been built."""
    with np.load(GOLDEN) as file:
        arrays = {name: torch.from_numpy(file[name]) for name in file.files if name != "config"}
        args = json.loads(str(file["config"]))
    net = load_original({n[3:]: arrays[n] for n in arrays if n.startswith("sd.")}, args)
    ids = arrays["data"].long().flatten().repeat(4)
    numbers = {
        "nats": lambda: stream_nats(net, ids, batch_size=2, tgt_len=200, mem_len=100),
        "initial weights": lambda: flatten(draw_weights(net).parameters()),
        "training step": lambda: train_step(net, ids),
        "sines": lambda: sinusoids(torch.arange(260), 64),
        "samples": sample_tokens,
    }
    argument = torch.arange(1, SIZE + 1, dtype=torch.float64) / (SIZE + 1)
    for name in FUNCTIONS:
        numbers[name] = partial(getattr(torch, name), argument.float())
        numbers[f"{name} in float64"] = partial(getattr(torch, name), argument)
    return numbers


def flatten(tensors: Iterable[Tensor]) -> Tensor:
    return torch.cat([tensor.detach().flatten() for tensor in tensors])


def draw_weights(net: TransformerXL) -> TransformerXL:
    torch.manual_seed(1)
    return TransformerXL(net.config)


def train_step(net: TransformerXL, ids: Tensor) -> Tensor:
    """Return loss, gradients and weights of two steps of Adam, the first from random weights."""
    student = draw_weights(net).train()
    optimizer = torch.optim.Adam(student.parameters(), lr=1e-3)
    tensors, memory = [], student.empty_memory(2, EvalLengths(mem_len=100))
    for tokens_BL in ids.view(2, 300).split(150, dim=1):
        nats_BL, memory = student.loss(tokens_BL[:, :-1], tokens_BL[:, 1:], memory)
        optimizer.zero_grad()
        nats_BL.mean().backward()
        optimizer.step()
        gradients = [p.grad for p in student.parameters() if p.grad is not None]
        tensors += [nats_BL, *gradients, *student.parameters()]
    return flatten(tensors)


def sample_tokens() -> Tensor:
    logits_BV = torch.linspace(-3, 3, 4 * 8_250).view(4, -1).cos()
    use = Sampling(temperature=0.8, top_k=5_000, top_p=0.9, min_p=0.01)
    recent_BW = torch.arange(4)[:, None]
    return use.choose_tokens(logits_BV, recent_BW, torch.linspace(0.1, 0.9, 4)).double()


def print_line(index: int) -> None:
    """Print the fingerprint of each number, and its difference from the second computation."""
    torch.set_num_threads(2)
    numbers = list_numbers()
    names = list(numbers)
    start = index % len(names)
    order = names[start:] + names[:start]
    first, second = ({name: numbers[name]() for name in order} for _ in range(2))
    line = {}
    for name in order:
        bits = hashlib.sha256(first[name].numpy().tobytes()).hexdigest()
        line[name] = [bits, (first[name] - second[name]).abs().nan_to_num().max().item()]
    print(json.dumps(line), flush=True)


def main() -> None:
    """Print a line for each process."""
    warnings.simplefilter("ignore")
    first, count = int(sys.argv[1]), int(sys.argv[2])
    for index in range(first, first + count):
        if "fork" not in sys.argv[3:]:
            print_line(index)
        elif child := os.fork():
            os.waitpid(child, 0)
        else:
            print_line(index)
            os._exit(0)


if __name__ == "__main__":
    main()
