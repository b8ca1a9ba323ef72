"""The type of ids in a .bin: by the header of llm.c, or else assumed, and checked.

A flat .bin does not say its type. The high bytes of ids vary less than the low ones. So the entropy
of the bytes at each place of eight shows the width of an id, and the order of its bytes.
"""

import warnings
from pathlib import Path

import numpy as np
from numpy import ndarray

from ..errors import DataError
from .text_files import find_binary

ASSUMED = np.dtype("<u2")  # as nanoGPT and litgpt write
HEADER = 1024  # bytes before the ids of llm.c
LLM_C = {20240520: (1, "<u2"), 20240801: (7, "<u4")}  # version and type, by the first number
DATES = range(2020_01_01, 2040_01_01)  # first numbers of other files of llm.c, before a version
VERSIONS = range(1, 100)
OTHER_FORMATS = {
    b"LITPKDS": "a packed chunk of litgpt", b"PK\3\4": "a zip", b"\x1f\x8b\x08": "a gzip",
    b"\x28\xb5\x2f\xfd": "a zstd", b"\x93NUMPY": "a .npy", b"MMIDIDX": "an index of Megatron",
    b"ARROW1": "an Arrow file", b"PAR1": "a Parquet file", b"GGUF": "a GGUF file",
}  # fmt: skip
"""Kinds of files by their first bytes."""
SAMPLE_BYTES = 1 << 16  # bytes of a part of the sample of a file
N_SAMPLE = 32  # parts of it
EVIDENCE = 500  # bits of a sample from which a type is refused
VARIED = 7.0  # bits of a byte that has most of its values
UNIFORM = 7.5  # bits of a byte that may have any value: such bytes show no width
SAME = 0.25  # share of bytes by which samples of one distribution differ at most
MIN_TEXT_BYTES = 128  # bytes below which ids may look like a text


def find_type(path: Path, given: str | None) -> tuple[np.dtype, int, bool]:
    """Return the type of the ids in a .bin, the byte where they begin, and whether it is assumed.

    DataError if the file looks like something else, and no type is given.
    """
    with path.open("rb") as file:
        start = np.frombuffer(file.read(12).ljust(12, b"\0"), "<i4")
    magic, version, n_id = map(int, start)
    if magic in DATES and version in VERSIONS:
        return read_header(path, magic, version, n_id), HEADER, False
    if given is not None:
        dtype = np.dtype(given).newbyteorder("<")
        warn_of_wider_ids(path, dtype)
        return dtype, 0, False
    check_assumed_type(path)
    return ASSUMED, 0, True


def warn_of_wider_ids(path: Path, dtype: np.dtype) -> None:
    """Warn if every second id is 0, as where ids have twice the width of the given type.

    That type may be of a run, and the file another one.
    """
    sample = read_sample(path).ravel().view(dtype)
    if len(sample) > 1 and sample[::2].any() and not sample[1::2].any():
        width = 8 * dtype.itemsize
        reason = f"every second id of {width} bits is 0; it may have ids of {2 * width} bits"
        warnings.warn(f"{path}: {reason} (data.id_options.dtype)", stacklevel=2)


def read_header(path: Path, magic: int, version: int, n_id: int) -> np.dtype:
    """Return the type that a header of llm.c says; DataError for an unknown or truncated file."""
    known, name = LLM_C.get(magic, (None, "<u2"))
    if version != known:
        found = f"unknown header {magic}, version {version}"
        raise DataError(f"{path}: {found}; expected llm.c's of uint16 or uint32, or none")
    dtype = np.dtype(name)
    n_byte = path.stat().st_size
    expected = HEADER + n_id * dtype.itemsize
    if n_byte != expected:
        ids = f"{expected:,}, as its header says"
        raise DataError(f"{path}: truncated: {n_byte:,} bytes; expected {ids}")
    return dtype


def check_assumed_type(path: Path) -> None:
    """Raise a DataError for a file that looks like another type than the assumed one."""
    with path.open("rb") as file:
        start = file.read(8)
    marked = (name for mark, name in OTHER_FORMATS.items() if start.startswith(mark))
    kind = next(marked, None)
    if path.stat().st_size >= MIN_TEXT_BYTES and find_binary(path) is None:
        kind = "a text"
    kind = kind or guess_other_type(read_sample(path))
    if kind is not None:
        expected = f"{ASSUMED.name}, or the type given as data.id_options.dtype, or a .npy"
        raise DataError(f"{path}: invalid ids: it looks like {kind}; expected {expected}")


def read_sample(path: Path) -> ndarray:
    """Return bytes from all parts of a file, eight in a row."""
    raw = np.memmap(path, np.uint8, "r") if path.stat().st_size else np.empty(0, np.uint8)
    rows = raw[: len(raw) // 8 * 8].reshape(-1, 8)
    step = max(len(rows) // N_SAMPLE, 1)
    parts = (rows[at : at + SAMPLE_BYTES // 8] for at in range(0, len(rows), step))
    return np.concatenate([rows[:0], *(part[:step] for part in parts)])


def guess_other_type(rows_N8: ndarray) -> str | None:
    """Return the type that ids look like by their bytes; None if they may be of the assumed one."""
    bits = np.array([count_bits(rows_N8[:, place]) for place in range(8)])
    if bits.sum() * len(rows_N8) < EVIDENCE:
        return None
    # The upper half of 32 bits, or the lower one in the other order, varies little.
    upper = bits[[2, 3, 6, 7]].max()
    lower = bits[[0, 1, 4, 5]].max()
    if upper < lower / 2:
        return "int64" if bits[4] < bits[0] / 2 else "int32 or uint32"
    if lower < upper / 2:
        return "32 or 64 bits, the highest byte first"
    first, second = (rows_N8[:, place::2].ravel() for place in (0, 1))
    low = count_bits(first)
    high = count_bits(second)
    # The largest id limits the highest byte.
    is_limited = low > VARIED and int(first.max()) + 16 < second.max()
    if low < max(high / 2, high - 1) or is_limited:
        return "16 bits, the highest byte first"
    if low < UNIFORM and is_one_distribution(first, second):
        return "uint8"
    return None


def count_bits(values: ndarray) -> float:
    """Return the entropy of bytes."""
    shares = np.bincount(values, minlength=256) / max(len(values), 1)
    shares = shares[shares > 0]
    return float(-(shares * np.log2(shares)).sum())


def is_one_distribution(first: ndarray, second: ndarray) -> bool:
    """Return True if two samples of bytes agree, also apart from the most frequent value."""
    counts = [np.bincount(values, minlength=256) for values in (first, second)]
    n_rest = 2 * len(first) - sum(counts).max()
    return np.abs(counts[0] - counts[1]).sum() <= SAME * n_rest
