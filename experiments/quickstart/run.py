"""What is memory worth on Python source, to the quickstart's network?"""

from argparse import Namespace
from typing import Any

from experiments import common, compressors
from txl_lightning.data.sources import DataConfig

STEPS = 3504  # those of the run in README.md
OPTIONS = common.QUICKSTART | common.plan_steps(STEPS, 4) | {"checkpoint.every_n_steps": 300}
KINDS = {"memory": {}, "alone": {"model.net.mem_len": 0}}
SEEDS = (1, 2, 3, 4, 5)
SEGMENT = 64
READINGS: dict[str, dict[str, common.Options]] = {
    "memory": {f"mem_len {n}": {"mem_len": n, "tgt_len": SEGMENT} for n in (256, 128, 0)},
    "alone": {
        "mem_len 0": {"mem_len": 0, "tgt_len": SEGMENT},
        "window": {"mem_len": 0, "tgt_len": 8, "ext_len": SEGMENT - 8},
        "cached": {"mem_len": SEGMENT, "tgt_len": SEGMENT, "same_length": "mem_len"},
    },
}
"""Ways to read the test text, by kind."""


def main() -> None:
    args = common.parse_args(__file__, __doc__, SEEDS, vary="weights", kinds=KINDS)
    compressors.measure_all(args, lambda _: DataConfig(vocab="bytes"))
    common.measure_kinds(args, measure)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text by the way it is read."""
    options = OPTIONS | KINDS[kind] | (common.FAST if args.fast else {})
    run = common.train(args, f"{kind} {seed}", seed, options)
    bits = common.score_ways(args, run, READINGS[kind], batch_size=16)
    return {"kind": kind, "seed": seed, "bits_per_byte": bits} | run.describe("val/bits_per_byte")


if __name__ == "__main__":
    main()
