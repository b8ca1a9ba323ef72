"""Which memory, per byte of its state? Networks of equal parameters, rates tuned at full length.

    python -m experiments.state_bytes.run --tune               rates, with seed 0
    python -m experiments.state_bytes.run --change dropout     then a change, once
    python -m experiments.state_bytes.run --change precision --precision 32-true
    python -m experiments.state_bytes.run                      the seeds that count

README.md has the plan.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.results import load_records, select

NETS = (
    "sliding_window",
    "lstm",
    "recurrent_memory_transformer",
    "gated_delta_net",
    "mamba2",
    "compressive_transformer",
    "transformer_xl",
)
"""Names of files in configs/networks/."""
OPTIMIZERS = ("muon", "adamw")
FIRST_RATE = {"muon": 6e-3, "adamw": 3e-3}
CHANGES: dict[str, dict[str, Any]] = {"dropout": {"model.net.dropout": 0.1}, "precision": {}}
"""Options of --change; with precision, those of the command differ from the tuning's."""
TUNING_SEED = 0
SEEDS = (1, 2, 3, 4, 5)


def main() -> None:
    tune = {"action": "store_true", "help": "choose rates, and train no seed that counts"}
    optimizers = {"nargs": "+", "choices": OPTIMIZERS, "default": OPTIMIZERS, "help": "to tune"}
    change = {"choices": CHANGES, "help": "train the best rate once with a change, and end"}
    more = {"tune": tune, "optimizers": optimizers, "change": change}
    args = common.parse_args(__file__, __doc__, SEEDS, "weights", NETS, **more)
    if args.change:
        for net in args.only:
            name = f"{args.change} {net}"
            common.measure_once(args, name, measure_change, net, args.change)
        return
    for optimizer in args.optimizers[: 1 if args.fast else None]:
        for net in args.only:
            tune_rate(args, net, optimizer)
    if not args.tune:
        common.measure_kinds(args, measure)


def tune_rate(args: Namespace, net: str, optimizer: str) -> None:
    """Add a record for each rate, until the best one is inside the grid."""

    def nats_of(rate: float) -> float:
        name = f"rate {net} {optimizer} {rate:g}"
        common.measure_once(args, name, measure_rate, net, optimizer, rate)
        return load_records(args.out)[name]["nats"]

    common.search_rate(nats_of, FIRST_RATE[optimizer], args.fast)


def measure_rate(args: Namespace, net: str, optimizer: str, rate: float) -> dict[str, Any]:
    """Train; return nats and bits per byte of the whole validation text after the last update."""
    run = train(args, net, optimizer, rate, TUNING_SEED)
    fields = {"kind": "rate", "net": net, "optimizer": optimizer, "rate": rate}
    return fields | describe_validation(run)


def measure_change(args: Namespace, net: str, change: str) -> dict[str, Any]:
    """Train with the best optimizer and rate, and a change; return what `measure_rate` does."""
    chosen = choose_best(load_records(args.out), net)
    run = train(args, net, **chosen, seed=TUNING_SEED, changes=CHANGES[change])
    return {"kind": "change", "net": net, "change": change} | chosen | describe_validation(run)


def describe_validation(run: common.TrainedRun) -> dict[str, Any]:
    nats = run.load_curve("val/nats")["val/nats"][-1]
    return {"seed": TUNING_SEED, "nats": nats} | run.describe("val/bits_per_byte")


def train(
    args: Namespace,
    net: str,
    optimizer: str,
    rate: float,
    seed: int,
    changes: common.Options | None = None,
) -> common.TrainedRun:
    options = {"config": f"configs/networks/{net}.yaml", "model.optim.name": optimizer}
    options |= {"model.optim.lr": rate, "model.optim.muon_lr": 2 * rate}
    options |= (changes or {}) | (common.FAST if args.fast else {})
    return common.train(args, f"{net} {optimizer} {rate:g} {seed}", seed, options)


def measure(args: Namespace, net: str, seed: int) -> dict[str, Any]:
    """Train with the best optimizer and rate; return bits per byte of the whole test text."""
    chosen = choose_best(load_records(args.out), net)
    run = train(args, net, **chosen, seed=seed)
    test = common.score(args, run, split="test", batch_size=16)
    fields = {"kind": net, "seed": seed, "bits_per_byte": test["bits_per_byte"]}
    return fields | chosen | {"state_bytes": count_bytes(run)} | run.describe("val/bits_per_byte")


def choose_best(records: dict[str, dict[str, Any]], net: str) -> dict[str, Any]:
    """Return the optimizer and the rate of the fewest nats of validation text."""
    tried = select(records, kind="rate", net=net)
    best = min(tried, key=lambda record: record["nats"])
    return {key: best[key] for key in ("optimizer", "rate")}


def count_bytes(run: common.TrainedRun) -> int:
    """Return the bytes of a row's memory, in float32."""
    return sum(tensor.nbytes for tensor in run.net.empty_memory(1).tensors().values())


if __name__ == "__main__":
    main()
