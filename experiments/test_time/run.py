"""What is the best use of work at test time: memory, a cache, gradient steps, or both?

The networks are those of experiments/stop_gradient (16 rows, Python source), which must be measured
before: its results have their rate. Everything is chosen with seed 0 on validation text. General
compressors read the same bytes.
"""

import math
from argparse import Namespace
from collections.abc import Callable
from functools import partial
from typing import Any

from experiments import common
from experiments.stop_gradient import run as stop_gradient
from experiments.test_time import compressed, sizes
from experiments.test_time.texts import PARTS, find_text
from experiments.test_time.ways import SEGMENT, WAYS, Way, count_operations

SEEDS = (1, 2, 3, 4, 5)
TUNING_SEED = 0
NETWORK = "memory 16x64"
TEXTS = ("python_source", *PARTS)
CHOSEN_TOKENS = 40_000
"""Tokens of validation text by which a way is chosen, and of each test text."""
DECAYS = (1e-3, 1e-2)
"""Tried with the best rate, beside 0."""
FILLED = 24_000
"""Tokens of validation text that are read before operations are counted."""
FAST_TOKENS = 400


def main() -> None:
    precision = {"default": "bf16-mixed"}
    args = common.parse_args(__file__, __doc__, SEEDS, kinds=WAYS, precision=precision)
    if args.fast:
        args.only = ["static", "cache of 2,000", "RMS steps of norms"]
    read = list_texts(args), count_tokens(args)
    common.measure_once(args, "sizes", sizes.measure, *read)
    compressed.measure_all(args, *read)
    for name in args.only:
        common.measure_once(args, f"chosen {name}", choose, name)
    common.measure_kinds(args, measure)


def list_texts(args: Namespace) -> tuple[str, ...]:
    return TEXTS[: 1 if args.fast else None]


def load_network(args: Namespace, seed: int) -> common.TrainedRun:
    """Return the network of a seed of stop_gradient; train it if it is not there.

    DataError if stop_gradient has not chosen its rate, in the same precision.
    """
    folder = args.out.parent.parent / "stop_gradient"
    own = {"runs": args.runs.parent / "stop_gradient", "out": folder / "results.json"}
    there = Namespace(**vars(args) | own)
    if args.fast:
        rate = stop_gradient.FIRST_RATE[16]
    else:
        rate = common.find_record(there, f"{TEXTS[0]}, rate {NETWORK}")["rate"]
    return stop_gradient.train(there, TEXTS[0], NETWORK, seed, rate)


def choose(args: Namespace, name: str) -> dict[str, Any]:
    """Return a record: the options of a way, the validation nats that chose them, and its work."""
    run = load_network(args, TUNING_SEED)
    way = WAYS[name]
    options = dict(way.options)
    for each in way.of:
        options |= common.find_record(args, f"chosen {each}")["options"]
    if args.fast and "rms_tokens" in options:
        options["rms_tokens"] = FAST_TOKENS
    tried: dict[str, float] = {}

    def nats_of(**more: float) -> float:
        how = {"split": "val", "max_tokens": count_tokens(args)}
        nats = read(run, options | more, **how)["nats"]
        tried[" ".join(f"{key} {value:g}" for key, value in more.items()) or "as it is"] = nats
        return nats

    if way.has_cache:
        options |= choose_cache(args, run, options)
    if way.lengths:
        options |= choose_length(nats_of, way, args.fast)
    elif way.first_rate:
        options |= choose_steps(nats_of, way, args.fast)[0]
    best = min(tried.values()) if tried else nats_of()
    ids_N = run.store.ids("val")[: FAST_TOKENS if args.fast else FILLED]
    operations = count_operations(run.net.eval(), ids_N, options)
    fields = {"kind": "chosen", "way": name, "options": options, "val": best, "tried": tried}
    return fields | {"operations": operations, "text": run.text}


def choose_length(nats_of: Callable[..., float], way: Way, fast: bool) -> dict[str, float]:
    """Return the length of segments whose nats are fewest, with its rate and decay."""
    best: dict[str, float] = {}
    fewest = math.inf
    for length in way.lengths[: 1 if fast else None]:
        steps, nats = choose_steps(partial(nats_of, tgt_len=length), way, fast)
        if nats >= fewest:
            break
        best = {"tgt_len": length} | steps
        fewest = nats
    return best


def choose_steps(
    nats_of: Callable[..., float], way: Way, fast: bool
) -> tuple[dict[str, float], float]:
    """Return the rate, and with it the decay, of the fewest nats; and the nats."""
    rate, tried = common.search_rate(lambda rate: nats_of(rate=rate), way.first_rate, fast)
    decays = {0.0: tried[rate]} | {decay: nats_of(rate=rate, decay=decay) for decay in DECAYS}
    decay = min(decays, key=decays.__getitem__)
    return {"rate": rate, "decay": decay}, decays[decay]


def choose_cache(
    args: Namespace, run: common.TrainedRun, options: common.Options
) -> dict[str, float]:
    """Return the theta and the weight that are best for a cache."""
    auto = {"adapt": "auto", "adapt_tokens": count_tokens(args), "rate": 0.0}
    values = read(run, options | auto, split="val", max_tokens=SEGMENT)["adapt"]["values"]
    return {name: values[name] for name in ("cache_theta", "cache_weight")}


def count_tokens(args: Namespace) -> int:
    return FAST_TOKENS if args.fast else CHOSEN_TOKENS


def read(run: common.TrainedRun, options: common.Options, **how: Any) -> dict[str, Any]:
    return run.evaluate({"batch_size": 1, "tgt_len": SEGMENT, **how, **options})


def measure(args: Namespace, name: str, seed: int) -> dict[str, Any]:
    """Return bits per byte of each text, and of its blocks, read in one way."""
    run = load_network(args, seed)
    options = common.find_record(args, f"chosen {name}")["options"]
    bits = {}
    blocks = {}
    for text in list_texts(args):
        how = {"batch_size": 1, "tgt_len": SEGMENT, "max_tokens": count_tokens(args)}
        how |= {} if text == TEXTS[0] else {"path": str(find_text(text))}
        bits[text], blocks[text] = stop_gradient.score_blocks(args, run, how | options)
    fields = {"kind": name, "seed": seed, "bits_per_byte": bits, "blocks": blocks}
    return fields | {"options": options, "text": run.text, "parameters": run.parameters}


if __name__ == "__main__":
    main()
