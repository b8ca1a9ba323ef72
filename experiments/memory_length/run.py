"""How long is a memory of use?

    python -m experiments.memory_length.run [--seeds 1 2 3] [--fast] [--text FILE]

With the models of experiments/ablation, which are trained if they are not there: nats with more
memory than in training, and the relative effective context length (Table 8). With models trained
on pairs of keys and values, with a memory of 0, 32, 128 and 512: how far back a value is recalled.
"""

import argparse
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.ablation.rows import FAST, ROWS, Row, Sizes, fit_options
from experiments.ablation.run import PIECES, cut_pieces, pick_sizes, train_row
from experiments.common import checkpoint, fit, load_records, parse_options, save_record
from experiments.memory_length.pairs import find_distances, write_pairs
from txl_lightning import stream_nats
from txl_lightning.__main__ import run
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text
from txl_lightning.data.stream import Stream
from txl_lightning.evaluation.scoring import segment_answers
from txl_lightning.model import CachedReader

BY_NAME = {row.name: row for row in ROWS}
LONGER = ("recurrence_ours_full", "recurrence_learned_full", "recurrence_shaw_full")
GROUP = ("recurrence_ours_full", "recurrence_shaw_full", "alone_ours_full", "alone_al_rfou_half")
"""Models that RECL compares, as in the second part of Table 8."""
READ_LENS = (0, 16, 32, 64, 128, 256, 512, 1024)
TRAINED_LENS = (0, 32, 128, 512)
PAIRS = Sizes(n_layer=2, d_model=64, n_head=4, n_token=258, segment=32, batch_size=32, steps=1500)
MUON = {"name": "muon", "lr": 3e-3, "muon_lr": 9e-3}
"""As in configs/tasks/recall.yaml."""


def main() -> None:
    """Measure what is not measured yet, seed by seed."""
    given = parse_options(__file__, __doc__, text="a text in place of python_source")
    ablation = given.runs.parent / "ablation"
    for seed in given.seeds:
        parts = [(f"read/{name}/{seed}", read_longer, name) for name in LONGER]
        parts += [(f"recl/{seed}", measure_recl, None)]
        parts += [(f"pairs/{mem_len}/{seed}", recall_pairs, mem_len) for mem_len in TRAINED_LENS]
        for name, measure, what in parts:
            if name not in load_records(given.out):
                found = measure(given, ablation, seed, what)
                save_record(given, name, seed=seed, kind=name.split("/")[0], **found)


def train(given: argparse.Namespace, ablation: Path, seed: int, name: str) -> Path:
    """Return the checkpoint of a row of the ablation."""
    return checkpoint(train_row(given, ablation, BY_NAME[name], seed), "last")


def read_longer(given: argparse.Namespace, ablation: Path, seed: int, name: str) -> dict[str, Any]:
    """Return nats of the same test text by the length of memory that is read."""
    sizes, path = pick_sizes(given.fast), train(given, ablation, seed, name)
    lengths = [n for n in READ_LENS if not given.fast or n <= 2 * sizes.segment]
    model, _ = load_run(path)
    _, store = load_training_text(path)
    before = max(lengths)
    ids_PT = cut_pieces(store.ids("test"), sizes.test_tokens // PIECES, before)
    how, nats = {"batch_size": PIECES, "tgt_len": sizes.segment}, {}
    for mem_len in lengths:
        nats_PT = stream_nats(model, ids_PT.ravel(), mem_len=mem_len, **how)
        nats[str(mem_len)] = nats_PT[:, before - 1 :].double().mean().item()
    return {"row": name, "positions": model.config.positions, "nats": nats}


def measure_recl(given: argparse.Namespace, ablation: Path, seed: int, _: None) -> dict[str, Any]:
    """Return the rows of the recl verb for the models of one seed."""
    paths = {name: train(given, ablation, seed, name) for name in GROUP}
    out = given.runs / f"recl{seed}"
    lengths = ["--step=8", "--max_context=32", "--positions=50"] if given.fast else []
    lengths = lengths or ["--step=8", "--max_context=128", "--positions=1000"]
    run(["recl", *map(str, paths.values()), *lengths, "--split=test", f"--out={out}"])
    found = json.loads((out / "recl.json").read_text())
    return {name: found[name] for name in ("contexts", "positions", "nats", "rows")}


def recall_pairs(
    given: argparse.Namespace, ablation: Path, seed: int, mem_len: int
) -> dict[str, Any]:
    """Return how many values are recalled right, by distance, of a model trained with mem_len."""
    sizes = replace(FAST, n_token=258) if given.fast else PAIRS
    count = 2000 if given.fast else sizes.steps * sizes.segment * sizes.batch_size // 2 + 1000
    folder = given.runs / "text"
    paths = write_pairs(folder, {"train": count, "val": 1000, "test": count // 20 + 4000})
    row = Row("pairs", mem_len > 0, "sinusoidal", False)
    options = fit_options(row, sizes, seed) | {"data.path": paths, "data.vocab": "characters"}
    options |= {f"model.optim.{key}": value for key, value in MUON.items()}
    options |= {"model.net.mem_len": mem_len}
    where = checkpoint(fit(given.runs / f"seed{seed}" / f"mem{mem_len}", options), "last")
    text = Path(paths[2]).read_text()
    distance_N, right_N = find_distances(text), np.zeros(len(text), bool)
    for place_BL, right_BL in find_right_tokens(where, sizes):
        right_N[place_BL] = right_BL
    rows = average_by_distance(distance_N, right_N)
    return {"mem_len": mem_len, "segment": sizes.segment, "rows": rows}


def average_by_distance(distance_N: np.ndarray, right_N: np.ndarray) -> list[dict[str, Any]]:
    """Return the share of right values between each power of two and the next."""
    rows = []
    for nearest in (2**power for power in range(1, 10)):
        asked_N = (distance_N >= nearest) & (distance_N < 2 * nearest)
        if count := int(asked_N.sum()):
            accuracy = float(right_N[asked_N].mean())
            rows.append({"nearest": nearest, "accuracy": accuracy, "asked": count})
    return rows


@torch.inference_mode()
def find_right_tokens(path: Path, sizes: Sizes) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield positions of tokens in the test text, and whether each was the likeliest."""
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
