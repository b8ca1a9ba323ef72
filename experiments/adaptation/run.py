"""What do a cache and gradient steps at evaluation save, and is that enough to beat PPMd?

`evaluate --adapt auto` chooses rate, theta and weight on the validation text. The test text is read
in one row: static, with the chosen rate alone, with the chosen cache alone, and with both.
"""

import shutil
from argparse import Namespace
from pathlib import Path
from typing import Any

from experiments import common, compressors
from experiments.novels.texts import find_novels
from txl_lightning.data.sources import DataConfig

STEPS = 2549
SEGMENT = 64
SECONDS = 90
OPTIONS = common.QUICKSTART | common.plan_steps(STEPS, 5) | {"checkpoint.every_n_steps": 300}
# As txl_lightning/training/own_text.py chooses for texts of up to 3 MB.
SMALL = {"data.subwords.n_token": 2048, "model.net.dropout": 0.1, "data.restart_len": 512}
KINDS: dict[str, dict[str, Any]] = {
    "python source": {},
    "novels": {"data.restart_len": 512},
    "novel": SMALL,
    "shakespeare": SMALL | {"data.corpus": "tiny_shakespeare", "data.split": [0.9, 0.05, 0.05]},
}
NOVELS_BYTES = 10_000_000
ORDERS = (4, 6, 8, 16)
PARTS = {"static": (), "steps": ("rate",), "cache": ("cache_len", "cache_theta", "cache_weight")}
"""Fields of an adaptation by the way of reading; "both" has all."""


def main() -> None:
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS)
    for kind in args.only:
        common.measure_once(args, f"ppmd {kind}", compress, kind)
        if shutil.which("zpaq"):
            common.measure_once(args, f"zpaq {kind}", compress_by_mixing, kind)
    common.measure_kinds(args, measure)


def choose_text(args: Namespace, kind: str) -> dict[str, Any]:
    options = dict(KINDS[kind])
    if args.fast:
        options.pop("data.corpus", None)
        options |= {"data.path": str(common.REPOSITORY / "CONTRIBUTING.md")}
    elif kind == "novel":
        options |= {"data.path": str(find_novels() / "test" / "Forster_Howards_1910.txt")}
    elif kind == "novels":
        options |= {"data.path": str(copy_novels(find_novels() / "train", args.runs / "novels"))}
    return options


def copy_novels(source: Path, target: Path) -> Path:
    """Copy the first novels of at most NOVELS_BYTES together to a folder."""
    target.mkdir(parents=True, exist_ok=True)
    n_byte = 0
    for path in sorted(source.glob("*.txt")):
        n_byte += path.stat().st_size
        if n_byte > NOVELS_BYTES:
            break
        shutil.copyfile(path, target / path.name)
    return target


def open_splits(args: Namespace, kind: str) -> tuple[str, dict[str, bytes]]:
    """Return the fingerprint of a text, and the bytes of its splits."""
    options = choose_text(args, kind)
    names = ("path", "corpus", "split")
    given = {n: options[f"data.{n}"] for n in names if f"data.{n}" in options}
    store = DataConfig(**given, vocab="bytes").open_text()
    end = 20_000 if args.fast else None
    splits = {split: store.ids(split)[:end].tobytes() for split in ("train", "val", "test")}
    return store.manifest["text"], splits


def compress_by_mixing(args: Namespace, kind: str) -> dict[str, Any]:
    """Return bits per byte of the test text by zpaq -m5, alone and after other text.

    Its tables grow with the text, at powers of two: differences of sizes across one are wrong.
    After training and validation text together they mostly have their final size.
    """
    text, splits = open_splits(args, kind)
    train, val, test = splits.values()
    return {
        "kind": f"zpaq {kind}",
        "text": text,
        "bytes": {split: len(each) for split, each in splits.items()},
        "alone": compressors.count_bits("zpaq", test),
        "after": compressors.count_bits("zpaq", test, train + val),
    }


def compress(args: Namespace, kind: str) -> dict[str, Any]:
    """Return bits per byte of the test text by PPMd, alone and after the training text."""
    text, splits = open_splits(args, kind)
    train, val, test = splits.values()
    bits = {order: compressors.count_bits("ppmd", val, train, order=order) for order in ORDERS}
    order = min(ORDERS, key=bits.__getitem__)
    return {
        "kind": f"ppmd {kind}",
        "text": text,
        "bytes": {split: len(each) for split, each in splits.items()},
        "val": {str(key): value for key, value in bits.items()},
        "order": order,
        "alone": compressors.count_bits("ppmd", test, order=order),
        "after": compressors.count_bits("ppmd", test, train, order=order),
    }


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte and seconds of the test text, static and adapted."""
    options = OPTIONS | choose_text(args, kind) | (common.FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    how = {"split": "test", "tgt_len": SEGMENT} | ({"max_tokens": 500} if args.fast else {})
    limit = {"adapt_tokens": 500} if args.fast else {"adapt_seconds": SECONDS}
    auto = {"adapt": "auto"} | limit
    tests = {"both": run.evaluate(how | auto)}
    chosen = tests["both"]["adapt"]["values"]
    for name, fields in PARTS.items():
        tests[name] = run.evaluate(how | {field: chosen[field] for field in fields})
    kept = ("tokens_scored", "seconds", "adaptation", "adapt", "interval")
    found = {name: {key: test[key] for key in kept} for name, test in tests.items()}
    fields = {"kind": kind, "seed": seed, "chosen": chosen, "steps": options["trainer.max_steps"]}
    bits = {name: test["bits_per_byte"] for name, test in tests.items()}
    return fields | {"bits_per_byte": bits, "tests": found} | run.describe("val/bits_per_byte")


if __name__ == "__main__":
    main()
