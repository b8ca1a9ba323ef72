"""How many nats does a note of a chorale cost, with memory and without?

    python -m experiments.music.run [--ids runs/music/ids] [--seeds 1 2 3] [--fast]

chorales.py makes the ids. Pieces are documents: nothing is remembered from one in the next, and
each seed shuffles them. "memory" and "alone" have equal parameters and steps; the one without is
read in segments, as trained, and by a window that moves by 8 tokens. The first seed's network with
memory continues the first bars of a test piece.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
from txl_lightning import generate, stream_nats

MEMORY, SEGMENT, ROWS, STEPS = 256, 64, 16, 1500
KINDS = {"memory": {"model.net.mem_len": MEMORY}, "alone": {"model.net.mem_len": 0}}
OPTIONS = {
    "config": "configs/quickstart.yaml",
    "plan.minutes": None,
    "model.net.dropout": 0.2,
    "data.vocab": None,
    "data.tgt_len": SEGMENT,
    "data.batch_size": ROWS,
    "data.order": "shuffled",
    "trainer.max_steps": STEPS,
    "trainer.val_check_interval": STEPS // 6,
}
WAYS: dict[str, dict[str, dict[str, Any]]] = {
    "memory": {"memory": {"tgt_len": SEGMENT}, "robbed": {"tgt_len": SEGMENT, "mem_len": 0}},
    "alone": {"segments": {"tgt_len": SEGMENT}, "window": {"tgt_len": 8, "ext_len": SEGMENT - 8}},
}
"""Ways of reading by kind."""
BARS, NEW = 2, 600  # bars of the prompt, and new tokens


def main() -> None:
    """Train each kind with each seed, and continue a piece."""
    ids = {"type": Path, "default": Path("runs/music/ids"), "help": "folder made by chorales.py"}
    args = common.parse_args(__file__, __doc__, kinds=KINDS, ids=ids)
    common.measure_kinds(args, measure)
    if "memory" in args.only:
        common.measure_once(args, "continuation", continue_piece)


def train(args: Namespace, kind: str, seed: int) -> common.TrainedRun:
    files, starts = (
        [str((args.ids / f"{split}{end}.npy").resolve()) for split in ("train", "val", "test")]
        for end in ("", "_starts")
    )
    options = OPTIONS | KINDS[kind] | {"data.ids": files, "data.id_options.starts": starts}
    options |= {"data.seed": seed, "data.id_options.n_token": len(load_names(args.ids))}
    fast = {name: value for name, value in common.FAST.items() if name != "data.vocab"}
    return common.train(args, f"{kind} {seed}", seed, options | (fast if args.fast else {}))


def load_names(folder: Path) -> list[str]:
    """Return the name of each id, as "Pitch_60"."""
    return json.loads((folder / "names.json").read_text())


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats per note of the test pieces by way of reading."""
    run, names = train(args, kind, seed), load_names(args.ids)
    ids_T, starts = run.store.ids("test"), [*run.store.text("test").starts]
    pieces = np.split(np.asarray(ids_T), starts[1:])[: 2 if args.fast else None]
    nats = {name: measure_nats(run.net, pieces, names, how) for name, how in WAYS[kind].items()}
    fields = {"kind": kind, "seed": seed, "nats_per_note": nats}
    return fields | run.describe("val/loss")


def measure_nats(
    net: Any, pieces: list[np.ndarray], names: list[str], how: dict[str, Any]
) -> float:
    """Return the nats of all tokens of pieces by their notes; each piece is read alone."""
    nats = sum(stream_nats(net, ids_T, batch_size=1, **how).double().sum() for ids_T in pieces)
    return float(nats) / sum(count_notes(ids_T, names) for ids_T in pieces)


def count_notes(ids_T: np.ndarray, names: list[str]) -> int:
    return sum(names[index].startswith("Pitch_") for index in ids_T)


def continue_piece(args: Namespace) -> dict[str, Any]:
    """Return the first bars of a test piece, and how the network goes on: names of tokens."""
    run, names = train(args, "memory", args.seeds[0]), load_names(args.ids)
    bars = np.flatnonzero(run.store.ids("test") == names.index("Bar_None"))
    prompt_L = torch.from_numpy(np.asarray(run.store.ids("test")[: bars[BARS]], dtype=np.int64))
    new_L = generate(
        run.net, prompt_L, 8 if args.fast else NEW, seed=1, temperature=0.9, min_p=0.05
    )
    tokens = [[names[index] for index in each_L.tolist()] for each_L in (prompt_L, new_L)]
    return {"kind": "continuation", "text": run.text, "prompt": tokens[0], "new": tokens[1]}


if __name__ == "__main__":
    main()
