"""What is memory worth on Python source, to the quickstart's network?

    python -m experiments.quickstart.run [--seeds 1 2 3] [--only KIND ...] [--fast]

README.md has the setting. "memory" is also read with twice the memory and without.
"""

from argparse import Namespace
from typing import Any

from experiments import common, compressors
from txl_lightning.data.settings import DataConfig

STEPS = 3504  # those of the run in README.md
OPTIONS = common.QUICKSTART | common.plan_steps(STEPS, 4) | {"checkpoint.every_n_steps": 300}
KINDS = {"memory": {}, "alone": {"model.net.mem_len": 0}}
SEGMENT, MEM_LEN = 64, 128
READINGS = {
    "memory": {
        f"mem_len {n}": {"mem_len": n, "tgt_len": SEGMENT} for n in (2 * MEM_LEN, MEM_LEN, 0)
    },
    "alone": {
        "mem_len 0": {"mem_len": 0, "tgt_len": SEGMENT},
        "window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8},
    },
}
"""Ways to read the test text, by kind."""


def main() -> None:
    """Compress the text; train both kinds with each seed, and score the test text."""
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS)
    compressors.measure_all(args, DataConfig(vocab="bytes"))
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text by the way it is read."""
    options = OPTIONS | KINDS[kind] | (common.FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    ways, how = READINGS[kind], {"split": "test", "batch_size": 16}
    tests = {way: common.score(args, run, **how, **ways[way]) for way in ways}
    fields = {"kind": kind, "seed": seed} | run.describe("val/bits_per_byte")
    fields["bits_per_byte"] = {way: test["bits_per_byte"] for way, test in tests.items()}
    return fields | {"tokens_scored": next(iter(tests.values()))["tokens_scored"]}


if __name__ == "__main__":
    main()
