"""What do short runs on bytes and on words reach, compared with xz and published results?

    python -m experiments.words.run [--seeds 1] [--only KIND ...] [--fast]

Kinds: one pass over WikiText-2 in words, with the adaptive softmax ("words"); 1.5 million bytes of
the first 4,154,064 of enwik8 (90 % of these are for training), with a memory of 128 ("bytes") and
without memory, with the same parameters ("plain bytes"). The prefix is cut from enwik8.
"""

import lzma
from argparse import Namespace
from pathlib import Path
from typing import Any

from experiments import common
from txl_lightning.checkpoints import load_run
from txl_lightning.data.config import DataConfig
from txl_lightning.data.corpora import ENWIK8, place_file

PREFIX = 4_154_064
NET = {
    "model.net.n_layer": 4,
    "model.net.n_head": 4,
    "model.net.d_model": 128,
    "model.net.mem_len": 128,
    "model.net.norm": "pre",
    "model.net.init_std": 0.05,
    "model.optim.name": "muon",
    "model.optim.lr": 6e-3,
    "model.optim.muon_lr": 12e-3,
    "model.optim.betas": [0.9, 0.95],
    "model.optim.weight_decay": 0.25,
    "model.optim.warmup_steps": 100,
    "data.tgt_len": 64,
    "data.batch_size": 16,
    "trainer.max_steps": 1500,
    "trainer.val_check_interval": 500,
    "trainer.limit_val_batches": 50,
    "trainer.gradient_clip_val": 1.0,
}
WORDS = NET | {
    "data.corpus": "wikitext2",
    "model.net.d_model": 160,
    "model.net.dropout": 0.1,
    "model.net.cutoffs": [2000, 10000],
    "model.net.div_val": 1,
    # Most words are rare: the rate of bytes is too high for their embeddings.
    "model.optim.lr": 3e-3,
    "trainer.max_steps": 2040,
    "trainer.val_check_interval": 1020,
}
KINDS = {"bytes": NET, "plain bytes": NET | {"model.net.mem_len": 0}, "words": WORDS}
FAST = {
    # It needs no download.
    "data.corpus": "python_source",
    "trainer.max_steps": 4,
    "trainer.val_check_interval": 4,
    "trainer.limit_val_batches": 2,
}
MEM_LENS = {"bytes": (0, 128, 256), "plain bytes": (0,), "words": (0, 128, 256)}
"""Memory lengths in evaluation."""
FIELDS = ("nats", "perplexity", "bits_per_byte", "tokens_scored", "interval")
"""Fields of an evaluation that the record keeps."""


def main() -> None:
    """Train and evaluate each kind with each seed, and compress the same text with xz."""
    only = {"nargs": "+", "choices": list(KINDS), "help": "kinds to train", "default": list(KINDS)}
    args = common.parse_args(__file__, __doc__, seeds=(1,), only=only)
    for kind in args.only:
        if kind != "words":
            common.measure_once(args, "xz", measure_xz, args.fast)
        for seed in args.seeds:
            common.measure_once(args, f"{kind} {seed}", measure, args, kind, seed)


def find_prefix() -> Path:
    """Return the file of the first bytes of enwik8, cut from it if it is missing."""
    folder = DataConfig().data_folder
    path = folder / "enwik8_prefix.txt"
    if not path.is_file():
        [whole] = place_file(ENWIK8, folder / "enwik8")
        with whole.open("rb") as file:
            path.write_bytes(file.read(PREFIX))
    return path


def measure_xz(is_fast: bool) -> dict[str, Any]:
    """Return xz's bits per byte of the test text, alone and after the training text."""
    store = (DataConfig() if is_fast else DataConfig(path=str(find_prefix()))).open()
    train, test = (store.ids(split).tobytes() for split in ("train", "test"))
    train, test = (train[:50_000], test[:50_000]) if is_fast else (train, test)
    alone, after = xz_size(test), xz_size(train + test) - xz_size(train)
    bits = {"alone": 8 * alone / len(test), "after": 8 * after / len(test)}
    return {"kind": "xz", "bytes": len(test), **bits}


def xz_size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return evaluations of the test text by memory length, and the learning curve."""
    options = choose_options(args, kind, seed)
    run = common.fit(args.runs / f"{kind}_{seed}".replace(" ", "_"), options)
    path = common.checkpoint(run)
    how = {"split": "test", "batch_size": 16, "tgt_len": 64}
    how |= {"max_tokens": 2000} if args.fast else {}
    tests = {}
    for mem_len in MEM_LENS[kind]:
        record = common.evaluate(path, how | {"mem_len": mem_len})
        tests[str(mem_len)] = {name: record[name] for name in FIELDS}
    found = {"kind": kind, "seed": seed, "options": options, "test_by_mem_len": tests}
    found |= {"parameters": common.count_parameters(load_run(path)[0])}
    return found | {"curve": common.load_curve(run, "val/nats")}


def choose_options(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    options = KINDS[kind] | {"seed_everything": seed, "trainer.precision": args.precision}
    if args.fast:
        return options | FAST | {"data.vocab": "words" if kind == "words" else "bytes"}
    return options if kind == "words" else options | {"data.path": str(find_prefix())}


if __name__ == "__main__":
    main()
