"""How many nats does a note of a chorale cost, with memory and without?

Each seed shuffles the pieces; chorales.py makes their ids.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np

from experiments import common
from txl_lightning import stream_nats
from txl_lightning.errors import DataError

MEMORY = 256
SEGMENT = 64
ROWS = 16
STEPS = 1500
KINDS = {"memory": {"model.net.mem_len": MEMORY}, "alone": {"model.net.mem_len": 0}}
OPTIONS = {
    **common.QUICKSTART,
    **common.plan_steps(STEPS, 6),
    "model.net.dropout": 0.2,
    "data.vocab": None,
    "data.tgt_len": SEGMENT,
    "data.batch_size": ROWS,
    "data.order": "shuffled",
}
FAST = common.FAST | {"data.vocab": None}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "memory": {
        "memory": {"tgt_len": SEGMENT},
        "zero memory": {"tgt_len": SEGMENT, "mem_len": 0},
    },
    "alone": {
        "segments": {"tgt_len": SEGMENT},
        "window": {"tgt_len": 8, "ext_len": SEGMENT - 8},
        "cached": {"tgt_len": SEGMENT, "mem_len": SEGMENT, "same_length": "mem_len"},
    },
}
"""Ways of reading by kind."""


def main() -> None:
    ids = {"type": Path, "default": Path("runs/music/ids"), "help": "folder made by chorales.py"}
    args = common.parse_args(__file__, __doc__, kinds=KINDS, ids=ids)
    common.measure_kinds(args, measure)


def train(args: Namespace, kind: str, seed: int) -> common.TrainedRun:
    files, starts = (
        [str((args.ids / f"{split}{end}.npy").resolve()) for split in ("train", "val", "test")]
        for end in ("", "_starts")
    )
    options = OPTIONS | KINDS[kind] | {"data.ids": files, "data.id_options.starts": starts}
    options |= {"data.seed": seed, "data.id_options.n_token": len(load_names(args.ids))}
    return common.train(args, f"{kind} {seed}", seed, options | (FAST if args.fast else {}))


def load_names(folder: Path) -> list[str]:
    """Return the name of each id, as "Pitch_60"."""
    path = folder / "names.json"
    if not path.is_file():
        raise DataError(f"{path}: missing; experiments/music/chorales.py makes it, for --ids")
    return json.loads(path.read_text())


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats per note of the test pieces by way of reading."""
    run = train(args, kind, seed)
    names = load_names(args.ids)
    ids_T = run.store.ids("test")
    starts = [*run.store.text("test").starts]
    pieces = np.split(np.asarray(ids_T), starts[1:])[: 2 if args.fast else None]
    nats = {name: measure_nats(run.net, pieces, names, how) for name, how in WAYS[kind].items()}
    fields = {"kind": kind, "seed": seed, "nats_per_note": nats}
    return fields | run.describe("val/loss")


def measure_nats(
    net: Any, pieces: list[np.ndarray], names: list[str], how: dict[str, Any]
) -> float:
    """Return the nats of all tokens of pieces by their notes; each piece is read alone."""
    nats = sum(stream_nats(net, ids_T, batch_size=1, **how).double().sum() for ids_T in pieces)
    notes = sum(names[index].startswith("Pitch_") for ids_T in pieces for index in ids_T)
    return float(nats) / notes


if __name__ == "__main__":
    main()
