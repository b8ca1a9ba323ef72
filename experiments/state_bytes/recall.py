"""Small networks of equal parameters that learn to recall the values of keys, by distance.

The texts of pairs (pairs.py) are drawn anew for each seed. A row of training is a curriculum: its
distances grow. The test text has all distances from its start.
"""

from argparse import Namespace
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from experiments import common
from experiments.copying.rows import Sizes
from experiments.state_bytes.figures import PAIRS
from experiments.state_bytes.pairs import PAIR_BYTES, find_distances, write_pairs
from experiments.state_bytes.readings import count_bytes
from txl_lightning import TransformerXL
from txl_lightning.data.stream import Stream
from txl_lightning.model.reading import Reader, score_answers

TUNING_SEED = 0
FIRST_RATE = 3e-3
"""The rate that is tried first; matrices have three times as much, as in configs/tasks."""
SIZES = Sizes(n_layer=2, d_model=64, n_token=258, segment=128, batch_size=8, steps=2000)
TEST_PAIRS = 40_000


class Arm(NamedTuple):
    """A network (None: Transformer-XL) and its settings; an arm that has its rate, if one has.

    An update reads as many tokens in any number of rows.
    """

    network: str | None
    settings: dict[str, Any]
    segments: int = 1
    rows: int = SIZES.batch_size
    rate_of: str | None = None


WIDTH = {"n_layer": 2, "d_model": 64}
XL = {"n_head": 4, "norm": "pre", "init_std": 0.05, **WIDTH}
COMPRESSIVE = {"n_head": 4, "d_inner": 120, **WIDTH}
DELTA = {"d_inner": 101, **WIDTH}
MAMBA = {**WIDTH, "n_layer": 3, "d_state": 75}
RMT = {"n_head": 4, "d_inner": 186, "unit_len": 32, **WIDTH}
FIRST = "Transformer-XL, memory of 128"
ARMS = {
    FIRST: Arm(None, {"mem_len": 128, **XL}),
    "Transformer-XL, memory of 32": Arm(None, {"mem_len": 32, **XL}, rate_of=FIRST),
    "Transformer-XL, memory of 512": Arm(None, {"mem_len": 512, **XL}, rate_of=FIRST),
    "LSTM": Arm("LSTM", {"n_layer": 2, "d_model": 80}),
    "Gated DeltaNet": Arm("GatedDeltaNet", DELTA),
    "Gated DeltaNet, 2 rows of 512": Arm("GatedDeltaNet", DELTA, rows=2),
    "Mamba-2, state of 12": Arm("Mamba2", {**WIDTH, "n_layer": 4, "d_state": 12}),
    "Mamba-2, state of 75": Arm("Mamba2", MAMBA),
    "Mamba-2, state of 75, 2 rows of 512": Arm("Mamba2", MAMBA, rows=2),
    "Compressive Transformer": Arm("CompressiveTransformer", COMPRESSIVE),
    "Recurrent Memory Transformer": Arm("RecurrentMemoryTransformer", RMT, segments=4),
}


def measure_arms(args: Namespace) -> None:
    """Add a record for each arm's rate, and then for each seed and arm: in float32, as planned."""
    args = common.set_precision(args, "32-true")
    names = args.arms[: 1 if args.fast else None]
    for name in names:
        if ARMS[name].rate_of is None:
            common.measure_once(args, f"rate {PAIRS}{name}", choose_rate, name)
    for seed in args.seeds:
        for name in names:
            common.measure_seed(args, f"{PAIRS}{name} {seed}", measure, name, seed)


def choose_rate(args: Namespace, name: str) -> dict[str, Any]:
    train_with = partial(train, args, name, TUNING_SEED)
    found = common.choose_rate(f"{PAIRS}{name}", train_with, FIRST_RATE, args.fast)
    # "rate" is the kind of the rates of texts.
    return found | {"kind": "rate of pairs"}


