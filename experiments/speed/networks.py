"""Measure a training step of each recipe of configs/networks/, in turn, on a CPU.

    python -m experiments.speed.networks OUT.json

A step reads 1,024 tokens: forward and backward pass in float32, without the optimizer.
"""

import json
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
import yaml

from experiments.state_bytes.run import NETS
from txl_lightning.imports import NETWORKS
from txl_lightning.machine import describe_environment
from txl_lightning.model.config import CLASS, make_config
from txl_lightning.model.contract import keep_gradient, stop_gradient

CONFIGS = Path(__file__).parents[2] / "configs" / "networks"
TOKENS = 1024
ROUNDS = 24
UNTIMED = 3


class Training:
    """A recipe's network and its memory, with the times of its steps in milliseconds."""

    def __init__(self, recipe: dict[str, Any]) -> None:
        torch.manual_seed(0)
        n_token = recipe["data"]["subwords"]["n_token"]
        settings = recipe["model"]["net"] | {"n_token": n_token}
        if name := settings.get(CLASS):
            settings[CLASS] = NETWORKS[name]
        self.net = make_config(settings).build().train()
        self.segments = recipe["model"].get("gradient_segments", 1)
        shape = recipe["data"]["batch_size"], self.segments * recipe["data"]["tgt_len"]
        assert shape[0] * shape[1] == TOKENS
        self.ids_BT = torch.randint(n_token, shape)
        self.targets_BT = torch.randint(n_token, shape)
        self.memory = self.net.empty_memory(len(self.ids_BT))
        self.times: list[float] = []

    def take_step(self) -> None:
        start = time.perf_counter()
        nats = []
        memory = self.memory
        parts = [ids.chunk(self.segments, dim=1) for ids in (self.ids_BT, self.targets_BT)]
        for ids_BL, targets_BL in zip(*parts, strict=True):
            memory = keep_gradient(memory) if self.segments > 1 else memory
            nats_BL, memory = self.net.loss(ids_BL, targets_BL, memory)
            nats.append(nats_BL)
        torch.cat(nats, dim=1).mean().backward()
        self.memory = stop_gradient(memory)
        self.net.zero_grad(set_to_none=True)
        self.times.append(1e3 * (time.perf_counter() - start))


def main() -> None:
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    recipes = {name: yaml.safe_load((CONFIGS / f"{name}.yaml").read_text()) for name in NETS}
    trainings = {name: Training(recipe) for name, recipe in recipes.items()}
    for n_round in range(ROUNDS):
        for name in NETS if n_round % 2 else reversed(NETS):
            trainings[name].take_step()
    times = {name: each.times[UNTIMED:] for name, each in trainings.items()}
    milliseconds = {
        name: {"fastest": min(each), "median": median(each), "slowest": max(each)}
        for name, each in times.items()
    }
    result = {"milliseconds": milliseconds, "origin": describe_environment(torch.device("cpu"))}
    Path(sys.argv[1]).write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
