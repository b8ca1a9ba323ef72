"""Equal minutes of fastest steps, as numbers of steps: those can be trained beside other work."""

import time
from argparse import Namespace
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from experiments import common
from txl_lightning import OptimConfig
from txl_lightning.errors import DataError
from txl_lightning.model import NetworkConfig
from txl_lightning.model.config import make_config
from txl_lightning.training.optimizers import make_optimizer

ROUNDS = 12
REPEATS = 4
OVERHEAD = 0.9
"""Share of the minutes that is training; the rest is validations and the Trainer's work."""


def plan_minutes(
    args: Namespace, record: str, kind: str, minutes: float, validations: int = 4
) -> dict[str, int]:
    """Return the options of the steps that fit in the minutes, by the times of a record."""
    seconds = common.find_record(args, record)["step_seconds"][kind]
    return common.plan_steps(max(int(60 * minutes * OVERHEAD / seconds), 1), validations)


def measure(
    args: Namespace,
    kinds: Mapping[str, tuple[common.Options, int]],
    tokens_BT: Tensor | None = None,
) -> dict[str, Any]:
    """Return a record of the seconds of a step that `fit` takes with the options of each kind.

    `kinds` also has sizes of vocabularies; tokens are random if none are given. DataError for a
    GPU, on which nothing is timed here.
    """
    if args.accelerator != "cpu":
        raise DataError(f"--accelerator {args.accelerator}: expected cpu, which steps are timed on")
    in_bfloat16 = args.precision == "bf16-mixed"
    steps = {}
    for kind, (options, n_token) in kinds.items():
        net, optim = (
            {name.removeprefix(group): options[name] for name in options if name.startswith(group)}
            for group in ("model.net.", "model.optim.")
        )
        shape = options["data.batch_size"], options["data.tgt_len"] + 1
        read_BT = torch.randint(n_token, shape) if tokens_BT is None else tokens_BT
        config = make_config(net | {"n_token": n_token})
        segments = options.get("trainer.accumulate_grad_batches", 1)
        steps[kind] = make_step(config, OptimConfig(**optim), read_BT, in_bfloat16, segments)
    return {"kind": "pace", "step_seconds": time_in_turn(steps, args.fast)}


def time_in_turn(steps: Mapping[str, Callable[[], None]], fast: bool = False) -> dict[str, float]:
    """Return the fastest seconds of each step, in rounds in which they take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(1 if fast else ROUNDS):
        for name, step in steps.items():
            start = time.perf_counter()
            for _ in range(REPEATS):
                step()
            seconds[name].append((time.perf_counter() - start) / REPEATS)
    return {name: min(times) for name, times in seconds.items()}


def make_step(
    config: NetworkConfig,
    optim: OptimConfig,
    tokens_BT: Tensor,
    in_bfloat16: bool = False,
    segments: int = 1,
) -> Callable[[], None]:
    """Return a function that trains a step of segments, each of which has these tokens."""
    net = config.build()
    optimizer = make_optimizer(optim, net)
    memory = net.empty_memory(len(tokens_BT))

    def step() -> None:
        nonlocal memory
        for _ in range(segments):
            with torch.autocast("cpu", torch.bfloat16, enabled=in_bfloat16):
                nats_BL, memory = net.loss(tokens_BT[:, :-1], tokens_BT[:, 1:], memory)
            (nats_BL.mean() / segments).backward()
        clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

    return step
