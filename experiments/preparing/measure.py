"""How long does it take to prepare a large text, how much memory, and how long to open it again?

    python experiments/preparing/measure.py [--text FILE] [--vocab bytes words bpe]

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
from pathlib import Path

from txl_lightning.data.corpora import CORPORA

OPEN = """
import sys, time
from txl_lightning.data.config import DataConfig
import txl_lightning.data.vocab
path, vocab, data_dir = sys.argv[1:]
start = time.perf_counter()
store = DataConfig(path=path, vocab=vocab, data_dir=data_dir).open()
first = store.ids("train")[:1000].tolist(), store.vocab.n_token
print(time.perf_counter() - start)
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", type=Path, help="a text file; left out, Python's own source")
    parser.add_argument("--megabytes", type=int, default=100)
    parser.add_argument("--vocab", nargs="+", default=["bytes", "words"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        text = given.text or python_source(Path(folder) / "source.txt", given.megabytes)
        for vocab in given.vocab:
            print(json.dumps(measure(text, vocab, Path(folder) / vocab)), flush=True)


def measure(text: Path, vocab: str, data_dir: Path) -> dict[str, object]:
    """Prepare once, open once."""
    options = [f"--vocab={vocab}", f"--data_dir={data_dir}"]
    command = [sys.executable, "-m", "txl_lightning", "prepare", str(text), *options]
    seconds, peak = run(command)
    opening = [sys.executable, "-c", OPEN, str(text), vocab, str(data_dir)]
    opened = subprocess.run(opening, capture_output=True, text=True, check=True)
    return {
        "vocab": vocab,
        "bytes": text.stat().st_size,
        "prepare_s": round(seconds, 2),
        "peak_mb": round(peak / 1e6),
        "open_s": round(float(opened.stdout), 3),
    }


def run(command: list[str]) -> tuple[float, int]:
    """Seconds that a command takes, start included, and the bytes it is resident in at most."""
    start = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status:
        raise SystemExit(f"{' '.join(command)}: failed")
    unit = 1 if sys.platform == "darwin" else 1024
    return time.perf_counter() - start, usage.ru_maxrss * unit


def python_source(path: Path, megabytes: int) -> Path:
    """This Python's own source over and over, as one file."""
    splits = CORPORA["python_source"].find_splits(path.parent, (1.0, 0.0, 0.0))
    left = megabytes * 10**6
    with path.open("wb") as file:
        while left:
            for span in splits["train"]:
                for chunk in span.chunks():
                    left -= file.write(chunk[:left])
    return path


if __name__ == "__main__":
    main()
