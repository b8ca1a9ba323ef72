"""Do memories of other lengths than in training help?

    python -m experiments.memory_length.run [--seeds 1 2 3] [--fast] [--text FILE]

With the models of experiments/ablation (trained if missing): loss with shorter and longer memories
than in training.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import numpy as np

from experiments import common
from experiments.ablation.rows import ROWS, Sizes
from experiments.ablation.run import PIECES, cut_pieces
from experiments.ablation.training import pick_sizes, train_row
from txl_lightning import TransformerXL, stream_nats

BY_NAME = {row.name: row for row in ROWS}
READ_ROWS = ("recurrence_ours_full", "recurrence_learned_full", "recurrence_shaw_full")
"""Models that are evaluated with READ_LENS."""
READ_LENS = (0, 16, 32, 64, 128, 256, 512, 1024)


def main() -> None:
    """Measure all models of a seed, seed by seed."""
    args = common.parse_args(__file__, __doc__, text="a text in place of python_source")
    for seed in args.seeds:
        for name in READ_ROWS:
            common.measure_once(args, f"read/{name}/{seed}", measure_longer, seed, name)


def train(args: Namespace, seed: int, name: str) -> common.TrainedRun:
    """Return the run of a row of the ablation."""
    return train_row(args, args.runs.parent / "ablation", BY_NAME[name], seed)


def measure_longer(args: Namespace, seed: int, name: str) -> dict[str, Any]:
    """Return nats of the same test text by memory length."""
    sizes, trained = pick_sizes(args), train(args, seed, name)
    lengths = [n for n in READ_LENS if not args.fast or n <= 2 * sizes.segment]
    nats = nats_by_memory(trained.net, trained.store.ids("test"), sizes, lengths)
    fields = {"kind": "read", "seed": seed, "row": name, "nats": nats, "text": trained.text}
    return fields | {"positions": trained.net.config.positions}


def nats_by_memory(
    model: TransformerXL, ids: np.ndarray, sizes: Sizes, lengths: Sequence[int]
) -> dict[str, float]:
    """Return mean nats of the same tokens of a text by memory length."""
    before, nats = max(lengths), {}
    ids_PT = cut_pieces(ids, sizes.test_tokens // PIECES, before)
    how = {"batch_size": PIECES, "tgt_len": sizes.segment}
    for mem_len in lengths:
        nats_PT = stream_nats(model, ids_PT.ravel(), mem_len=mem_len, **how)
        nats[str(mem_len)] = nats_PT[:, before - 1 :].double().mean().item()
    return nats


if __name__ == "__main__":
    main()
