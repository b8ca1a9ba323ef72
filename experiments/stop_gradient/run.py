"""What does the stop-gradient cost? Memory, or a window trained as one, at equal span and rows.

First the arms in stages, each with its rates and then all of them seed by seed, so that what is
finished is balanced; then those with as many operations, or seconds, as the reference.
"""

from argparse import Namespace
from functools import partial
from typing import Any

import numpy as np

from experiments import common, pace
from experiments.stop_gradient import arms
from experiments.stop_gradient.arms import ARMS, BUDGETS, KINDS, PACE_OF, REFERENCE, TIMED
from experiments.stop_gradient.texts import NAMES, RATES_OF, choose_text

SEEDS = (1, 2, 3, 4, 5)
TUNING_SEED = 0
FIRST_RATE = {2: 3e-3, 8: 6e-3, 16: 6e-3}
"""The rate that is tried first, by rows."""
VALIDATED = 100
"""Tokens of validation, in updates."""
SCORED_ROWS = 8
N_BLOCK = 100
"""Equal parts of the test text, by which it is drawn again."""
STAGES = (
    ("memory 2x512", "memory 2x64"),
    ("memory 16x64", "memory 8x128", "memory 8x64", "alone 8x128"),
    ("memory 2x128", "alone 2x512", "alone 16x64"),
)
OPTIONS = common.MUON | {
    "model.net.n_layer": arms.N_LAYER,
    "model.net.d_model": arms.D,
    "model.net.d_inner": arms.F,
    "model.net.n_head": 4,
    "model.net.norm": "pre",
    "data.order": "rolled",
    "trainer.gradient_clip_val": 1.0,
}
"""Those of the quick start; the order differs by the seed."""
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}


def main() -> None:
    texts = {"nargs": "+", "choices": NAMES, "default": NAMES, "help": "texts to train on"}
    own = {"texts": texts, "precision": {"default": "bf16-mixed"}}
    args = common.parse_args(__file__, __doc__, SEEDS, kinds=KINDS, **own)
    if args.fast:
        args.texts = NAMES[:1]
        args.only = [kind for kind in args.only if KINDS[kind][0] in STAGES[0]]
    for text in args.texts:
        for stage in STAGES:
            names = [name for name in stage if name in args.only]
            for name in names if text not in RATES_OF else ():
                common.measure_once(args, f"{text}, rate {name}", choose_rate, text, name)
            measure_seeds(args, text, names)
        measure_equalized(args, text)


def measure_seeds(args: Namespace, text: str, kinds: list[str]) -> None:
    for seed in args.seeds:
        for kind in kinds:
            common.measure_seed(args, f"{text}, {kind} {seed}", measure, text, kind, seed)


def measure_equalized(args: Namespace, text: str) -> None:
    """Train again, with as much work as the reference, what had another amount of it."""
    for record, names in TIMED.items():
        common.measure_once(args, f"{text}, {record}", time_arms, text, names)
    own = [kind for kind in args.only if KINDS[kind][1] in BUDGETS]
    measure_seeds(args, text, [k for k in own if not arms.is_equal(count_steps(args, text, k))])


def count_steps(args: Namespace, text: str, kind: str) -> int:
    """Return the steps with which an arm has as much of its budget as the reference."""
    name, budget = KINDS[kind]
    if budget == "tokens":
        return arms.STEPS
    pace = common.find_record(args, f"{text}, {PACE_OF[name]}")
    return arms.match_steps(name, pace[f"step_{budget}"])


def time_arms(args: Namespace, text: str, names: tuple[str, ...]) -> dict[str, Any]:
    """Return operations of a token and seconds of a step by arm, in turn on a quiet machine."""
    n_token = 256 if args.fast or text == "enwik8_prefix" else 4096
    timed = {name: (OPTIONS | ARMS[name].options, n_token) for name in (REFERENCE, *names)}
    needed = {name: arm.count_operations(n_token) for name, arm in ARMS.items()}
    computed = {name: arm.count_operations(n_token, computed=True) for name, arm in ARMS.items()}
    counts = {"step_operations": needed, "computed_operations": computed}
    return pace.measure(args, timed) | counts


def choose_rate(args: Namespace, text: str, name: str) -> dict[str, Any]:
    train_with = partial(train, args, text, name, TUNING_SEED)
    start = FIRST_RATE[ARMS[name].rows]
    return common.choose_rate(f"{text}, {name}", train_with, start, args.fast)


def measure(args: Namespace, text: str, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text, and of its blocks, by way of reading."""
    name, _ = KINDS[kind]
    rate = common.find_record(args, f"{RATES_OF.get(text, text)}, rate {name}")["rate"]
    run = train(args, text, kind, seed, rate)
    found = {way: score_blocks(args, run, how) for way, how in ARMS[name].readings.items()}
    bits = {way: whole for way, (whole, _) in found.items()}
    blocks = {way: blocks for way, (_, blocks) in found.items()}
    fields = {"kind": f"{text}, {kind}", "seed": seed, "rate": rate}
    fields |= {"bits_per_byte": bits, "blocks": blocks}
    return fields | run.describe("val/bits_per_byte")


def train(args: Namespace, text: str, kind: str, seed: int, rate: float) -> common.TrainedRun:
    arm = ARMS[KINDS[kind][0]]
    steps = count_steps(args, text, kind)
    options = OPTIONS | arm.options | common.plan_steps(steps, 2) | {"data.seed": seed}
    options |= {"model.optim.lr": rate, "model.optim.muon_lr": 2 * rate}
    options |= {"trainer.limit_val_batches": VALIDATED * arm.segments}
    options |= FAST if args.fast else choose_text(text)
    # It counts segments.
    options["trainer.val_check_interval"] *= arm.segments
    name = f"{text} {kind.replace(',', '')} {seed} {rate:g}"
    return common.train(args, name, seed, options)


def score_blocks(
    args: Namespace, run: common.TrainedRun, how: common.Options
) -> tuple[float, list[float]]:
    """Return the bits per byte of the test text, and of N_BLOCK parts with equal tokens."""
    path = run.folder / "nats.npy"
    how = {"split": "test", "batch_size": SCORED_ROWS, "per_token": str(path), **how}
    bits = common.score(args, run, **how)["bits_per_byte"]
    nats = np.load(path).astype(np.float64)
    path.unlink()
    nats = nats[np.isfinite(nats)]
    parts = np.array_split(nats * (bits / nats.mean()), N_BLOCK)
    return bits, [round(part.mean(), 6) for part in parts]


if __name__ == "__main__":
    main()
