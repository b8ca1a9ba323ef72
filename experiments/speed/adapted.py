"""How long does a segment take with a cache, and with a step, beside static evaluation?

    python -m experiments.speed.adapted [--threads 1] [--rounds 250] [--cache_len 20000]

The quick start's network with random weights; a segment of each kind in turn, in one process. The
cache is full. A training step is forward, backward and SGD of the same segment.
"""

import argparse
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import yaml

from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.model.adaptation import Adaptation, AdaptedReader, make_adapted_reader

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
N_TOKEN, SEGMENT = 4096, 64
Step = Callable[[torch.Tensor], Any]


def main() -> None:
    """Print the fastest time of each kind of segment, and how often static evaluation fits in."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=250)
    parser.add_argument("--cache_len", type=int, default=20_000)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    settings = yaml.safe_load(QUICKSTART.read_text())["model"]["net"]
    net = TransformerXL(TransformerXLConfig(**settings, n_token=N_TOKEN)).eval()
    kinds = dict(make_kinds(net, args.cache_len))
    times: dict[str, list[float]] = {kind: [] for kind in kinds}
    for _ in range(args.rounds):
        # As in a text, a few tokens are frequent.
        ids = (N_TOKEN ** torch.rand(1, SEGMENT + 1)).long() - 1
        for kind, step in kinds.items():
            began = time.perf_counter()
            step(ids)
            times[kind].append(time.perf_counter() - began)
    for kind, each in times.items():
        ratio = min(each) / min(times["static"])
        print(f"{kind:15} {1000 * min(each):6.2f} ms  {ratio:.2f} times static")


def make_kinds(net: TransformerXL, cache_len: int) -> Iterator[tuple[str, Step]]:
    """Yield each kind of segment, and a function that reads the next one, from its ids."""
    for kind, use in (
        ("static", Adaptation()),
        ("cache", Adaptation(cache_len=cache_len)),
        ("dynamic", Adaptation(rate=0.01)),
        ("cache, dynamic", Adaptation(cache_len=cache_len, rate=0.01)),
    ):
        yield kind, make_scorer(make_adapted_reader(net, use), cache_len if use.cache_len else 0)
    yield "training step", make_training(net)


def make_scorer(reader: Any, n_before: int) -> Step:
    memory = reader.empty_memory(1)
    ids = torch.randint(N_TOKEN, (1, n_before))
    with torch.no_grad():
        for start, stop in pairwise(range(0, n_before + 1, 500)):
            _, memory = reader.hidden(ids[:, start:stop], memory)

    @torch.no_grad()
    def score(ids: torch.Tensor) -> None:
        nonlocal memory
        _, memory = reader.loss(ids[:, :-1], ids[:, 1:], memory)

    return score


def make_training(net: TransformerXL) -> Step:
    net = AdaptedReader(net, Adaptation(rate=0.01)).net
    optimizer, memory = torch.optim.SGD(net.parameters(), lr=0.01), net.empty_memory(1)

    def train(ids: torch.Tensor) -> None:
        nonlocal memory
        nats, memory = net.loss(ids[:, :-1], ids[:, 1:], memory)
        nats.mean().backward()
        optimizer.step()
        optimizer.zero_grad()

    return train


if __name__ == "__main__":
    main()
