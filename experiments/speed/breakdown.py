"""Where does the time of a training step go, ours and others'?

    .venv-peers/bin/python -m experiments.speed.breakdown [--original PATH]

The steps of bench.py, on one thread, by the kind of operation: sums of count x fastest time. What
is left of the fastest step is Python, and gaps between operations. What LanguageModel takes longer
under a Trainer, with clipping and data, follows. Results are JSON with a stacked bar beside it.
"""

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import torch

from experiments.gpu.speed import Training, train_with_lightning
from experiments.results import COLOURS, draw_figure
from experiments.speed import contestants
from experiments.speed.cases import CASES, Case
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.processes import start_workers
from experiments.speed.steps import Steps
from experiments.speed.timing import SUM_ROUNDS, Machine

NAMES = ("train-quickstart", "train-quickstart-bf16", "train-256", "train-256-bf16")
PYTHON, TRAINER = "Python, gaps", "Trainer, clipping, data"
TRAINER_STEPS = 60


def main() -> None:
    """Measure the cases, print tables, and write them down."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="CASE")
    parser.add_argument("--original", type=Path, help="checkout of kimiyoung/transformer-xl")
    args = parse_args(parser)
    args.threads = 1
    cases = [measure_case(case, args) for case in CASES if case.name in args.only]
    write_results(args, "breakdown", {"cases": cases}, draw_breakdown)


def measure_case(case: Case, args: argparse.Namespace) -> dict[str, Any]:
    """Return the milliseconds of each kind of operation, by contestant, and print them."""
    case = case.shrink() if args.fast else case
    missing = contestants.find_missing()
    names = ["ours", *(name for name in contestants.PACKAGES if name not in missing)]
    names += [contestants.ORIGINAL] if args.original else []
    names += [contestants.FLOOR]
    machine = Machine(threads=1)
    makers = {name: (Steps, name, case, 1, args.original) for name in names}
    with start_workers(makers, missing) as workers:
        steps: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(1 if args.fast else SUM_ROUNDS):
            for name, worker in workers.items():
                machine.watch()
                steps[name] += [1e3 * each for each in worker.call("take_turn", 0.5)]
                worker.call("sum_operations", 2)
        kinds = {name: worker.call("sum_kinds") for name, worker in workers.items()}
    for name, milliseconds in kinds.items():
        milliseconds[PYTHON] = max(min(steps[name]) - sum(milliseconds.values()), 0.0)
    kinds["ours"][TRAINER] = measure_trainer(case, min(steps["ours"]), args.fast)
    record = {"name": case.name, "product": machine.describe(), "left_out": missing, "ms": kinds}
    print_table(record)
    return record


def measure_trainer(case: Case, step_ms: float, fast: bool) -> float:
    """Return the milliseconds that a Trainer, clipping and data add to a step."""
    training = Training(case.config, case.tgt_len, case.rows)
    precision = "bf16-mixed" if case.dtype == torch.bfloat16 else "32-true"
    with tempfile.TemporaryDirectory() as folder:
        steps = 6 if fast else TRAINER_STEPS
        rate = train_with_lightning(training, Path(folder), steps, precision)["tokens_per_second"]
    return max(1e3 * case.tokens / rate - step_ms, 0.0)


def print_table(record: dict[str, Any]) -> None:
    names = list(record["ms"])
    kinds = dict.fromkeys(kind for each in record["ms"].values() for kind in each)
    print(f"\n{record['name']}, milliseconds\n{'':24}" + "".join(f"{name:>16}" for name in names))
    for kind in kinds:
        cells = (f"{record['ms'][name].get(kind, 0.0):16.1f}" for name in names)
        print(f"{kind:24}{''.join(cells)}")
    print(f"{'sum':24}" + "".join(f"{sum(record['ms'][name].values()):16.1f}" for name in names))


def draw_breakdown(path: Path, picture: Path | None = None) -> Path:
    """Draw a stacked bar for each contestant of each case."""
    record, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    bars = [
        (f"{case['name'].removeprefix('train-')}: {name}", kinds)
        for case in record["cases"]
        for name, kinds in case["ms"].items()
    ]
    title = f"Where does a training step's time go? ({record['machine']['cpu']}, 1 thread)"
    labels = {"xlabel": "milliseconds of a step"}
    with draw_figure(picture, title, 9, 0.3 * len(bars) + 1.8, **labels) as axes:
        left = [0.0] * len(bars)
        kinds = dict.fromkeys(kind for _, each in bars for kind in each)
        for number, kind in enumerate(kinds):
            widths = [each.get(kind, 0.0) for _, each in bars]
            colour, hatch = COLOURS[number % len(COLOURS)], "//" if number >= len(COLOURS) else None
            axes.barh(range(len(bars)), widths, left=left, color=colour, hatch=hatch, label=kind)
            left = [start + width for start, width in zip(left, widths, strict=True)]
        axes.set_yticks(range(len(bars)), [name for name, _ in bars], fontsize=8)
        axes.invert_yaxis()
    return picture


if __name__ == "__main__":
    main()
