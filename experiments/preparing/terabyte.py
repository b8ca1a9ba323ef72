"""What does a store of 10^12 ids cost: its manifest, opening it, the memory of a rank, a segment?

    python -m experiments.preparing.terabyte [--ids 1e12] [--rows 128] [--ranks 16]

The store is made of links to one sparse part, and is opened as a folder and as the URL of this
folder, each in a process of its own. One JSON line for each.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from txl_lightning.data.documents import SPLITS
from txl_lightning.data.store import open_store
from txl_lightning.data.store_parts import START, hash_bytes, name_part, write_part
from txl_lightning.data.stream import FixedLengths, Stream
from txl_lightning.data.vocab.base import Ids
from txl_lightning.files import short_hash, write_json, write_text

PART, DOCUMENT = 1 << 24, 1 << 10  # ids of a part, and of a document
N_TOKEN = 50_257


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ids", type=float, default=1e12)
    parser.add_argument("--rows", type=int, default=128)
    parser.add_argument("--ranks", type=int, default=16)
    parser.add_argument("--segments", type=int, default=200)
    parser.add_argument("--store", help="measure this store instead of making one")
    args = parser.parse_args()
    if args.store:
        print(json.dumps(measure(args.store, args.rows, args.ranks, args.segments)))
        return
    with tempfile.TemporaryDirectory() as folder:
        size = write_sparse_store(Path(folder), int(args.ids))
        print(json.dumps({"ids": int(args.ids), "manifest_bytes": size}))
        for store in (folder, f"file://{folder}"):
            command = [sys.executable, "-m", __spec__.name, *sys.argv[1:], "--store", store]
            subprocess.run(command, check=True)


def write_sparse_store(folder: Path, n_id: int) -> int:
    """Write a store whose ids are all 0; return the bytes of its manifest."""
    starts = list(range(0, PART, DOCUMENT))
    pieces = [(np.zeros(DOCUMENT * 1024, np.uint16), [*range(0, DOCUMENT * 1024, DOCUMENT)])]
    part = write_part(folder / "part", pieces * (PART // DOCUMENT // 1024), np.dtype("uint16"))
    assert (part.n_token, part.n_document) == (PART, len(starts))
    with (folder / "part.ids").open("wb") as file:
        file.truncate(PART * 2)
    n_part = n_id // PART
    (folder / "train").mkdir()
    for nth in range(n_part):
        for path in folder.glob("part.*"):
            # Not os.link: a file may have 65,000 links.
            os.symlink(path, folder / f"{name_part('train', nth)}{path.suffix}")
    write_text(Ids(N_TOKEN).to_json(), folder / "vocab.json")
    manifest = {
        "cuts": "", "dtype": "uint16", "n_token": N_TOKEN, "documents": "files", "vocab": "ids",
        "vocab_checksum": hash_bytes((folder / "vocab.json").read_bytes()),
        **{name: dict.fromkeys(SPLITS, 0) for name in ("bytes", "unknown")},
        "tokens": dict.fromkeys(SPLITS, 0) | {"train": n_part * PART},
        "n_document": dict.fromkeys(SPLITS, 0) | {"train": n_part * len(starts)},
        "parts": {"train": [part] * n_part, "val": [], "test": []},
    }  # fmt: skip
    write_json(manifest | {"checksum": short_hash(manifest)}, folder / "manifest.json")
    return (folder / "manifest.json").stat().st_size


def measure(url: str, n_row: int, n_rank: int, n_segment: int) -> dict[str, object]:
    """Open a store and read segments of the middle rank, from the middle of the text."""
    before, start = count_resident(), time.perf_counter()
    store = open_store(url)
    text = store.text("train")
    opened = time.perf_counter() - start
    rows = {"rank": n_rank // 2, "world_size": n_rank}
    stream = Stream(text, n_row, FixedLengths(512), **rows)
    middle, times = len(stream) // 2, []
    for index in range(middle, middle + n_segment):
        start = time.perf_counter()
        stream.segment(index)
        times.append(time.perf_counter() - start)
    return {
        "store": url.partition(":")[0] if ":" in url else "folder",
        "parts": len(text.parts),
        "open_s": round(opened, 3),
        "first_segment_s": round(times[0], 4),
        "median_segment_ms": round(1000 * float(np.median(times[1:])), 3),
        "slowest_segment_ms": round(1000 * max(times[1:]), 3),
        "resident_mb": round((count_resident() - before) / 1e6),
        "starts_mb": round(n_row * PART // DOCUMENT * START.itemsize / 1e6),
    }


def count_resident() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


if __name__ == "__main__":
    main()
