"""How far does a modest run come with words, and with bytes beside xz?

    python -m experiments.words.run [--seeds 1] [--only KIND ...] [--fast]

Kinds: one pass over WikiText-2 in words, with the adaptive softmax ("words"); 1.5 million bytes of
the first 4,154,064 of enwik8, of which 90 % train, with a memory of 128 ("bytes") and without, at
as many weights ("plain bytes"). The prefix is cut from enwik8, if it is not at its place.
"""

import lzma
from pathlib import Path
from typing import Any

from experiments.common import (
    checkpoint,
    count_parameters,
    curve,
    evaluate,
    fit,
    load_records,
    parse_options,
    save_record,
)
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
    # Of words, so many are rare that they learn too fast with the bytes' rate.
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


def main() -> None:
    """Train every kind with every seed."""
    only = {"nargs": "+", "choices": list(KINDS), "help": "kinds to train", "default": list(KINDS)}
    given = parse_options(__file__, __doc__, seeds=(1,), only=only)
    for kind in given.only:
        if kind != "words" and "xz" not in load_records(given.out):
            save_record(given, "xz", kind="xz", **measure_xz(given.fast))
        for seed in given.seeds:
            if f"{kind} {seed}" not in load_records(given.out):
                measure(given, kind, seed)


def find_prefix() -> Path:
    """Return the file of the first bytes of enwik8, cut from it if it is missing."""
    folder = DataConfig().data_folder
    path = folder / "enwik8_prefix.txt"
    if not path.is_file():
        [whole] = place_file(ENWIK8, folder / "enwik8")
        with whole.open("rb") as file:
            path.write_bytes(file.read(PREFIX))
    return path


def measure_xz(is_fast: bool) -> dict[str, float]:
    """Return xz's bits per byte of the test text, alone and after the training text."""
    store = (DataConfig() if is_fast else DataConfig(path=str(find_prefix()))).open()
    train, test = (store.ids(split).tobytes() for split in ("train", "test"))
    train, test = (train[:50_000], test[:50_000]) if is_fast else (train, test)
    alone, after = xz_size(test), xz_size(train + test) - xz_size(train)
    return {"bytes": len(test), "alone": 8 * alone / len(test), "after": 8 * after / len(test)}


def xz_size(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def measure(given: Any, kind: str, seed: int) -> None:
    """Train, evaluate on the test text by length of memory, record."""
    options = KINDS[kind] | {"seed_everything": seed, "trainer.precision": given.precision}
    if given.fast:
        options |= FAST | {"data.vocab": "words" if kind == "words" else "bytes"}
    elif kind != "words":
        options |= {"data.path": str(find_prefix())}
    folder = fit(given.runs / f"{kind}_{seed}".replace(" ", "_"), options)
    path = checkpoint(folder, "last")
    how = {"split": "test", "batch_size": 16, "tgt_len": 64}
    how |= {"max_tokens": 2000} if given.fast else {}
    tests = {}
    for mem_len in MEM_LENS[kind]:
        record = evaluate(path, how | {"mem_len": mem_len})
        names = ("nats", "perplexity", "bits_per_byte", "tokens_scored", "interval")
        tests[str(mem_len)] = {name: record[name] for name in names}
    about = {"kind": kind, "seed": seed, "options": options}
    about |= {"parameters": count_parameters(path), "curve": curve(folder, "val/nats")}
    save_record(given, f"{kind} {seed}", **about, test_by_mem_len=tests)


if __name__ == "__main__":
    main()
