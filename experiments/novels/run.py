"""Does memory help on novels, and do longer memories help?"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common
from experiments.novels.texts import find_novels
from txl_lightning import TransformerXL

SEGMENT = 64
ROWS = 16
BOOK_TOKENS = 12_000
BEFORE = 1024
CLAMP = 2 * SEGMENT - 1
KINDS = {"memory": {"model.net.mem_len": SEGMENT}, "alone": {"model.net.mem_len": 0}}
STEPS = 13_671
"""14 million tokens."""
OPTIONS = {
    **common.QUICKSTART,
    "data.order": "shuffled",
    "data.subwords.train_bytes": 5_000_000,
    "data.document_unit": "files",
    "data.tgt_len": SEGMENT,
    "data.batch_size": ROWS,
}
LENGTHS = (64, 96, 128, 192, 256, 384, 512, 1024)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clamped": {"clamp_len": CLAMP},
    "clamped, same_length": {"clamp_len": CLAMP, "same_length": "mem_len"},
}
# It needs no download.
FAST = common.FAST | {"data.path": str(common.REPOSITORY / "configs")}
FAST |= {"data.order": "ordered", "data.batch_size": 2, "data.document_unit": None}


def main() -> None:
    args = common.parse_args(__file__, __doc__, kinds=KINDS)
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Return nats by split, way of reading and book."""
    options = OPTIONS | KINDS[kind] | {"data.seed": seed} | common.plan_steps(STEPS)
    options |= FAST if args.fast else {"data.path": str(find_novels())}
    run = common.train(args, f"{kind} {seed}", seed, options)
    ways = choose_ways(kind)
    nats = {
        split: score_books(run.net, find_books(run, split, args.fast), ways, args.fast)
        for split in ("val", "test")
    }
    fields = {"kind": kind, "seed": seed, "nats": nats}
    return fields | run.describe("val/bits_per_byte")


def find_books(run: common.TrainedRun, split: str, fast: bool) -> np.ndarray:
    """Return ids_BT: the tokens of each book of a split from its tenth part on."""
    ids = run.store.ids(split)
    n_token = 300 if fast else BEFORE + BOOK_TOKENS
    books = [ids] if fast else np.split(ids, [*run.store.text(split).starts][1:])
    firsts = [(book, len(book) // 10) for book in books if len(book) > n_token]
    return np.stack([book[first : first + n_token] for book, first in firsts])


def choose_ways(kind: str) -> dict[str, dict[str, Any]]:
    """Return the lengths of each way of reading."""
    ways: dict[str, dict[str, Any]] = {"segments": {"mem_len": 0, "tgt_len": SEGMENT}}
    if kind == "alone":
        window = {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8}
        cached = {"mem_len": SEGMENT, "tgt_len": SEGMENT, "same_length": "mem_len"}
        return ways | {"window": window, "cached": cached}
    for name, more in WAYS.items():
        for mem_len in LENGTHS:
            ways[f"{name} {mem_len}"] = {"mem_len": mem_len, "tgt_len": SEGMENT} | more
    return ways


def score_books(
    model: TransformerXL, ids_BT: np.ndarray, ways: dict[str, dict[str, Any]], fast: bool
) -> dict[str, list[float]]:
    """Return the mean nats of the same tokens of each book, by the way they are read."""
    before = 128 if fast else BEFORE
    nats = {}
    for name in list(ways)[: 4 if fast else None]:
        nats_BT = common.read_rows(model, ids_BT, before, **ways[name])
        nats[name] = nats_BT.mean(dim=1).tolist()
    return nats


if __name__ == "__main__":
    main()
