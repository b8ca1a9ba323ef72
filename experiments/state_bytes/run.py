"""Which memory, per byte of its state? Networks of equal parameters, rates tuned at full length.

    python -m experiments.state_bytes.run --tune               rates, with seed 0
    python -m experiments.state_bytes.run --once               the best rate in float32, too
    python -m experiments.state_bytes.run                      the seeds that count
    python -m experiments.state_bytes.run --parts pairs        small networks on pairs (recall.py)

README.md has the plan.
"""

from argparse import Namespace
from typing import Any

from experiments import common
from experiments.results import load_records
from experiments.state_bytes import readings, recall
from experiments.state_bytes.figures import CACHED
from experiments.stop_gradient.run import SCORED_ROWS
from experiments.test_time import sizes
from experiments.test_time.figures import DOCUMENTATION
from experiments.test_time.run import choose_cache
from txl_lightning.errors import DataError

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
LONGER_ROWS = {"data.batch_size": 4, "data.tgt_len": 256}
LONGER_UNITS = {"data.batch_size": 8, "data.tgt_len": 64, "model.net.unit_len": 64}
RMT = "recurrent_memory_transformer"
LONGER = {f"{net}, 4 x 256": (net, LONGER_ROWS) for net in ("gated_delta_net", "mamba2", "lstm")}
LONGER |= {f"{RMT}, 8 x 2 x 64": (RMT, LONGER_UNITS)}
"""Networks that are trained with longer gradients and fewer rows: the first one, and options."""
OPTIMIZERS = ("muon", "adamw")
FIRST_RATE = {"muon": 6e-3, "adamw": 3e-3}
PARTS = ("texts", "pairs")
TUNING_SEED = 0
CACHE = "chosen cache"
"""Name of the record with the options of the Transformer-XL's cache."""
SEEDS = (1, 2, 3, 4, 5)


def main() -> None:
    tune = {"action": "store_true", "help": "choose rates, and train no seed that counts"}
    optimizers = {"nargs": "+", "choices": OPTIMIZERS, "default": OPTIMIZERS, "help": "to tune"}
    once = {"action": "store_true", "help": "train once with the best rate in float32, and end"}
    parts = {"nargs": "+", "choices": PARTS, "default": PARTS, "help": "what is read"}
    arms = {"nargs": "+", "choices": recall.ARMS, "default": [*recall.ARMS], "help": "of pairs"}
    more = {"tune": tune, "optimizers": optimizers, "once": once, "parts": parts, "arms": arms}
    help_ = "of training on texts; default: %(default)s; that on pairs has float32"
    more["precision"] = {"default": "bf16-mixed", "help": help_}
    args = common.parse_args(__file__, __doc__, SEEDS, "weights", (*NETS, *LONGER), **more)
    if args.once:
        in_float32 = common.set_precision(args, "32-true")
        for net in args.only:
            common.measure_once(in_float32, f"32-true {net}", measure_precision, args, net)
        return
    if "texts" in args.parts:
        measure_texts(args)
    if "pairs" in args.parts and not args.tune:
        recall.measure_arms(args)


def measure_texts(args: Namespace) -> None:
    """Tune the rates of all networks; then add a record for each seed and network."""
    # Before hours of training, because it needs the other texts.
    if not (args.fast or args.tune):
        how = readings.TOKENS, SCORED_ROWS
        common.measure_once(args, "sizes", sizes.measure, [DOCUMENTATION], *how)
    for optimizer in args.optimizers[: 1 if args.fast else None]:
        for net in args.only:
            tune_rate(args, net, optimizer)
    if args.tune:
        return
    if "transformer_xl" in args.only:
        common.measure_once(args, CACHE, measure_cache)
    common.measure_kinds(args, measure)


def tune_rate(args: Namespace, net: str, optimizer: str) -> None:
    """Add a record for each rate, until the best one is inside the grid."""

    def nats_of(rate: float) -> float:
        name = f"rate {net} {optimizer} {rate:g}"
        common.measure_once(args, name, measure_rate, net, optimizer, rate)
        return common.find_record(args, name)["nats"]

    common.search_rate(nats_of, FIRST_RATE[optimizer], args.fast)


def measure_rate(args: Namespace, net: str, optimizer: str, rate: float) -> dict[str, Any]:
    """Train; return nats and bits per byte of the whole validation text after the last update."""
    run = train(args, net, optimizer, rate, TUNING_SEED)
    fields = {"kind": "rate", "net": net, "optimizer": optimizer, "rate": rate}
    return fields | describe_validation(run)


def measure_precision(args: Namespace, tuned: Namespace, net: str) -> dict[str, Any]:
    """Train with the optimizer and rate that are best in the precision of `tuned`."""
    chosen = find_best(tuned, net)
    run = train(args, net, **chosen, seed=TUNING_SEED)
    return {"kind": "precision", "net": net} | chosen | describe_validation(run)


def describe_validation(run: common.TrainedRun) -> dict[str, Any]:
    nats = run.load_curve("val/nats")["val/nats"][-1]
    return {"seed": TUNING_SEED, "nats": nats} | run.describe("val/bits_per_byte")


def train(args: Namespace, net: str, optimizer: str, rate: float, seed: int) -> common.TrainedRun:
    file, longer = LONGER.get(net, (net, {}))
    options = {"config": f"configs/networks/{file}.yaml", "model.optim.name": optimizer} | longer
    options |= {"model.optim.lr": rate, "model.optim.muon_lr": 2 * rate}
    options |= common.FAST if args.fast else {}
    return common.train(args, f"{net} {optimizer} {rate:g} {seed}", seed, options)


def measure(args: Namespace, net: str, seed: int) -> dict[str, Any]:
    """Train with the best optimizer and rate; return what is read with it, by way of reading."""
    chosen = find_best(args, net)
    run = train(args, net, **chosen, seed=seed)
    cache = common.find_record(args, CACHE)["options"] if net == "transformer_xl" else {}
    ways = readings.list_ways(net, cache)
    read = {name: readings.read_texts(args, run, how) for name, how in ways.items()}
    fields = {"kind": net, "seed": seed, "readings": read}
    fields |= {"passages": readings.score_passages(args, run, seed)}
    return fields | chosen | run.describe("val/bits_per_byte")


def measure_cache(args: Namespace) -> dict[str, Any]:
    """Return theta and weight of the cache that are best on validation text."""
    chosen = find_best(args, "transformer_xl")
    run = train(args, "transformer_xl", **chosen, seed=TUNING_SEED)
    options = choose_cache(args, run, readings.OF_TRANSFORMER_XL[CACHED])
    return {"kind": "chosen", "options": options, "text": run.text}


def find_best(args: Namespace, net: str) -> dict[str, Any]:
    """Return the optimizer and the rate of the fewest nats of validation text.

    DataError if no rate was tried, or one of them with other settings.
    """
    names = [name for name in load_records(args.out) if name.startswith(f"rate {net} ")]
    tried = [common.find_record(args, name) for name in names]
    if not tried:
        raise DataError(f"{args.out}: no rate of {net} was tried; expected one: use --tune before")
    best = min(tried, key=lambda record: record["nats"])
    return {key: best[key] for key in ("optimizer", "rate")}


if __name__ == "__main__":
    main()
