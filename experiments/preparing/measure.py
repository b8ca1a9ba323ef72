"""How long does it take to prepare a large text, how much memory, and how long to open it again?

    python -m experiments.preparing.measure [--text FILE] [--vocab bytes words bpe]

Each vocabulary is prepared by the command line in a process of its own, into an empty folder;
then another process opens what is prepared. Without --text, this Python's own source is repeated
up to --megabytes. One JSON line for each: seconds in all, peak resident memory, seconds to open
after imports.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from itertools import chain, cycle
from pathlib import Path

from txl_lightning.data.corpora import CORPORA

OPEN = """
import sys, time
from txl_lightning.data.settings import DataConfig
import txl_lightning.data.vocab
path, vocab, data_dir = sys.argv[1:]
start = time.perf_counter()
store = DataConfig(path=path, vocab=vocab, data_dir=data_dir).open_text()
first = store.ids("train")[:1000].tolist(), store.vocab.n_token
print(time.perf_counter() - start)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file; by default, Python's own source")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--vocab", nargs="+", default=["bytes", "words"])
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = args.text or write_source(Path(folder) / "source.txt", args.megabytes * 10**6)
        for vocab in args.vocab:
            print(json.dumps(measure(text, vocab, Path(folder) / vocab)), flush=True)


def measure(text: Path, vocab: str, data_dir: Path) -> dict[str, object]:
    """Prepare a text once, and open it once."""
    options = [f"--vocab={vocab}", f"--data_dir={data_dir}"]
    command = [sys.executable, "-m", "txl_lightning", "prepare", str(text), *options]
    seconds, peak = run(command)
    opening = [sys.executable, "-c", OPEN, str(text), vocab, str(data_dir)]
    return {
        "vocab": vocab,
        "bytes": text.stat().st_size,
        "prepare_s": round(seconds, 2),
        "peak_mb": round(peak / 1e6),
        "open_s": round(float(subprocess.check_output(opening)), 3),
    }


def run(command: list[str]) -> tuple[float, int]:
    """Return the seconds that a command takes, with its start, and its peak of resident bytes."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: failed")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * unit


def write_source(path: Path, size: int) -> Path:
    """Write this Python's own source over and over into one file of `size` bytes."""
    spans = CORPORA["python_source"].find_splits(path.parent, (1.0, 0.0, 0.0))["train"]
    with path.open("wb") as file:
        for chunk in chain.from_iterable(span.chunks() for span in cycle(spans)):
            file.write(chunk[: size - file.tell()])
            if file.tell() == size:
                return path


if __name__ == "__main__":
    main()
