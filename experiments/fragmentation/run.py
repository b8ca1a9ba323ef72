"""What does a byte cost by position in the segment: with memory, without, by sliding window?"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common
from experiments.copying.rows import ALONE, FAST, MEMORY, Sizes
from experiments.copying.training import make_fit_options, make_text_options
from txl_lightning import TransformerXL, stream_nats

SIZES = Sizes(vocab="bytes", n_token=256, steps=1500)
# The rates of configs/quickstart.yaml.
MUON = {"model.optim": {"name": "muon", "lr": 6e-3, "muon_lr": 12e-3}}
SEEDS = tuple(range(1, 11))
READINGS = ("memory", "alone", "window", "cached")
SEGMENTS = 1024
"""Number of scored segments."""
PARTS = 3
"""Number of parts of the test text; a seed uses one."""
ROWS_AT_ONCE = 32


def main() -> None:
    args = common.parse_args(__file__, __doc__, SEEDS)
    for seed in args.seeds:
        for reading in READINGS:
            common.measure_seed(args, f"{reading}/{seed}", measure_positions, seed, reading)


def measure_positions(args: Namespace, seed: int, reading: str) -> dict[str, Any]:
    """Return mean nats at each position of a segment."""
    sizes = FAST if args.fast else SIZES
    row = MEMORY if reading == "memory" else ALONE
    options = make_text_options(sizes) | make_fit_options(row, sizes, seed) | common.flatten(MUON)
    run = common.train(args, f"{row.name} {seed}", seed, options)
    length = options["data.tgt_len"]
    ids = np.array_split(run.store.ids("test"), PARTS)[seed % PARTS]
    ids = ids[: (64 if args.fast else SEGMENTS) * length]
    nats_GL = score_positions(run.net, ids, length, reading)
    fields = {"reading": reading, "seed": seed, "segment": length, "unit": run.store.vocab.unit}
    fields |= {"nats": np.nanmean(nats_GL, axis=0).tolist(), "mean": float(np.nanmean(nats_GL))}
    # A window computes a whole segment for each token that it scores.
    return fields | {"computed": length if reading == "window" else 1} | run.describe()


def score_positions(model: TransformerXL, ids: np.ndarray, length: int, reading: str) -> np.ndarray:
    """Return nats_GL of the tokens of G segments; only that of the text's first token is nan."""
    how = {"tgt_len": length, "mem_len": length if reading == "memory" else 0}
    if reading == "window":
        how = {"tgt_len": 1, "mem_len": 0, "ext_len": length - 1}
    elif reading == "cached":
        how |= {"mem_len": length, "same_length": "mem_len"}
    # With this warm-up, the first scored token of a row is the first of a segment.
    how |= {"batch_size": ROWS_AT_ONCE, "warmup_len": 3 * length + 1}
    return stream_nats(model, ids, **how).double().numpy().reshape(-1, length)


if __name__ == "__main__":
    main()
