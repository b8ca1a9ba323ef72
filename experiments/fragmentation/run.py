"""What does a token's position in its segment cost, with memory, without, with a sliding window?

    python -m experiments.fragmentation.run [--seeds 1 2 3] [--fast] [--text FILE]

With the models of experiments/ablation, trained if they are not there, with and without recurrence
and otherwise alike: nats of the same test tokens by position in the segment. The sliding window
reads the model without memory anew for every token, from as many tokens as a segment has.
"""

import argparse
from typing import Any

import numpy as np

from experiments.ablation.rows import ROWS
from experiments.ablation.run import pick_sizes, train_row
from experiments.common import checkpoint, load_records, parse_options, save_record
from txl_lightning import stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text

BY_NAME = {row.name: row for row in ROWS}
ROW_OF = {
    "memory": "recurrence_ours_full",
    "alone": "alone_ours_full",
    "window": "alone_ours_full",
}
SEGMENTS, PARTS = 1024, 3
"""Segments that are scored, and parts of the text, which take turns by seed."""
ROWS_AT_ONCE = 32


def main() -> None:
    """Measure each way of reading with each seed's models."""
    given = parse_options(__file__, __doc__, text="a text in place of python_source")
    for seed in given.seeds:
        for reading in ROW_OF:
            if (name := f"{reading}/{seed}") not in load_records(given.out):
                save_record(given, name, **measure_positions(given, seed, reading))


def measure_positions(given: argparse.Namespace, seed: int, reading: str) -> dict[str, Any]:
    """Return mean nats, and standard error, at each position of a segment."""
    sizes, row = pick_sizes(given.fast), BY_NAME[ROW_OF[reading]]
    ablation = given.runs.parent / "ablation"
    path = checkpoint(train_row(given, ablation, row, seed), "last")
    model, _ = load_run(path)
    _, store = load_training_text(path)
    length = sizes.segment
    ids = np.array_split(store.ids("test"), PARTS)[seed % PARTS]
    ids = ids[: (64 if given.fast else SEGMENTS) * length]
    how = {"tgt_len": length, "mem_len": length if reading == "memory" else 0}
    if reading == "window":
        how = {"tgt_len": 1, "mem_len": 0, "ext_len": length - 1}
    # Of a row's own tokens, the first is then the first that a segment predicts.
    warmup = 3 * length + 1
    nats_BT = stream_nats(model, ids, batch_size=ROWS_AT_ONCE, warmup_len=warmup, **how)
    nats_GL = nats_BT.double().numpy().reshape(-1, length)
    error_L = np.nanstd(nats_GL, axis=0, ddof=1) / len(nats_GL) ** 0.5
    found = {"reading": reading, "seed": seed, "row": row.name, "segment": length}
    found |= {"nats": np.nanmean(nats_GL, axis=0).tolist(), "error": error_L.tolist()}
    found |= {"mean": float(np.nanmean(nats_GL)), "segments": len(nats_GL)}
    # A window computes as many tokens as it has for each that it scores.
    return found | {"computed": length if reading == "window" else 1}


if __name__ == "__main__":
    main()
