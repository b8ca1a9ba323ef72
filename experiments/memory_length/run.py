"""How far back does a memory help?

    python -m experiments.memory_length.run [--seeds 1 2 3] [--fast] [--text FILE]

With the models of experiments/ablation (trained if missing): loss with longer memories than in
training, and the relative effective context length, RECL (Table 8). With models trained on pairs of
keys and values, with memories of 0, 32, 128 and 512: the distance at which values are recalled.
"""

import json
from argparse import Namespace
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.ablation.rows import FAST, ROWS, Row, Sizes, fit_options
from experiments.ablation.run import PIECES, cut_pieces, pick_sizes, train_row
from experiments.memory_length.pairs import find_distances, write_pairs
from txl_lightning import stream_nats
from txl_lightning.__main__ import run
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text
from txl_lightning.data.stream import Stream
from txl_lightning.evaluation.scoring import segment_answers
from txl_lightning.model import CachedReader

BY_NAME = {row.name: row for row in ROWS}
READ_ROWS = ("recurrence_ours_full", "recurrence_learned_full", "recurrence_shaw_full")
"""Models that are evaluated with READ_LENS."""
RECL_ROWS = (
    "recurrence_ours_full", "recurrence_shaw_full", "alone_ours_full", "alone_al_rfou_half",
)  # fmt: skip
"""Models whose RECL is compared, as in the second part of Table 8."""
READ_LENS = (0, 16, 32, 64, 128, 256, 512, 1024)
PAIRS_LENS = (0, 32, 128, 512)
PAIRS = Sizes(n_layer=2, d_model=64, n_head=4, n_token=258, segment=32, batch_size=32, steps=1500)
MUON = {"name": "muon", "lr": 3e-3, "muon_lr": 9e-3}
"""As in configs/tasks/recall.yaml."""


def main() -> None:
    """Measure all models of a seed, seed by seed."""
    args = common.parse_args(__file__, __doc__, text="a text in place of python_source")
    for seed in args.seeds:
        for name in READ_ROWS:
            common.measure_once(args, f"read/{name}/{seed}", measure_longer, args, seed, name)
        common.measure_once(args, f"recl/{seed}", measure_recl, args, seed)
        for mem_len in PAIRS_LENS:
            common.measure_once(
                args, f"pairs/{mem_len}/{seed}", measure_recall, args, seed, mem_len
            )


def train(args: Namespace, seed: int, name: str) -> Path:
    """Return the checkpoint of a row of the ablation."""
    return common.checkpoint(train_row(args, args.runs.parent / "ablation", BY_NAME[name], seed))


def measure_longer(args: Namespace, seed: int, name: str) -> dict[str, Any]:
    """Return nats of the same test text by memory length."""
    sizes, path = pick_sizes(args), train(args, seed, name)
    lengths = [n for n in READ_LENS if not args.fast or n <= 2 * sizes.segment]
    model, _ = load_run(path)
    _, store = load_training_text(path)
    before = max(lengths)
    ids_PT = cut_pieces(store.ids("test"), sizes.test_tokens // PIECES, before)
    how, nats = {"batch_size": PIECES, "tgt_len": sizes.segment}, {}
    for mem_len in lengths:
        nats_PT = stream_nats(model, ids_PT.ravel(), mem_len=mem_len, **how)
        nats[str(mem_len)] = nats_PT[:, before - 1 :].double().mean().item()
    found = {"kind": "read", "seed": seed, "row": name, "nats": nats}
    return found | {"positions": model.config.positions}


def measure_recl(args: Namespace, seed: int) -> dict[str, Any]:
    """Return what the command `recl` finds for the models of one seed."""
    paths = [str(train(args, seed, name)) for name in RECL_ROWS]
    out = args.runs / f"recl{seed}"
    sizes = ["--max_context=32", "--positions=50"] if args.fast else []
    sizes = sizes or ["--max_context=128", "--positions=1000"]
    run(["recl", *paths, "--step=8", *sizes, "--split=test", f"--out={out}"])
    found = json.loads((out / "recl.json").read_text())
    kept = {name: found[name] for name in ("contexts", "positions", "nats", "rows")}
    return {"kind": "recl", "seed": seed, **kept}


def measure_recall(args: Namespace, seed: int, mem_len: int) -> dict[str, Any]:
    """Return the share of recalled values by distance, of a model trained with `mem_len`."""
    sizes = replace(FAST, n_token=258) if args.fast else PAIRS
    count = 2000 if args.fast else sizes.steps * sizes.segment * sizes.batch_size // 2 + 1000
    counts = {"train": count, "val": 1000, "test": count // 20 + 4000}
    paths = write_pairs(args.runs / "text", counts)
    row = Row("pairs", mem_len > 0, "sinusoidal", False)
    options = fit_options(row, sizes, seed) | {"data.path": paths, "data.vocab": "characters"}
    options |= {f"model.optim.{key}": value for key, value in MUON.items()}
    options |= {"model.net.mem_len": mem_len}
    path = common.checkpoint(common.fit(args.runs / f"seed{seed}" / f"mem{mem_len}", options))
    distance_N = find_distances(Path(paths[2]).read_text())
    right_N = np.zeros(len(distance_N), bool)
    for place_BL, right_BL in find_right_tokens(path, sizes):
        right_N[place_BL] = right_BL
    rows = average_by_distance(distance_N, right_N)
    found = {"kind": "pairs", "seed": seed, "mem_len": mem_len}
    return found | {"segment": sizes.segment, "rows": rows}


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
def find_right_tokens(path: Path, sizes: Sizes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield positions of the test text, and whether the most probable token is right there."""
    model, _ = load_run(path)
    _, store = load_training_text(path)
    stream = Stream.from_tokens(store.ids("test"), sizes.batch_size, sizes.segment)
    reader = CachedReader(model)
    memory, start = reader.empty_memory(sizes.batch_size), 0
    for segment in stream:
        _, right_BL, memory = segment_answers(reader, segment, memory)
        place_L = np.arange(start, start + segment.new_len) + 1
        yield np.arange(sizes.batch_size)[:, None] * stream.row_len + place_L, right_BL.numpy()
        start += segment.new_len


if __name__ == "__main__":
    main()
