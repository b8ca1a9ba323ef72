"""Measure a training step of each network of docs/networks.md, in turn, on a CPU.

    python -m experiments.speed.networks OUT.json

The settings are those of the page's table. A step: 16 rows of 64 tokens, forward and backward pass.
"""

import json
import re
import sys
import time
from pathlib import Path
from statistics import median

import torch
import yaml

from txl_lightning.imports import NETWORKS
from txl_lightning.machine import describe_environment
from txl_lightning.model.config import make_config

PAGE = Path(__file__).parents[2] / "docs" / "networks.md"
N_TOKEN = 4096
ROUNDS = 24
UNTIMED = 3


class Training:
    """A network and its memory, with the times of its steps in milliseconds."""

    def __init__(self, name: str, settings: dict) -> None:
        torch.manual_seed(0)
        named = {"n_token": N_TOKEN, "class_path": NETWORKS.get(name)}
        self.net = make_config(settings | named).build().train()
        self.memory = self.net.empty_memory(16)
        self.times: list[float] = []

    def take_step(self, ids_BT: torch.Tensor) -> None:
        start = time.perf_counter()
        nats_BL, self.memory = self.net.loss(ids_BT[:, :-1], ids_BT[:, 1:], self.memory)
        nats_BL.mean().backward()
        self.net.zero_grad(set_to_none=True)
        self.times.append(1e3 * (time.perf_counter() - start))


def read_settings() -> dict[str, dict]:
    """Return the settings of each network in the page's table."""
    rows = re.findall(r"^\| `(\w+)`[^|]*\| `(n_layer.*?)` \|", PAGE.read_text(), re.MULTILINE)
    return {name: yaml.safe_load(f"{{{settings}}}") for name, settings in rows}


def main() -> None:
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    settings = read_settings()
    trainings = {name: Training(name, settings[name]) for name in settings}
    ids_BT = torch.randint(N_TOKEN, (16, 65))
    for n_round in range(ROUNDS):
        names = list(trainings)
        for name in names if n_round % 2 else reversed(names):
            trainings[name].take_step(ids_BT)
    times = {name: each.times[UNTIMED:] for name, each in trainings.items()}
    milliseconds = {
        name: {"fastest": min(each), "median": median(each), "slowest": max(each)}
        for name, each in times.items()
    }
    result = {"settings": settings, "milliseconds": milliseconds}
    result["origin"] = describe_environment(torch.device("cpu"))
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
