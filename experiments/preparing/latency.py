"""How fast does training read a store in an S3 server that answers after 20 ms, beside a local one?

    python -m experiments.preparing.latency [--steps 400] [--runs 3] [--latency 0.02]

An S3 server runs on this machine, behind a proxy that delays every answer. Runs of the quickstart
config on the local store and on that in the server alternate; each prints its median tokens per
second, without the first tenth. Then the loader alone reads 16 rows as fast as it can. The last
line has the ratios of medians.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from experiments.preparing.measure import write_source
from experiments.preparing.server import Faults, serve_s3, upload_folder
from txl_lightning.data.store import open_store
from txl_lightning.data.stream import FixedLengths, Stream
from txl_lightning.runs.metrics_table import read_metrics

RATE = "train/tokens_per_second"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--latency", type=float, default=0.02)
    parser.add_argument("--megabytes", type=int, default=100)
    args = parser.parse_args()
    faults = Faults(args.latency)
    with tempfile.TemporaryDirectory() as name, serve_s3(faults) as variables:
        folder = Path(name)
        text = write_source(folder / "source.txt", args.megabytes * 10**6)
        txl("prepare", text, f"--out={folder / 'store'}")
        stores = {"local": str(folder / "store"), "s3": upload_folder(folder / "store", variables)}
        os.environ.update(variables)
        rates: dict[str, list[float]] = {f"{kind} {place}": [] for place in stores
                                         for kind in ("training", "loader")}  # fmt: skip
        for nth in range(args.runs):
            for place, store in stores.items():
                root = folder / f"{place}{nth}"
                rate = {"training": train(store, root, args.steps), "loader": read_rows(store)}
                for kind, value in rate.items():
                    rates[f"{kind} {place}"].append(round(value))
                print(json.dumps({"place": place} | rate), flush=True)
    medians = {name: float(np.median(values)) for name, values in rates.items()}
    ratios = {kind: round(medians[f"{kind} s3"] / medians[f"{kind} local"], 4)
              for kind in ("training", "loader")}  # fmt: skip
    print(json.dumps(medians | {"ratio": ratios, "requests": faults.counts["whole"]}))


def txl(*words: object) -> None:
    command = [sys.executable, "-m", "txl_lightning", *map(str, words)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def train(store: str, root: Path, n_step: int) -> float:
    """Return the median tokens per second of a run."""
    where = [f"--data.store={store}", f"--trainer.default_root_dir={root}", "--plan.minutes=null"]
    steps = [f"--trainer.max_steps={n_step}", f"--trainer.val_check_interval={n_step}"]
    steps += ["--trainer.limit_val_batches=1", "--trainer.log_every_n_steps=10"]
    txl("fit", "--config=quickstart", *where, *steps, "--report.html=false")
    rows = read_metrics(root / "version_0").rows
    rates = [row[RATE] for row in rows if RATE in row]
    return float(np.median(rates[len(rates) // 10 :]))


def read_rows(store: str, n_segment: int = 20_000) -> float:
    """Return the tokens per second of the loader alone."""
    stream = Stream(open_store(store).text("train"), 16, FixedLengths(256))
    stream.segment(0)
    start = time.perf_counter()
    for index in range(min(n_segment, len(stream))):
        stream.segment(index)
    return min(n_segment, len(stream)) * 16 * 256 / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
