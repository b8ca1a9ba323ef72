"""Does a Transformer-XL read WikiText-2 better than an LSTM of equal parameters, in equal minutes?

    python -m experiments.words.run [--seeds 1 2 3] [--only KIND ...] [--minutes 6] [--fast]

Both have the same text in words, the same adaptive softmax with tied weights, AdamW, dropout in all
layers, rows and segments; the sizes give equal numbers of parameters. The learning rate of each
is doubled or halved until validation text gets worse, after a quarter of the minutes, with seed 0,
which is not reported. Minutes are those of one thread that is not disturbed (pace.py): steps are
timed in turn first.
"""

from argparse import Namespace
from typing import Any

import torch

from experiments import common, pace
from experiments.results import load_records
from txl_lightning.data.settings import DataConfig
from txl_lightning.imports import allow_imports

SEGMENT, ROWS = 64, 16
OPTIONS = common.flatten(
    {
        "data": {"corpus": "wikitext2", "tgt_len": SEGMENT, "batch_size": ROWS},
        "model.net": {"cutoffs": [2000, 10000], "dropout": 0.1},
        "model.optim": {"name": "adamw", "warmup_steps": 100},
        "trainer": {"gradient_clip_val": 1.0, "limit_val_batches": 40},
    }
)
OPTIONS["allow_imports"] = "experiments"
XL = {"n_layer": 4, "n_head": 4, "d_model": 160, "mem_len": 128, "norm": "pre", "div_val": 1}
LSTM = {"class_path": "experiments.own_network.lstm.LSTMConfig", "width": 184}
KINDS = {"xl": common.flatten({"model.net": XL}), "lstm": common.flatten({"model.net": LSTM})}
FIRST_RATE = 3e-3
TUNING_SEED, TUNING_SHARE = 0, 0.25
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source", "model.net.cutoffs": [50, 90]}


def main() -> None:
    """Time a step of each network, choose its learning rate, and train it with each seed."""
    minutes = {"type": float, "default": 6.0, "help": "of training"}
    args = common.parse_args(__file__, __doc__, vary="weights", kinds=KINDS, minutes=minutes)
    allow_imports(["experiments"])
    common.measure_once(args, "pace", time_kinds)
    for kind in args.only:
        common.measure_once(args, f"rate {kind}", choose_rate, kind)
    common.measure_kinds(args, measure)


def time_kinds(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step by kind, on words of the text: rare ones take longer."""
    more = FAST if args.fast else {}
    text = OPTIONS | more
    store = DataConfig(corpus=text["data.corpus"], vocab=text.get("data.vocab")).open_text()
    tokens_BT = torch.from_numpy(store.ids("train")[: ROWS * (SEGMENT + 1)].astype("int64"))
    how = tokens_BT.view(ROWS, -1), store.vocab.n_token, args.precision != "32-true"
    steps = {kind: pace.make_step_of(OPTIONS | KINDS[kind] | more, *how) for kind in KINDS}
    return pace.measure(args, steps)


def choose_rate(args: Namespace, kind: str) -> dict[str, Any]:
    def train_with(rate: float) -> common.TrainedRun:
        name = f"rate {kind} {rate:g}"
        return train_kind(args, name, kind, TUNING_SEED, rate, TUNING_SHARE)

    return common.choose_rate(kind, train_with, FIRST_RATE)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return the perplexity of the whole test text, read with the memory of training."""
    rate = load_records(args.out)[f"rate {kind}"]["rate"]
    run = train_kind(args, f"{kind} {seed}", kind, seed, rate)
    how = {"split": "test", "batch_size": ROWS, "tgt_len": SEGMENT, "allow_imports": "experiments"}
    test = run.evaluate(how | ({"max_tokens": 2000} if args.fast else {}))
    fields = {name: test[name] for name in ("nats", "perplexity", "tokens_scored", "interval")}
    fields |= {"kind": kind, "seed": seed, "rate": rate, "minutes": args.minutes}
    return fields | run.describe("val/nats")


def train_kind(
    args: Namespace, name: str, kind: str, seed: int, rate: float, share: float = 1.0
) -> common.TrainedRun:
    seconds = load_records(args.out)["pace"]["step_seconds"][kind]
    steps = pace.count_steps(share * args.minutes, seconds)
    plan = {"trainer.max_steps": steps, "trainer.val_check_interval": max(steps // 8, 1)}
    options = OPTIONS | KINDS[kind] | {"model.optim.lr": rate} | plan
    options |= FAST if args.fast else {}
    return common.train(args, name, seed, options)


if __name__ == "__main__":
    main()
