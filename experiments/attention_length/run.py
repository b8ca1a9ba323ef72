"""At equal attention length and equal seconds, is a memory better than a longer segment?"""

from argparse import Namespace
from functools import partial
from typing import Any

from experiments import common, pace
from experiments.depth import run as depth
from experiments.results import load_records

NETS = {
    "memory": {"model.net.mem_len": 128, "data.tgt_len": 64, "data.batch_size": 12},
    "segment": {"model.net.mem_len": 0, "data.tgt_len": 192, "data.batch_size": 4},
}
TEXTS = ("python_source", "enwik8_prefix")
KINDS = {f"{text}, {net}": (text, net) for text in TEXTS for net in NETS}
READINGS: dict[str, dict[str, dict[str, int]]] = {
    "memory": {
        "memory": {"mem_len": 128, "tgt_len": 64},
        "zero memory": {"mem_len": 0, "tgt_len": 64},
    },
    "segment": {
        "segments": {"mem_len": 0, "tgt_len": 192},
        "window": {"mem_len": 0, "tgt_len": 8, "ext_len": 184},
        "cached": {"mem_len": 128, "tgt_len": 192, "same_length": "mem_len"},
    },
}
# The network and the optimizer of depth.
OPTIONS = depth.OPTIONS | {"model.net.n_layer": 4}
SUBWORDS = {"data.corpus": "python_source", "data.vocab": "bpe", "data.subwords.n_token": 4096}
N_TOKEN = {"python_source": 4096, "enwik8_prefix": 256}
# It needs no download.
FAST = common.FAST | {"data.corpus": "python_source"}


def main() -> None:
    minutes = {"type": float, "default": 4.0, "help": "of training"}
    seeds = (1, 2, 3, 4, 5)
    args = common.parse_args(__file__, __doc__, seeds, "weights", KINDS, minutes=minutes)
    common.measure_once(args, "pace", time_kinds)
    for kind in args.only:
        common.measure_once(args, f"rate {kind}", choose_rate, kind)
    common.measure_kinds(args, measure)


def time_kinds(args: Namespace) -> dict[str, Any]:
    """Return the seconds of a step by kind."""
    kinds = {kind: (OPTIONS | NETS[net], N_TOKEN[text]) for kind, (text, net) in KINDS.items()}
    return pace.measure(args, kinds)


def choose_rate(args: Namespace, kind: str) -> dict[str, Any]:
    train_with = partial(train, args, kind, depth.TUNING_SEED, args.minutes)
    return common.choose_rate(kind, train_with, depth.FIRST_RATE, args.fast)


def train(args: Namespace, kind: str, seed: int, minutes: float, rate: float) -> common.TrainedRun:
    text, net = KINDS[kind]
    options = OPTIONS | NETS[net] | {"model.optim.lr": rate, "model.optim.muon_lr": 2 * rate}
    options |= pace.plan_minutes(args, "pace", kind, minutes)
    if args.fast:
        options |= FAST
    elif text == "python_source":
        options |= SUBWORDS
    else:
        options |= {"data.path": str(depth.find_prefix()), "data.vocab": "bytes"}
    name = f"{kind.replace(',', '')} {seed} {minutes:g} {rate:g}"
    return common.train(args, name, seed, options)


def measure(args: Namespace, kind: str, seed: int) -> dict[str, Any]:
    """Train; return bits per byte of the whole test text by the way it is read."""
    rate = load_records(args.out)[f"rate {kind}"]["rate"]
    run = train(args, kind, seed, args.minutes, rate)
    _, net = KINDS[kind]
    bits = common.score_ways(args, run, READINGS[net], batch_size=8)
    fields = {"kind": kind, "seed": seed, "rate": rate, "minutes": args.minutes}
    return fields | {"bits_per_byte": bits} | run.describe("val/bits_per_byte")


if __name__ == "__main__":
    main()
