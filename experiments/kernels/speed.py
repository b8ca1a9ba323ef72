"""Which kernel trains fastest here?

    python experiments/kernels/speed.py [--mem_len 128] [--tgt_len 64] [--batch_size 16]

One training step of the quickstart network with each kernel in turn, many times; prints the median
and the fastest in tokens per second as JSON.
"""

import argparse
import json
import platform
import statistics
import time
from dataclasses import replace
from pathlib import Path

import torch
import yaml

from txl_lightning import Memory, TransformerXL, TransformerXLConfig

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"


class Contestant:
    """A network with one kernel, and the memory it has got to."""

    def __init__(self, config: TransformerXLConfig, batch_size: int, tgt_len: int) -> None:
        self.net = TransformerXL(config)
        self.optimizer = torch.optim.AdamW(self.net.parameters(), lr=1e-4)
        self.tokens = torch.randint(config.n_token, (batch_size, tgt_len + 1))
        self.memory: Memory | None = None

    def step(self) -> float:
        """Seconds of one training step."""
        began = time.perf_counter()
        tokens, targets = self.tokens[:, :-1], self.tokens[:, 1:]
        nats, self.memory = self.net.loss(tokens, targets, self.memory)
        self.optimizer.zero_grad()
        nats.mean().backward()
        self.optimizer.step()
        return time.perf_counter() - began


def main() -> None:
    """Time the kernels in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kernels", nargs="+", default=["per_head", "matmul", "sdpa"])
    parser.add_argument("--mem_len", type=int, default=128)
    parser.add_argument("--tgt_len", type=int, default=64)
    parser.add_argument("--batch_size", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=30)
    given = parser.parse_args()
    net = yaml.safe_load(CONFIG.read_text())["model"]["net"]
    config = TransformerXLConfig(**net | {"mem_len": given.mem_len})
    contestants = {
        kernel: Contestant(replace(config, kernel=kernel), given.batch_size, given.tgt_len)
        for kernel in given.kernels
    }
    seconds: dict[str, list[float]] = {kernel: [] for kernel in given.kernels}
    for _ in range(given.rounds):
        for kernel, contestant in contestants.items():
            seconds[kernel].append(contestant.step())
    tokens = given.batch_size * given.tgt_len
    result = {
        kernel: {
            "median_tokens_per_second": round(tokens / statistics.median(times)),
            "best_tokens_per_second": round(tokens / min(times)),
        }
        for kernel, times in seconds.items()
    }
    machine = {"processor": platform.processor() or platform.machine(), "torch": torch.__version__}
    print(
        json.dumps(vars(given) | machine | {"threads": torch.get_num_threads()} | result, indent=1)
    )


if __name__ == "__main__":
    main()
