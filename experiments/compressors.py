"""Bits per byte of a text by general compressors: alone, and after a training text."""

import subprocess
from pathlib import Path
from shutil import which
from tempfile import TemporaryDirectory

from txl_lightning.errors import print_notice

ORDER = 16
"""The longest context of PPMd, in bytes."""
MEMORY = 2**30
"""The bytes of its memory."""


def count_bits(name: str, text: bytes, before: bytes = b"", **how: int) -> float:
    """Return bits per byte of a text after another one; `how` is the order of PPMd."""
    n_byte = COUNT[name](before + text, **how)
    n_before = COUNT[name](before, **how) if before else 0
    return 8 * (n_byte - n_before) / len(text)


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


COUNT = {"ppmd": count_ppmd, "zpaq": count_zpaq}


def list_installed() -> list[str]:
    """Return the compressors by name: zpaq, a program of its own, may be missing."""
    if which("zpaq"):
        return [*COUNT]
    print_notice("zpaq: left out; expected its program, to measure it")
    return ["ppmd"]
