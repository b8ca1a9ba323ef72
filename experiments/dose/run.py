"""Does memory's gain grow with training, and do longer memories at evaluation help?

    python -m experiments.dose.run [--seeds 1 2 3] [--only KIND ...] [--doses 1 14] [--fast]

The quickstart's network with segments and a memory of 64, on novels98 (documents shuffled anew by
each seed); the same without memory; and Shaw's positions with memory. Each dose, in millions of
tokens, is a run of its own with its whole schedule, so that no point is cut from a longer one. Each
book of a split is a row of one reading: lengths are chosen on the 6 books of the validation text,
and the 6 books of the test text are reported, authors of neither being in another split. Without
memory the rival is read in segments, as trained, and by a window that moves by 8 tokens. Lengths
other than that of training are read after the largest doses only, and Shaw's positions trained with
one dose.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.data.settings import DataConfig

SEGMENT, ROWS, BOOK_TOKENS, BEFORE = 64, 16, 12_000, 1024
KINDS = {
    "memory": {"model.net.mem_len": SEGMENT},
    "alone": {"model.net.mem_len": 0},
    "shaw": {
        "model.net.mem_len": SEGMENT,
        "model.net.positions": "shaw",
        "model.net.clamp_len": 2 * SEGMENT - 1,
    },
}
DOSES = {"memory": (1, 2, 4, 14), "alone": (1, 2, 4, 14), "shaw": (4,)}
LARGE = 4  # million tokens from which on other lengths are read
OPTIONS = {
    "config": "configs/quickstart.yaml",
    "plan.minutes": None,
    "data.order": "shuffled",
    "data.document_unit": "files",
    "data.subwords.train_bytes": 5_000_000,
    "data.tgt_len": SEGMENT,
    "data.batch_size": ROWS,
}
CLAMP = 2 * SEGMENT - 1
LENGTHS = (64, 96, 128, 192, 256, 384, 512, 1024)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clamped": {"clamp_len": CLAMP},
    "clamped, same_length": {"clamp_len": CLAMP, "same_length": "mem_len"},
}


def main() -> None:
    """Train each kind with each dose and seed; score the books of both splits."""
    doses = {"type": float, "nargs": "+", "help": f"millions of tokens; default: {DOSES}"}
    args = common.parse_args(__file__, __doc__, kinds=KINDS, doses=doses)
    for kind in args.only:
        for dose in (args.doses or DOSES[kind])[: 1 if args.fast else None]:
            for seed in args.seeds:
                common.measure_once(args, f"{kind} {dose:g} {seed}", measure, kind, dose, seed)


def measure(args: Namespace, kind: str, dose: float, seed: int) -> dict[str, Any]:
    """Return nats by split, way of reading and book."""
    steps = int(dose * 1e6 / (SEGMENT * ROWS))
    options = OPTIONS | KINDS[kind] | {"data.path": str(DataConfig().data_folder / "novels98")}
    options |= {"data.seed": seed, "trainer.max_steps": steps, "trainer.val_check_interval": steps}
    if args.fast:
        options |= common.FAST | {"data.path": str(common.REPOSITORY / "experiments/own_text")}
        options |= {"data.order": "ordered", "data.batch_size": 2, "data.document_unit": None}
    run = common.train(args, f"{kind} {dose:g} {seed}", seed, options)
    ways = choose_ways(kind, dose)
    nats = {
        split: score_books(run.net, find_books(run, split, args.fast), ways, args.fast)
        for split in ("val", "test")
    }
    fields = {"kind": kind, "dose": dose, "seed": seed, "steps": steps, "nats": nats}
    return fields | run.describe("val/bits_per_byte")


def find_books(run: common.TrainedRun, split: str, fast: bool) -> np.ndarray:
    """Return ids_BT: the tokens of each book of a split from its tenth part on."""
    ids, n_token = run.store.ids(split), 300 if fast else BEFORE + BOOK_TOKENS
    starts = [0] if fast else [*run.store.text(split).starts, len(ids)]
    books = [ids[begin:end] for begin, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    firsts = [(book, len(book) // 10) for book in books if len(book) > n_token]
    return np.stack([book[first : first + n_token] for book, first in firsts])


def choose_ways(kind: str, dose: float) -> dict[str, dict[str, Any]]:
    """Return the lengths of each way of reading."""
    ways: dict[str, dict[str, Any]] = {"segments": {"mem_len": 0, "tgt_len": SEGMENT}}
    if kind == "alone":
        return ways | {"window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8}}
    is_large = dose >= LARGE
    lengths = LENGTHS if is_large else (SEGMENT,)
    for name, more in WAYS.items() if kind == "memory" and is_large else [("plain", {})]:
        for mem_len in lengths:
            ways[f"{name} {mem_len}"] = {"mem_len": mem_len, "tgt_len": SEGMENT} | more
    return ways


def score_books(
    model: TransformerXL, ids_BT: np.ndarray, ways: dict[str, dict[str, Any]], fast: bool
) -> dict[str, list[float]]:
    """Return the mean nats of the same tokens of each book, by the way they are read."""
    before, nats = 128 if fast else BEFORE, {}
    for name in list(ways)[: 4 if fast else None]:
        nats_BT = stream_nats(model, ids_BT.ravel(), batch_size=len(ids_BT), **ways[name])
        nats[name] = nats_BT[:, before - 1 :].double().mean(dim=1).tolist()
    return nats


if __name__ == "__main__":
    main()
