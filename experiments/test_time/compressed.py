"""Bits per byte of what is read by general compressors: alone, and after the training text.

As with every way, what can be chosen is chosen on the first tokens of validation text.
"""

from argparse import Namespace
from collections.abc import Iterable
from typing import Any

from experiments import common
from experiments.compressors import COUNT, count_bits, list_installed
from experiments.test_time.figures import BEFORE_INDEX, COMPRESSED, DOCUMENTATION
from experiments.test_time.sizes import CORPUS, open_store, read_bytes
from experiments.test_time.texts import find_index

ORDERS = {"ppmd": (4, 6, 8, 16, 32, 64)}
"""The longest contexts that are tried, in bytes."""
NOTHING = {"ppmd": b"", "zpaq": b"\n"}
"""What is before a text that is read alone: an archive of one byte has 1 kB, in both sizes."""
FAST_TOKENS = 20_000
"""Of training text, if fast."""


def measure_all(args: Namespace, texts: Iterable[str], n_token: int) -> None:
    for name in list_installed():
        for when in COMPRESSED:
            common.measure_once(args, f"{name} {when}", measure, name, when, texts, n_token)


def measure(
    args: Namespace, name: str, when: str, texts: Iterable[str], n_token: int
) -> dict[str, Any]:
    """Return a record: bits per byte of each text, and of the documentation before its index."""
    store = open_store(args)
    read = {text: read_bytes(store, text, n_token) for text in texts}
    if DOCUMENTATION in read:
        read[BEFORE_INDEX] = read[DOCUMENTATION][: find_index(read[DOCUMENTATION])]
    train = store.ids("train")[: FAST_TOKENS if args.fast else None]
    before = store.vocab.decode(train).encode() if when == "after" else NOTHING[name]
    val = read_bytes(store, CORPUS, n_token, "val")
    orders = ORDERS.get(name, ())
    tried = {f"{order}": count_bits(name, val, before, order=order) for order in orders}
    options = {"order": int(min(tried, key=tried.__getitem__))} if tried else {}
    fields = {"kind": "compressor", "compressor": name, "when": when, "options": options}
    fields |= {"bits_per_byte": count_each(name, read, before, **options), "tried": tried}
    fields |= {"bytes": {text: len(each) for text, each in read.items()}}
    return fields | {"bytes_before": len(before), "text": store.manifest["text"]}


def count_each(name: str, texts: dict[str, bytes], before: bytes, **how: int) -> dict[str, float]:
    """Return bits per byte of each text after `before`, which is compressed once."""
    n_before = COUNT[name](before, **how) if before else 0
    return {
        text: 8 * (COUNT[name](before + each, **how) - n_before) / len(each)
        for text, each in texts.items()
    }
