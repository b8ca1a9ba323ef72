"""How fast is the quick start's network beside other work, with and without limit_spinning?

    python -m experiments.speed.busy [--seconds 6] [--rounds 3] [--neighbours 0 1 3] [--out FILE]

Each measurement is a fresh process with two threads beside processes that compute without end.
Speeds are relative to the idle machine with nothing set, in the same run.
"""

import argparse
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import date
from itertools import product
from pathlib import Path
from typing import Any

import torch
import yaml

from experiments.results import format_table
from txl_lightning import OptimConfig, Segment, TransformerXL, TransformerXLConfig
from txl_lightning.machine import describe_environment
from txl_lightning.model import EvalLengths, make_reader
from txl_lightning.model.reading import score_segment
from txl_lightning.threads import VARIABLES, describe_waiting
from txl_lightning.training.optimizers import make_optimizer
from txl_lightning.training.segments import segment_loss

QUICKSTART = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
RESULTS = Path(__file__).parent / "results"
# Torch alone: what imports `experiments` first sets how threads wait.
SETTINGS = {"unset": "import torch; ", "set": ""}
"""Code before a measurement."""
WORKS = ("training step", "evaluation segment", "decoded token")
GOALS = {0: 0.97, 1: 0.45, 3: 0.25}
"""Least speed, as a part of the idle one, by the number of neighbours."""
Table = dict[tuple[str, int, str], float]
"""Speed relative to idle by work, neighbours and setting."""


def main() -> None:
    """Measure all settings in turn, print the table of speeds, and write the record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0, help="of each kind of work")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--neighbours", type=int, nargs="+", default=[0, 1, 3])
    parser.add_argument("--out", type=Path, default=RESULTS / f"{date.today()}-busy.json")
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.one:
        print(json.dumps(measure_here(args.seconds)))
        return
    turns = product(range(args.rounds), args.neighbours, SETTINGS)
    origin = {"command": shlex.join(sys.argv), **describe_environment(torch.device("cpu"))}
    speeds = [measure(*turn, args.seconds) for turn in turns]
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(json.dumps(origin | {"speeds": speeds}, indent=1) + "\n")
    print(format_table(make_rows(speeds)))


def measure(round: int, neighbours: int, setting: str, seconds: float) -> dict[str, Any]:
    """Return works per second of a fresh process beside neighbours."""
    ours = {name: os.environ[name] for name in os.environ if name not in VARIABLES}
    code = f"{SETTINGS[setting]}from experiments.speed.busy import main; main()"
    command = [sys.executable, "-c", code, "--one", f"--seconds={seconds}"]
    with ExitStack() as stack:
        for _ in range(neighbours):
            busy = stack.enter_context(subprocess.Popen([sys.executable, "-c", "while True: pass"]))
            stack.callback(busy.kill)
        options = {"env": ours, "capture_output": True, "text": True}
        output = subprocess.run(command, check=True, **options).stdout
    return {"round": round, "neighbours": neighbours, "setting": setting, **json.loads(output)}


def measure_here(seconds: float) -> dict[str, Any]:
    """Return works per second in this process, which has two threads."""
    torch.set_num_threads(2)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    config = yaml.safe_load(QUICKSTART.read_text())
    data, model = config["data"], config["model"]
    sizes = model["net"] | {"n_token": data["subwords"]["n_token"]}
    net = TransformerXL(TransformerXLConfig(**sizes))
    optimizer = make_optimizer(OptimConfig(**model["optim"]), net)
    segment = draw_segment(sizes["n_token"], data["batch_size"], data["tgt_len"])
    token = draw_segment(sizes["n_token"], 1, 1)
    memory = net.empty_memory(data["batch_size"])

    def train() -> None:
        nonlocal memory
        nats_BL, memory = segment_loss(net, segment, memory)
        nats_BL.mean().backward()
        clip = config["trainer"]["gradient_clip_val"]
        torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()

    speeds = {WORKS[0]: count_per_second(train, seconds)}
    net.eval()
    with torch.inference_mode():
        for work, read in zip(WORKS[1:], (segment, token), strict=True):
            speeds[work] = count_per_second(make_reading(net, read), seconds)
    return speeds | {"waiting": describe_waiting()}


def draw_segment(n_token: int, n_row: int, length: int) -> Segment:
    tokens_BT = torch.randint(n_token, (n_row, length + 1))
    pos_BL = torch.arange(1000, 1000 + length).expand(n_row, length)
    return Segment(tokens_BT[:, :-1], tokens_BT[:, 1:], pos_BL, 0, float(n_row * length))


def make_reading(net: TransformerXL, segment: Segment) -> Callable[[], None]:
    """Return a function that reads a segment after the memory of those before."""
    reader = make_reader(net)
    memory = reader.empty_memory(len(segment.tokens_BL), EvalLengths())

    def read() -> None:
        nonlocal memory
        _, memory = score_segment(reader, segment, memory)

    return read


def count_per_second(work: Callable[[], None], seconds: float) -> float:
    for _ in range(3):
        work()
    count, began = 0, time.perf_counter()
    while count == 0 or time.perf_counter() - began < seconds:
        work()
        count += 1
    return count / (time.perf_counter() - began)


def relate_to_idle(speeds: list[dict[str, Any]]) -> Table:
    """Return the median speed of each case, relative to the idle machine with nothing set."""
    keys = sorted({(each["neighbours"], each["setting"]) for each in speeds})
    medians = {
        (work, *key): statistics.median(
            each[work] for each in speeds if (each["neighbours"], each["setting"]) == key
        )
        for work, key in product(WORKS, keys)
    }
    return {key: medians[key] / medians[key[0], 0, "unset"] for key in medians}


def make_rows(speeds: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """Return the rows of the table: the speeds relative to idle, and whether the goal is met."""
    table = relate_to_idle(speeds)
    rows: list[tuple[Any, ...]] = [("work", "neighbours", *SETTINGS, "goal", "result")]
    for work, neighbours in product(WORKS, sorted({key[1] for key in table})):
        ratios = [table[work, neighbours, setting] for setting in SETTINGS]
        goal = GOALS.get(neighbours)
        result = "" if goal is None else "met" if ratios[1] >= goal else "missed"
        rows.append((work, neighbours, *(f"{each:.2f}" for each in ratios), goal or "", result))
    return rows


if __name__ == "__main__":
    main()
