"""Recall of values by distance, of models trained on pairs of keys and values (pairs.py)."""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.ablation.rows import FAST, Row, Sizes
from experiments.ablation.training import fit_options
from experiments.memory_length.pairs import find_distances, write_pairs
from txl_lightning import TransformerXL
from txl_lightning.data.stream import Stream
from txl_lightning.evaluation.scoring import score_answers
from txl_lightning.model import CachedReader

PAIRS = Sizes(n_layer=2, d_model=64, n_head=4, n_token=258, segment=32, batch_size=32, steps=1500)
MUON = {"model.optim": {"name": "muon", "lr": 3e-3, "muon_lr": 9e-3}}
"""As in configs/tasks/recall.yaml."""


def measure_recall(args: Namespace, seed: int, mem_len: int) -> dict[str, Any]:
    """Return the share of recalled values by distance, of a model trained with `mem_len`."""
    sizes = replace(FAST, n_token=258) if args.fast else PAIRS
    count = 2000 if args.fast else sizes.steps * sizes.segment * sizes.batch_size // 2 + 1000
    counts = {"train": count, "val": 1000, "test": count // 20 + 4000}
    paths = write_pairs(args.runs / "text", counts)
    row = Row("pairs", mem_len > 0, "sinusoidal", False)
    options = fit_options(row, sizes, seed) | {"data.path": paths, "data.vocab": "characters"}
    options |= common.flatten(MUON) | {"model.net.mem_len": mem_len}
    trained = common.fit(args.runs / f"seed{seed}" / f"mem{mem_len}", options)
    distance_N = find_distances(Path(paths[2]).read_text())
    right_N = find_right_tokens(trained.net, trained.store.ids("test"), sizes)
    rows = average_by_distance(distance_N, right_N)
    fields = {"kind": "pairs", "seed": seed, "mem_len": mem_len, "text": trained.text}
    return fields | {"segment": sizes.segment, "rows": rows}


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
    stream, reader = Stream.from_tokens(ids, sizes.batch_size, sizes.segment), CachedReader(model)
    memory, start, right_N = reader.empty_memory(sizes.batch_size), 0, np.zeros(len(ids), bool)
    first_B1 = stream.row_len * np.arange(sizes.batch_size)[:, None]
    for segment in stream:
        _, right_BL, memory = score_answers(reader, segment, memory)
        right_N[first_B1 + np.arange(start, start + segment.new_len) + 1] = right_BL.numpy()
        start += segment.new_len
    return right_N
