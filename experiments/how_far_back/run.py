"""How far back does a network remember: values in a text of pairs, and passages of a text?

The texts of pairs are drawn anew for each seed; the test text has all distances from its start.
"""

from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.copying.rows import FAST, Row, Sizes
from experiments.copying.training import fit_options
from experiments.how_far_back import passages
from experiments.how_far_back.pairs import find_distances, write_pairs
from txl_lightning import TransformerXL
from txl_lightning.data.stream import Stream
from txl_lightning.model.reading import Reader, score_answers

VALUES = {f"values {mem_len}": mem_len for mem_len in (0, 32, 128, 512)}
"""Length of the memory by kind."""
SIZES = Sizes(n_layer=2, d_model=64, n_head=4, n_token=258, segment=32, batch_size=32, steps=2000)
MUON = {"model.optim": {"name": "muon", "lr": 3e-3, "muon_lr": 9e-3}}
"""As in configs/tasks/recall.yaml."""
VALIDATIONS = 20
TEST_PAIRS = 40_000


def main() -> None:
    kinds = [*VALUES, *passages.KINDS]
    args = common.parse_args(__file__, __doc__, (1, 2, 3, 4, 5), kinds=kinds)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats of passages, or the share of recalled values by distance."""
    if kind in passages.KINDS:
        return passages.measure(args, kind, seed)
    sizes = replace(FAST, n_token=258) if args.fast else SIZES
    paths = write_texts(args.runs / "text" / str(seed), seed, sizes)
    options = choose_options(sizes, seed, VALUES[kind]) | {"data.path": paths}
    run = common.train(args, f"{kind} {seed}", seed, options)
    distance_N = find_distances(Path(paths[2]).read_text(), sizes.batch_size)
    right_N = find_right_tokens(run.net, run.store.ids("test"), sizes)
    rows = average_by_distance(distance_N, right_N)
    fields = {"kind": kind, "mem_len": VALUES[kind], "seed": seed, "segment": sizes.segment}
    return fields | {"rows": rows} | run.describe("val/nats")


def choose_options(sizes: Sizes, seed: int, mem_len: int) -> dict[str, Any]:
    row = Row("pairs", mem_len > 0)
    options = fit_options(row, sizes, seed) | common.flatten(MUON)
    # In order, because a row of the text is a curriculum.
    options |= {"data.vocab": "characters", "data.order": "ordered", "model.net.mem_len": mem_len}
    return options | common.plan_steps(sizes.steps, VALIDATIONS)


def write_texts(folder: Path, seed: int, sizes: Sizes) -> list[str]:
    """Return the paths of a seed's texts of each split; they are written if one is missing."""
    pairs_of_row = sizes.steps * sizes.segment // 2
    val = sizes.segment * sizes.batch_size * 10 + 100
    test = TEST_PAIRS
    lengths = {"train": [pairs_of_row] * sizes.batch_size, "val": [val], "test": [test]}
    paths = [folder / f"{split}.txt" for split in lengths]
    if not all(path.is_file() for path in paths):
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


if __name__ == "__main__":
    main()
