"""Does memory help on novels, does its gain grow with training, and do longer memories help?

Each number of million tokens is a run with its whole schedule, so that no point is cut from a
longer one. "book": bits per byte of one whole test book, also by compressors.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common, compressors
from experiments.novels.texts import find_novels
from txl_lightning import CorpusDataModule, TransformerXL
from txl_lightning.files import load_yaml

SEGMENT, ROWS, BOOK_TOKENS, BEFORE = 64, 16, 12_000, 1024
CLAMP = 2 * SEGMENT - 1
MEMORY = {"model.net.mem_len": SEGMENT}
KINDS: dict[str, dict[str, Any]] = {
    "memory": MEMORY,
    "alone": {"model.net.mem_len": 0},
    "shaw": MEMORY | {"model.net.positions": "shaw", "model.net.clamp_len": CLAMP},
}
MILLIONS = {"memory": (1, 2, 4, 14), "alone": (1, 2, 4, 14), "shaw": (4,)}
LARGE = 4  # million tokens from which on other lengths are read
OPTIONS = common.QUICKSTART | {"data.order": "shuffled", "data.subwords.train_bytes": 5_000_000}
MORE = {"data.document_unit": "files", "data.tgt_len": SEGMENT, "data.batch_size": ROWS}
LENGTHS = (64, 96, 128, 192, 256, 384, 512, 1024)
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "clamped": {"clamp_len": CLAMP},
    "clamped, same_length": {"clamp_len": CLAMP, "same_length": "mem_len"},
}
BOOK, BOOK_STEPS = "Forster_Howards_1910.txt", 1500
# It needs no download.
FAST = common.FAST | {"data.path": str(common.REPOSITORY / "configs")}
FAST |= {"data.order": "ordered", "data.batch_size": 2, "data.document_unit": None}


def main() -> None:
    more = {"type": float, "nargs": "+", "help": f"millions of tokens; default: {MILLIONS}"}
    args = common.parse_args(__file__, __doc__, kinds=[*KINDS, "book"], millions=more)
    for kind in args.only:
        for millions in (args.millions or MILLIONS.get(kind, ()))[: 1 if args.fast else None]:
            for seed in args.seeds if kind != "book" else ():
                name = f"{kind} {millions:g} {seed}"
                common.measure_once(args, name, measure, kind, millions, seed)
    if "book" in args.only:
        for seed in args.seeds:
            common.measure_once(args, f"book {seed}", measure_book, seed)
        for name in compressors.COUNT:
            common.measure_once(args, name, compress_book, name)


def measure(args: Namespace, kind: str, millions: float, seed: int) -> dict[str, Any]:
    """Return nats by split, way of reading and book."""
    steps = int(millions * 1e6 / (SEGMENT * ROWS))
    more = MORE | KINDS[kind] | {"data.seed": seed} | common.plan_steps(steps)
    run = common.train(args, f"{kind} {millions:g} {seed}", seed, choose_options(args, more))
    ways = choose_ways(kind, millions)
    nats = {
        split: score_books(run.net, find_books(run, split, args.fast), ways, args.fast)
        for split in ("val", "test")
    }
    fields = {"kind": kind, "millions": millions, "seed": seed, "steps": steps, "nats": nats}
    return fields | run.describe("val/bits_per_byte")


def choose_options(args: Namespace, more: common.Options) -> dict[str, Any]:
    return OPTIONS | more | (FAST if args.fast else {"data.path": str(find_novels())})


def find_books(run: common.TrainedRun, split: str, fast: bool) -> np.ndarray:
    """Return ids_BT: the tokens of each book of a split from its tenth part on."""
    ids, n_token = run.store.ids(split), 300 if fast else BEFORE + BOOK_TOKENS
    starts = [0] if fast else [*run.store.text(split).starts, len(ids)]
    books = [ids[begin:end] for begin, end in zip(starts, [*starts[1:], len(ids)], strict=True)]
    firsts = [(book, len(book) // 10) for book in books if len(book) > n_token]
    return np.stack([book[first : first + n_token] for book, first in firsts])


def choose_ways(kind: str, millions: float) -> dict[str, dict[str, Any]]:
    """Return the lengths of each way of reading."""
    ways: dict[str, dict[str, Any]] = {"segments": {"mem_len": 0, "tgt_len": SEGMENT}}
    if kind == "alone":
        return ways | {"window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8}}
    is_large = millions >= LARGE
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
        nats_BT = common.read_rows(model, ids_BT, before, **ways[name])
        nats[name] = nats_BT.mean(dim=1).tolist()
    return nats


def find_book(args: Namespace) -> Path:
    return common.REPOSITORY / "README.md" if args.fast else find_novels() / "test" / BOOK


def train_book(args: Namespace, seed: int) -> common.TrainedRun:
    options = choose_options(args, common.plan_steps(BOOK_STEPS, 3))
    return common.train(args, f"book {seed}", seed, options)


def measure_book(args: Namespace, seed: int) -> dict[str, Any]:
    """Return bits per byte of the whole book with the memory of training, and without."""
    run, book, bits = train_book(args, seed), find_book(args), {}
    for mem_len in (0, run.net.config.mem_len):
        how = {"path": str(book), "mem_len": mem_len, "tgt_len": SEGMENT}
        bits[str(mem_len)] = run.evaluate(how)["bits_per_byte"]
    fields = {"kind": "book", "seed": seed, "book": book.name, "book_bytes": book.stat().st_size}
    return fields | {"bits_per_byte_by_mem_len": bits} | run.describe("val/bits_per_byte")


def compress_book(args: Namespace, name: str) -> dict[str, Any]:
    """Return bits per byte of the book: alone, after what a network has read, and after all."""
    run, book = train_book(args, args.seeds[0]), find_book(args)
    read, train = read_training_text(run)
    before = {"alone": b"", "read": read, "after": train}
    bits = {way: compressors.count_bits(name, book.read_bytes(), before[way]) for way in before}
    sizes = {"bytes": book.stat().st_size, "read_bytes": len(read), "train_bytes": len(train)}
    return {"kind": name, "book": book.name, "text": run.text} | sizes | bits


def read_training_text(run: common.TrainedRun) -> tuple[bytes, bytes]:
    """Return the text of all segments of training, row by row, and the whole text."""
    data = CorpusDataModule(**load_yaml((run.folder / "config.yaml").read_text())["data"])
    stream, steps = data.train_dataloader().stream, run.options["trainer.max_steps"]
    tokens_BT = torch.cat([stream.segment(n).tokens_BL for n in range(steps)], dim=1)
    read = "".join(map(data.vocab.decode, tokens_BT.tolist())).encode()
    paths = sorted(Path(run.options["data.path"], "train").glob("*.txt"))
    return read, b"".join(path.read_bytes() for path in paths) or read


if __name__ == "__main__":
    main()
