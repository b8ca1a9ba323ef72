"""Does a Transformer-XL read WikiText-2 better than an LSTM of equal parameters, in equal time?

    python -m experiments.words.run [--seeds 1 2 3 4 5] [--only KIND ...] [--minutes 6 30] [--fast]

README.md has the setting. "adamw": AdamW and a dropout of 0.1. "tuned": also the better of two
optimizers, and the best of four dropouts. Rates are doubled or halved until validation text gets
worse, in trainings as long as those that count.
"""

from argparse import Namespace
from collections.abc import Sequence
from typing import Any

import torch

from experiments import common, pace
from txl_lightning.data.sources import DataConfig
from txl_lightning.imports import allow_imports

SEGMENT = 64
ROWS = 16
OPTIONS = common.flatten(
    {
        "data": {"corpus": "wikitext2", "tgt_len": SEGMENT, "batch_size": ROWS},
        "model.net": {"cutoffs": [2000, 10000]},
        "model.optim": {"warmup_steps": 100},
        "trainer": {"gradient_clip_val": 1.0, "limit_val_batches": 40},
    }
)
OPTIONS["allow_imports"] = "experiments"
XL = {"n_layer": 4, "n_head": 4, "d_model": 160, "mem_len": 128, "norm": "pre", "div_val": 1}
LSTM = {"class_path": "experiments.words.lstm.LSTMConfig", "width": 184}
NETS = {"xl": common.flatten({"model.net": XL}), "lstm": common.flatten({"model.net": LSTM})}
KINDS = {f"{net} {setup}": net for setup in ("adamw", "tuned") for net in NETS}
OPTIMIZERS = ("adamw", "muon")
DROPOUTS = (0.0, 0.1, 0.2, 0.3)
SHORT = 6.0
"""The minutes of kinds with AdamW alone."""
FIRST_RATE = 3e-3
TUNING_SEED = 0
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source", "model.net.cutoffs": [50, 90]}


def main() -> None:
    """Time a step of each network, choose its settings, and train it with each seed."""
    minutes = {"type": float, "nargs": "+", "default": [SHORT, 30.0], "help": "of training"}
    seeds = (1, 2, 3, 4, 5)
    args = common.parse_args(__file__, __doc__, seeds, "weights", KINDS, minutes=minutes)
    allow_imports(["experiments"])
    for kind in args.only:
        setup = kind.split()[1]
        optimizers = OPTIMIZERS if setup == "tuned" else OPTIMIZERS[:1]
        common.measure_once(args, f"pace {setup}", time_steps, optimizers)
        minutes = args.minutes[: 1 if args.fast else None]
        for each in minutes if setup == "tuned" else [SHORT]:
            for optimizer in optimizers:
                name = name_rate(kind, optimizer, each)
                common.measure_once(args, name, choose_rate, kind, optimizer, each)
            measure_seeds(args, kind, each)


def name_rate(kind: str, optimizer: str, minutes: float) -> str:
    """Return the name of the record of a rate, which is chosen in trainings of these minutes."""
    return f"rate {kind} {optimizer} {minutes:g}"


def measure_seeds(args: Namespace, kind: str, minutes: float) -> None:
    if kind.endswith("tuned"):
        common.measure_once(args, f"dropout {kind} {minutes:g}", choose_dropout, kind, minutes)
    for seed in args.seeds:
        common.measure_seed(args, f"{kind} {minutes:g} {seed}", measure, kind, minutes, seed)


def time_steps(args: Namespace, optimizers: Sequence[str]) -> dict[str, Any]:
    """Return the seconds of a step by network and optimizer, on words: rare ones take longer."""
    more = FAST if args.fast else {}
    text = OPTIONS | more
    store = DataConfig(corpus=text["data.corpus"], vocab=text.get("data.vocab")).open_text()
    tokens_BT = torch.from_numpy(store.ids("train")[: ROWS * (SEGMENT + 1)].astype("int64"))
    kinds = {
        f"{net} {optimizer}": (choose(net, optimizer) | more, store.vocab.n_token)
        for net in NETS
        for optimizer in optimizers
    }
    return pace.measure(args, kinds, tokens_BT.view(ROWS, -1))


def choose(net: str, optimizer: str, rate: float = FIRST_RATE, dropout: float = 0.1) -> dict:
    """Return the options of a network and its optimizer."""
    options = OPTIONS | NETS[net] | {"model.net.dropout": dropout, "model.optim.lr": rate}
    options |= {"model.optim.name": optimizer}
    return options | ({"model.optim.muon_lr": 2 * rate} if optimizer == "muon" else {})


def choose_rate(args: Namespace, kind: str, optimizer: str, minutes: float) -> dict[str, Any]:
    net, _ = kind.split()

    def train_with(rate: float) -> common.TrainedRun:
        name = f"{name_rate(kind, optimizer, minutes)} {rate:g}"
        return train(args, name, kind, choose(net, optimizer, rate), TUNING_SEED, minutes)

    return common.choose_rate(net, train_with, FIRST_RATE, args.fast) | {"optimizer": optimizer}


def choose_dropout(args: Namespace, kind: str, minutes: float) -> dict[str, Any]:
    """Return the nats of validation text by dropout, and the best settings."""
    net, _ = kind.split()
    runs = {}
    names = [name_rate(kind, optimizer, minutes) for optimizer in OPTIMIZERS]
    rates = [common.find_record(args, name) for name in names]
    best = min(rates, key=lambda record: min(record["val"].values()))
    for dropout in DROPOUTS[: 2 if args.fast else None]:
        options = choose(net, best["optimizer"], best["rate"], dropout)
        name = f"dropout {kind} {minutes:g} {dropout}"
        runs[dropout] = train(args, name, kind, options, TUNING_SEED, minutes)
    nats = {n: run.load_curve("val/nats")["val/nats"][-1] for n, run in runs.items()}
    settings = {"optimizer": best["optimizer"], "rate": best["rate"]}
    settings |= {"dropout": min(nats, key=lambda dropout: nats[dropout])}
    fields = {"kind": "dropout", "net": net, "minutes": minutes, "text": runs[DROPOUTS[0]].text}
    return fields | {"val": {f"{n}": value for n, value in nats.items()}, "settings": settings}


def measure(args: Namespace, kind: str, minutes: float, seed: int) -> dict[str, Any]:
    """Return the nats of a word of the whole test text, read with the memory of training."""
    net, setup = kind.split()
    if setup == "tuned":
        settings = common.find_record(args, f"dropout {kind} {minutes:g}")["settings"]
    else:
        rate = common.find_record(args, name_rate(kind, "adamw", minutes))["rate"]
        settings = {"optimizer": "adamw", "rate": rate}
    run = train(args, f"{kind} {minutes:g} {seed}", kind, choose(net, **settings), seed, minutes)
    how = {"batch_size": ROWS, "tgt_len": SEGMENT, "allow_imports": "experiments"}
    test = common.score(args, run, split="test", **how)
    fields = {name: test[name] for name in ("nats", "perplexity", "tokens_scored", "interval")}
    fields |= {"kind": kind, "seed": seed, "minutes": minutes} | settings
    return fields | run.describe("val/nats")


def train(
    args: Namespace, name: str, kind: str, options: dict[str, Any], seed: int, minutes: float
) -> common.TrainedRun:
    net, setup = kind.split()
    timed = f"{net} {options['model.optim.name']}"
    options |= pace.plan_minutes(args, f"pace {setup}", timed, minutes, 8)
    return common.train(args, name, seed, options | (FAST if args.fast else {}))


if __name__ == "__main__":
    main()
