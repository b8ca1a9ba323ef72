"""How long does a command take to start, beside importing torch and Lightning alone?

    python -m experiments.speed.start [--rounds 10] [--fast] [--out FILE]

Each command is a process that computes next to nothing: `fit` ends after one step, `evaluate`
scores 600 characters, `generate` prints one token. They take turns; the fastest counts.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from experiments.results import draw_figure, format_table
from experiments.speed.command import make_parser, parse_args, write_results

PACKAGE = [sys.executable, "-m", "txl_lightning"]
CKPT = "runs/version_0/checkpoints/last.ckpt"
NET = [f"--model.net.{setting}" for setting in ("n_layer=1", "d_model=32", "n_head=2")]
TRAINER = ["--trainer.max_steps=1", "--trainer.limit_val_batches=1"]
REPORT = ["--report.html=false", "--report.sample_len=0"]
DATA = ["--data.path=text.txt", "--data.vocab=bytes", "--data.batch_size=2"]
FIT = [*PACKAGE, "fit", *DATA, *NET, *TRAINER, *REPORT]
COMMANDS = {
    "import torch": [sys.executable, "-c", "import torch"],
    "import lightning.pytorch": [sys.executable, "-c", "import lightning.pytorch"],
    "fit": [*FIT, "--trainer.default_root_dir=later"],
    "evaluate": [*PACKAGE, "evaluate", CKPT, "--path=short.txt"],
    "generate": [*PACKAGE, "generate", CKPT, "--prompt=a", "--max_new_tokens=1"],
}
TEXT = "It was the best of times, it was the worst of times.\n" * 200


def main() -> None:
    """Measure all commands in turn, and print seconds and what is above importing torch."""
    args = parse_args(make_parser(__doc__))
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "text.txt").write_text(TEXT)
        Path(folder, "short.txt").write_text(TEXT[:600])
        start(FIT, folder)
        times = {name: [] for name in COMMANDS}
        for _ in range(args.rounds):
            for name, command in COMMANDS.items():
                times[name].append(start(command, folder))
    fastest = {
        name: {"wall": round(min(t[0] for t in each), 3), "cpu": round(min(t[1] for t in each), 3)}
        for name, each in times.items()
    }
    base = fastest["import torch"]["wall"]
    rows = [(name, *each.values(), f"{each['wall'] - base:.3f}") for name, each in fastest.items()]
    print(format_table([("command", "seconds", "CPU seconds", "above torch"), *rows]))
    write_results(args, "start", {"seconds": fastest}, draw_start)


def start(command: list[str], folder: str) -> tuple[float, float]:
    """Return the seconds of a process, and its CPU seconds."""
    began, used = time.perf_counter(), os.times()
    result = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{' '.join(command)}: exit code {result.returncode}\n{result.stderr[-500:]}")
    now = os.times()
    cpu = now.children_user + now.children_system - used.children_user - used.children_system
    return time.perf_counter() - began, cpu


def draw_start(path: Path, picture: Path | None = None) -> Path:
    """Draw a bar for each command."""
    record, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    title = f"From the command to its end ({record['machine']['cpu']})"
    names = list(record["seconds"])
    with draw_figure(picture, title, 7, 2.6, xlabel="seconds") as axes:
        axes.barh(range(len(names)), [each["wall"] for each in record["seconds"].values()])
        axes.set_yticks(range(len(names)), names)
        axes.invert_yaxis()
    return picture


if __name__ == "__main__":
    main()
