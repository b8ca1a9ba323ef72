"""How many layers without memory does a memory replace? (Table 2: 12 layers with it are like 64)

"4, more updates" has as many more as its steps took less time in turn (pace.py).
"""

from argparse import Namespace
from functools import partial
from pathlib import Path
from typing import Any

from experiments import common, compressors, pace
from experiments.results import load_records
from txl_lightning.data.corpora import ENWIK8, place_file
from txl_lightning.data.sources import DataConfig

PREFIX = 4_154_064
STEPS = 1500
SEGMENT = 64
ROWS = 16
OPTIONS = common.MUON | common.flatten(
    {
        "model.net": {"n_head": 4, "d_model": 128, "norm": "pre"},
        "data": {"tgt_len": SEGMENT, "batch_size": ROWS},
        "trainer": {"gradient_clip_val": 1.0, "limit_val_batches": 100},
    }
)
KINDS = {
    "4, memory": {"model.net.n_layer": 4, "model.net.mem_len": 128},
    "4": {"model.net.n_layer": 4, "model.net.mem_len": 0},
    "4, more updates": {"model.net.n_layer": 4, "model.net.mem_len": 0},
    "8": {"model.net.n_layer": 8, "model.net.mem_len": 0},
    "12": {"model.net.n_layer": 12, "model.net.mem_len": 0},
}
FIRST_RATE = 6e-3
TUNING_SEED = 0
SEEDS = (1, 2, 3, 4, 5)
READINGS = {
    "memory": {"mem_len": 128, "tgt_len": SEGMENT},
    "segments": {"mem_len": 0, "tgt_len": SEGMENT},
    "window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8},
    "cached": {"mem_len": SEGMENT, "tgt_len": SEGMENT, "same_length": "mem_len"},
}
"""Ways to read; cached: a window that moves by a token, from keys and values that are kept."""
# It needs no download.
FAST = common.FAST | {"data.path": str(common.REPOSITORY / "CONTRIBUTING.md")}


def main() -> None:
    args = common.parse_args(__file__, __doc__, SEEDS, vary="weights", kinds=KINDS)
    compressors.measure_all(args, choose_text)
    common.measure_once(args, "pace", time_kinds)
    for kind in dict.fromkeys(map(name_net, args.only)):
        common.measure_once(args, f"rate {kind}", choose_rate, kind)
    common.measure_kinds(args, measure)


def choose_text(args: Namespace) -> DataConfig:
    path = FAST["data.path"] if args.fast else find_prefix()
    return DataConfig(path=path, vocab="bytes")


def find_prefix() -> Path:
    """Return the file of the first bytes of enwik8, cut from it if it is missing."""
    folder = DataConfig().data_folder
    path = folder / "enwik8_prefix.txt"
    if not path.is_file():
        [whole] = place_file(ENWIK8, folder / "enwik8")
        with whole.open("rb") as file:
            path.write_bytes(file.read(PREFIX))
    return path


def time_kinds(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step with and without memory."""
    kinds = {kind: (OPTIONS | KINDS[kind], 256) for kind in ("4, memory", "4")}
    return pace.measure(args, kinds)


def name_net(kind: str) -> str:
    return kind.removesuffix(", more updates")


def choose_rate(args: Namespace, kind: str) -> dict[str, Any]:
    train_with = partial(train_kind, args, kind, TUNING_SEED, STEPS)
    return common.choose_rate(kind, train_with, FIRST_RATE, args.fast)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text by the way it is read."""
    records = load_records(args.out)
    rate = records[f"rate {name_net(kind)}"]["rate"]
    seconds = records["pace"]["step_seconds"]
    longer = seconds["4, memory"] / seconds["4"] if "more updates" in kind else 1.0
    run = train_kind(args, kind, seed, round(STEPS * longer), rate)
    ways = ["memory"] if "memory" in kind else ["segments", "window", "cached"]
    readings = {way: READINGS[way] for way in ways}
    bits = common.score_ways(args, run, readings, batch_size=ROWS)
    fields = {"kind": kind, "seed": seed, "rate": rate, "bits_per_byte": bits}
    return fields | run.describe("val/bits_per_byte")


def train_kind(args: Namespace, kind: str, seed: int, steps: int, rate: float) -> common.TrainedRun:
    options = OPTIONS | KINDS[kind] | {"model.optim.lr": rate, "model.optim.muon_lr": 2 * rate}
    options |= common.plan_steps(steps, 4)
    options |= FAST if args.fast else {"data.path": str(find_prefix()), "data.vocab": "bytes"}
    return common.train(args, f"{kind} {seed} {steps} {rate:g}", seed, options)


if __name__ == "__main__":
    main()
