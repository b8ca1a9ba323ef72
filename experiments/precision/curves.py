"""Does a run learn the same in another precision?

    python experiments/precision/curves.py [--precisions 32-true bf16-mixed] [-- options of fit]

Trains the quickstart, or what the options of fit say, in each precision, and compares the curves
with the first one's: at every point that was logged in training, and at every validation.
"""

import argparse
import csv
import sys
import tempfile
from pathlib import Path

from txl_lightning.__main__ import run

CONFIG = Path(__file__).parents[2] / "configs" / "quickstart.yaml"
CURVES = ("train/nats", "val/nats")


def main() -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--precisions", nargs="+", default=["32-true", "bf16-mixed"])
    parser.add_argument("options", nargs="*", help="of fit, after --")
    given = parser.parse_args()
    same_steps = ["--plan.minutes=null", "--trainer.max_steps=2000"]
    options = given.options or [f"--config={CONFIG}", *same_steps]
    with tempfile.TemporaryDirectory() as folder:
        found = {name: train(name, options, Path(folder)) for name in given.precisions}
    first, *others = found
    for name in CURVES:
        print(f"{name}: {first} ends at {found[first][name][-1]:.4f}")
        for other in others:
            differences = [
                abs(a / b - 1) for a, b in zip(found[other][name], found[first][name], strict=True)
            ]
            last = found[other][name][-1]
            print(f"  {other} ends at {last:.4f}; at most {max(differences):.3%} from it")


def train(precision: str, options: list[str], folder: Path) -> dict[str, list[float]]:
    """The curves of a run."""
    place = folder / precision
    where = [f"--trainer.default_root_dir={place}", "--trainer.logger=true"]
    run(["fit", *options, f"--trainer.precision={precision}", *where])
    print(f"{precision}: trained", file=sys.stderr)
    with (place / "version_0" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    return {name: [float(row[name]) for row in rows if row[name]] for name in CURVES}


if __name__ == "__main__":
    main()
