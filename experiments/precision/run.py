"""Does the quickstart learn the same in bfloat16 as in float32?

    python -m experiments.precision.run [--seeds 1 2 3] [--only PRECISION ...] [--fast]

The same 2,000 steps in each precision: bits per byte of the validation text every 500 steps, and
the mean training loss at every logged step.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.results import load_records

VALIDATION = "val/bits_per_byte"
PRECISIONS = ("32-true", "bf16-mixed")
OPTIONS = {
    "config": "configs/quickstart.yaml",
    "plan.minutes": None,
    "trainer.max_steps": 2000,
    "trainer.val_check_interval": 500,
}
FAST = {"trainer.max_steps": 4, "trainer.val_check_interval": 2, "trainer.log_every_n_steps": 2}


def main() -> None:
    """Train in each precision, and print the difference from float32."""
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=PRECISIONS)
    common.measure_kinds(args, measure)
    records = load_records(args.out)
    for seed in args.seeds:
        print_differences([records[f"{precision} {seed}"] for precision in args.only])


def measure(args: Namespace, precision: str, seed: int) -> dict[str, Any]:
    options = OPTIONS | {"seed_everything": seed, "trainer.precision": precision}
    options |= FAST if args.fast else {}
    run = common.fit(args.runs / f"{precision}_seed_{seed}", options)
    curves = {column: run.load_curve(column) for column in ("train/bits_per_byte", VALIDATION)}
    return {"seed": seed, "precision": precision, "text": run.text, "curves": curves}


def print_differences(records: list[dict[str, Any]]) -> None:
    """Print the validations of each precision, and their largest difference from the first's."""
    reference = records[0]["curves"][VALIDATION][VALIDATION]
    for record in records:
        values = record["curves"][VALIDATION][VALIDATION]
        apart = max(abs(a / b - 1) for a, b in zip(values, reference, strict=True))
        shown = ", ".join(f"{value:.4f}" for value in values)
        name = f"seed {record['seed']}, {record['precision']}"
        print(f"{name}: {shown}; at most {apart:.2%} from float32")


if __name__ == "__main__":
    main()
