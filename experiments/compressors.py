"""Bits per byte of a text by general compressors: alone, and after a training text."""

import lzma
import subprocess
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from experiments import common
from txl_lightning.data.sources import DataConfig

ORDER = 16
"""The longest context of PPMd, in bytes."""
MEMORY = 2**30
"""The bytes of its memory."""
GENERAL = ("xz", "ppmd")


def measure_all(args: Namespace, choose_text: Callable[[Namespace], DataConfig]) -> None:
    for name in GENERAL:
        common.measure_once(args, name, measure, name, choose_text)


def measure(
    args: Namespace, name: str, choose_text: Callable[[Namespace], DataConfig]
) -> dict[str, Any]:
    """Return a compressor's bits per byte of the test text."""
    store = choose_text(args).open_text()
    end = 50_000 if args.fast else None
    train, test = (store.ids(split)[:end].tobytes() for split in ("train", "test"))
    fields = {"kind": name, "text": store.manifest["text"], "bytes": len(test)}
    return fields | {"alone": count_bits(name, test), "after": count_bits(name, test, train)}


def count_bits(name: str, text: bytes, before: bytes = b"", **how: int) -> float:
    """Return bits per byte of a text after another one; `how` is the order of PPMd."""
    n_byte = COUNT[name](before + text, **how)
    n_before = COUNT[name](before, **how) if before else 0
    return 8 * (n_byte - n_before) / len(text)


def count_xz(text: bytes) -> int:
    return len(lzma.compress(text, preset=9 | lzma.PRESET_EXTREME))


def count_ppmd(text: bytes, order: int = ORDER) -> int:
    # A package of the development environment alone.
    from pyppmd import Ppmd7Encoder

    encoder = Ppmd7Encoder(order, MEMORY)
    return len(encoder.encode(text)) + len(encoder.flush())


def count_zpaq(text: bytes) -> int:
    # Its header has the name and date of a file: some tens of bytes, in both sizes of count_bits.
    with TemporaryDirectory() as folder:
        (Path(folder) / "text").write_bytes(text)
        command = ["zpaq", "add", "text.zpaq", "text", "-m5", "-t1"]
        subprocess.run(command, cwd=folder, check=True, capture_output=True)
        return (Path(folder) / "text.zpaq").stat().st_size


COUNT = {"xz": count_xz, "ppmd": count_ppmd, "zpaq": count_zpaq}
