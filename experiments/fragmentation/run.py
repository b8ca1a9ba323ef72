"""What does a token's position in its segment cost, with memory, without, with a sliding window?

    python -m experiments.fragmentation.run [--seeds 1 2 3] [--fast] [--text FILE]

Two models of bytes, one trained with memory and one without, otherwise alike: nats of the same test
text by position in the segment. The sliding window reads the model without memory anew for every
byte, from as many bytes as a segment has. Each seed has another third of the test text.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from experiments.ablation.rows import FAST, Row, Sizes, fit_options
from experiments.ablation.run import text_options
from experiments.common import checkpoint, fit, load_records, parse_options, save_record
from txl_lightning import stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text

SIZES = Sizes(vocab="bytes", n_token=256, steps=1500)
MUON = {"name": "muon", "lr": 6e-3, "muon_lr": 12e-3}
"""As in configs/quickstart.yaml."""
READINGS = ("memory", "alone", "window")
SEGMENTS, PARTS = 1024, 3
"""Segments that are scored, and parts of the text, which take turns by seed."""
ROWS_AT_ONCE = 32


def main() -> None:
    """Measure each way of reading with each seed's models."""
    given = parse_options(__file__, __doc__, text="a text in place of python_source")
    for seed in given.seeds:
        for reading in READINGS:
            if (name := f"{reading}/{seed}") not in load_records(given.out):
                save_record(given, name, **measure_positions(given, seed, reading))


def train(given: argparse.Namespace, recurrence: bool, seed: int) -> Path:
    """Return the checkpoint of a model with memory or without, trained now or before."""
    sizes = FAST if given.fast else SIZES
    row = Row("memory" if recurrence else "alone", recurrence, "sinusoidal", half=False)
    options = text_options(given.text, sizes) | fit_options(row, sizes, seed)
    options |= {f"model.optim.{key}": value for key, value in MUON.items()}
    return checkpoint(fit(given.runs / f"seed{seed}" / row.name, options), "last")


def measure_positions(given: argparse.Namespace, seed: int, reading: str) -> dict[str, Any]:
    """Return mean nats, and standard error, at each position of a segment."""
    path = train(given, reading == "memory", seed)
    model, vocab = load_run(path)
    _, store = load_training_text(path)
    length = (FAST if given.fast else SIZES).segment
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
    found = {"reading": reading, "seed": seed, "segment": length, "unit": vocab.unit}
    found |= {"nats": np.nanmean(nats_GL, axis=0).tolist(), "error": error_L.tolist()}
    found |= {"mean": float(np.nanmean(nats_GL)), "segments": len(nats_GL)}
    found |= {"parameters": sum(weight.numel() for weight in model.parameters())}
    # A window computes as many tokens as it has for each that it scores.
    return found | {"computed": length if reading == "window" else 1}


if __name__ == "__main__":
    main()
