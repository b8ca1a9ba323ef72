"""Does the quickstart learn the same in bfloat16 as in float32?

    python -m experiments.precision.run [--seeds 1] [--fast]

The same 2,000 steps in each precision; bits per byte of the validation text after every 500, and
the mean of the training loss at every point that was logged.
"""

from experiments.common import REPOSITORY, curve, fit, load_records, parse_options, save_record

VALIDATION = "val/bits_per_byte"
PRECISIONS = ("32-true", "bf16-mixed")
OPTIONS = {
    "config": str(REPOSITORY / "configs/quickstart.yaml"),
    "plan.minutes": None,
    "trainer.max_steps": 2000,
    "trainer.val_check_interval": 500,
}
FAST = {"trainer.max_steps": 4, "trainer.val_check_interval": 2, "trainer.log_every_n_steps": 2}


def main() -> None:
    """Train in each precision, and print how far the others are from the first."""
    given = parse_options(__file__, __doc__, seeds=(1,))
    for seed in given.seeds:
        for precision in PRECISIONS:
            if (name := f"{precision}, seed {seed}") not in load_records(given.out):
                options = {"seed_everything": seed, "trainer.precision": precision}
                options = OPTIONS | options | (FAST if given.fast else {})
                run = fit(given.runs / name.replace(", ", "_").replace(" ", "_"), options)
                curves = {key: curve(run, key) for key in ("train/bits_per_byte", VALIDATION)}
                save_record(given, name, seed=seed, precision=precision, curves=curves)
        print_differences(load_records(given.out), seed)


def print_differences(records: dict[str, dict], seed: int) -> None:
    """Print the validations of each precision, and their distance from those of float32."""
    first, *others = [records[f"{precision}, seed {seed}"] for precision in PRECISIONS]
    reference = first["curves"][VALIDATION][VALIDATION]
    for record in [first, *others]:
        values = record["curves"][VALIDATION][VALIDATION]
        apart = max(abs(a / b - 1) for a, b in zip(values, reference, strict=True))
        shown = ", ".join(f"{value:.4f}" for value in values)
        print(f"seed {seed}, {record['precision']}: {shown}; at most {apart:.2%} from float32")


if __name__ == "__main__":
    main()