def measure(args: Namespace, name: str, seed: int) -> dict[str, Any]:
    """Train; return the share of values of the test text that are recalled, by distance."""
    arm = ARMS[name]
    rate = common.find_record(args, f"rate {PAIRS}{arm.rate_of or name}")["rate"]
    run = train(args, name, seed, rate)
    sizes = choose_sizes(args, arm.rows)
    text = find_texts(args, seed, sizes)[-1]
    distance_N = find_distances(Path(text).read_text(), sizes.batch_size)
    right_N = find_right_tokens(run.net, run.store.ids("test"), sizes)
    rows = average_by_distance(distance_N, right_N)
    fields = {"kind": f"{PAIRS}{name}", "seed": seed, "rate": rate, "rows": rows}
    return fields | {"state_bytes": count_bytes(run, {})} | run.describe("val/nats")


def train(args: Namespace, name: str, seed: int, rate: float) -> common.TrainedRun:
    arm = ARMS[name]
    sizes = choose_sizes(args, arm.rows)
    sections = {
        "model": {"gradient_segments": arm.segments},
        "model.net": arm.settings,
        "model.optim": {"name": "muon", "lr": rate, "muon_lr": 3 * rate, "betas": [0.9, 0.95]},
        "data": {"vocab": "characters", "path": find_texts(args, seed, sizes)},
        "trainer": {"limit_val_batches": 1.0, "gradient_clip_val": 1.0},
    }
    options = {"model.net": arm.network} if arm.network else {}
    options |= common.flatten(sections) | common.plan_steps(sizes.steps, 4)
    # In order, because a row of the text is a curriculum.
    options |= {"data.order": "ordered", "model.optim.warmup_steps": sizes.steps // 10}
    options |= {"data.batch_size": sizes.batch_size, "data.eval_batch_size": sizes.batch_size}
    options |= {"data.tgt_len": sizes.segment // arm.segments}
    return common.train(args, f"{PAIRS}{name} {seed} {rate:g}".replace(",", ""), seed, options)


def choose_sizes(args: Namespace, rows: int) -> Sizes:
    n_token = SIZES.batch_size * SIZES.segment
    sizes = replace(SIZES, batch_size=rows, segment=n_token // rows)
    return replace(sizes, steps=4, batch_size=2) if args.fast else sizes


def find_texts(args: Namespace, seed: int, sizes: Sizes) -> list[str]:
    return write_texts(args.runs / "pairs" / f"{seed} in {sizes.batch_size} rows", seed, sizes)


def write_texts(folder: Path, seed: int, sizes: Sizes) -> list[str]:
    """Return the paths of a seed's texts of each split; they are written unless all are there.

    Those of other sizes, as of --fast in the same folder, are replaced.
    """
    pairs_of_row = sizes.steps * sizes.segment // 2
    # Whole pairs in each row, too: places in a row that began with a value would be those of keys.
    val = sizes.batch_size * (10 * sizes.segment + 12)
    lengths = {"train": [pairs_of_row] * sizes.batch_size, "val": [val], "test": [TEST_PAIRS]}
    paths = [folder / f"{split}.txt" for split in lengths]
    written = (path.stat().st_size if path.is_file() else 0 for path in paths)
    if [*written] != [PAIR_BYTES * sum(counts) for counts in lengths.values()]:
        write_pairs(paths, seed, lengths.values())
    return [str(path) for path in paths]


def average_by_distance(distance_N: np.ndarray, right_N: np.ndarray) -> list[dict[str, Any]]:
    """Return the share of right values at distances from each power of two to the next."""
    rows = []
    for nearest in (2**power for power in range(1, 10)):
        asked_N = (distance_N >= nearest) & (distance_N < 2 * nearest)
        if count := int(asked_N.sum()):
            accuracy = float(right_N[asked_N].mean())
            rows.append({"nearest": nearest, "accuracy": accuracy, "asked": count})
    return rows


@torch.inference_mode()
def find_right_tokens(model: TransformerXL, ids: np.ndarray, sizes: Sizes) -> np.ndarray:
    """Return right_N: the most probable token is that of the text (of a row's first: False)."""
    stream = Stream.from_tokens(ids, sizes.batch_size, sizes.segment)
    reader = Reader(model)
    memory = reader.empty_memory(sizes.batch_size)
    start = 0
    right_N = np.zeros(len(ids), bool)
    first_B1 = stream.row_len * np.arange(sizes.batch_size)[:, None]
    for segment in stream:
        _, right_BL, memory = score_answers(reader, segment, memory)
        right_N[first_B1 + np.arange(start, start + segment.new_len) + 1] = right_BL.numpy()
        start += segment.new_len
    return right_N
