"""Is a segment memory recurrence: how far into a word does a network know the product so far?

Kind of words by kind, and in each of them seed by seed, so that what is finished is balanced.
"""

from argparse import Namespace
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from experiments import common
from experiments.recurrence.groups import GROUPS
from experiments.recurrence.training import (
    FAST,
    Arm,
    Sizes,
    build,
    measure_accuracy,
    measure_nats,
    open_words,
    train,
)
from txl_lightning import TransformerXLConfig
from txl_lightning.files import hash_values
from txl_lightning.model.config import describe_config
from txl_lightning.networks import (
    GatedDeltaNetConfig,
    LSTMConfig,
    RecurrentMemoryTransformerConfig,
)
from txl_lightning.training.optimizers import OptimConfig

SEEDS = (1, 2, 3, 4, 5)
TUNING_SEED = 0
FIRST_RATE = 4e-3
"""The rate that is tried first, with that of the matrices twice as high."""
OF_ALL_GROUPS = (
    "LSTM, 1 layer",
    "Transformer-XL, 2 layers",
    "RMT, gradient 2",
    "Transformer-XL, 4 layers",
    "Gated DeltaNet",
)
"""The other arms have words of S3 alone."""
OF_SHORT_WORDS = (
    "LSTM, 1 layer",
    "Transformer-XL, 2 layers",
    "Transformer-XL, 4 layers",
    "Transformer-XL, 8 layers",
    "Transformer-XL, 4 layers, gradient 4",
    "RMT, gradient 4",
    "Gated DeltaNet, eigenvalues from -1",
    "Gated DeltaNet",
    "LSTM, 2 layers",
)
N_POINT = 20
"""Points of the recorded curve of a training."""


def list_arms(sizes: Sizes) -> dict[str, Arm]:
    """Return the arms by name; unless it says so, a Transformer-XL remembers one segment."""
    width = {"d_model": sizes.width}
    parts = {"n_head": 4, "norm": "pre", "init_std": 0.05, **width}
    xl = partial(TransformerXLConfig, mem_len=sizes.segment, **parts)
    unit = {"unit_len": sizes.segment, "n_memory": 4}
    rmt = RecurrentMemoryTransformerConfig(n_layer=2, **unit, **width)
    whole = xl(n_layer=4, mem_len=sizes.segment * sizes.longest)
    delta_net = partial(GatedDeltaNetConfig, n_layer=4, **width)
    return {
        "LSTM, 1 layer": Arm(LSTMConfig(n_layer=1, d_model=2 * sizes.width)),
        "Transformer-XL, 2 layers": Arm(xl(n_layer=2)),
        "RMT, gradient 2": Arm(rmt, gradient_segments=2),
        "Transformer-XL, 4 layers": Arm(xl(n_layer=4)),
        "Gated DeltaNet": Arm(delta_net()),
        "Transformer-XL, 4 layers, gradient 4": Arm(xl(n_layer=4), gradient_segments=4),
        "Transformer-XL, 4 layers, whole words": Arm(whole, joined=sizes.longest),
        "Transformer-XL, 8 layers": Arm(xl(n_layer=8)),
        "LSTM, 2 layers": Arm(LSTMConfig(n_layer=2, d_model=3 * sizes.width // 2)),
        "RMT, gradient 1": Arm(rmt),
        "RMT, gradient 4": Arm(rmt, gradient_segments=4),
        "Gated DeltaNet, eigenvalues from -1": Arm(delta_net(allow_neg_eigval=True)),
        "Transformer-XL, 4 layers, memory of 16": Arm(xl(n_layer=4, mem_len=16)),
        "Transformer-XL, 4 layers, memory of 64": Arm(xl(n_layer=4, mem_len=64)),
    }


@dataclass(frozen=True)
class Trained:
    """A network, its training and its validation, as `common.choose_rate` reads them."""

    net: nn.Module
    curve: list[float]
    nats: float
    text: str

    def load_curve(self, column: str) -> dict[str, list[float]]:
        """Return the nats of validation words after the last update."""
        return {"steps": [len(self.curve)], column: [self.nats]}


class Words(NamedTuple):
    """Words of a group, and how networks are trained on them."""

    group: str
    updates: int
    arms: tuple[str, ...]
    trained: int = 64
    """Segments of the longest word of training."""


WORDS = {
    "S3": Words("S3", 1500, tuple(list_arms(FAST))),
    "S3, short words": Words("S3", 1500, OF_SHORT_WORDS, trained=8),
    # 60 elements have 3,600 products.
    "A5": Words("A5", 4500, OF_ALL_GROUPS),
    "Z60": Words("Z60", 4500, OF_ALL_GROUPS),
}
"""By name, in the order of training."""


def main() -> None:
    kinds = {"nargs": "+", "choices": [*WORDS], "default": [*WORDS], "help": "kinds of words"}
    # The loop of training.py has no other.
    own = {"precision": {"choices": ["32-true"]}, "accelerator": {"choices": ["cpu"]}}
    own |= {"words": kinds}
    names = [*list_arms(FAST)]
    args = common.parse_args(__file__, __doc__, SEEDS, "weights and words", names, **own)
    for words in args.words:
        arms = [name for name in args.only if name in WORDS[words].arms]
        for seed in args.seeds:
            for name in arms:
                kind = f"{words} {name}"
                common.measure_once(args, f"rate {kind}", choose_rate, words, name)
                common.measure_seed(args, f"{kind} {seed}", measure, words, name, seed)


def choose_rate(args: Namespace, words: str, name: str) -> dict[str, Any]:
    train_with = partial(train_arm, args, words, name, TUNING_SEED)
    return common.choose_rate(f"{words} {name}", train_with, FIRST_RATE, args.fast)


def measure(args: Namespace, words: str, name: str, seed: int) -> dict[str, Any]:
    """Train; return the accuracy of the state in each segment of words that were never trained."""
    kind = f"{words} {name}"
    rate = common.find_record(args, f"rate {kind}")["rate"]
    run = train_arm(args, words, name, seed, rate)
    sizes = choose_sizes(args, words)
    arm = list_arms(sizes)[name]
    segments = open_words(
        WORDS[words].group, "test", seed, sizes.test_words, sizes.segment, [sizes.longest]
    )
    accuracy = measure_accuracy(run.net, arm, segments, sizes.longest)
    fields = {"kind": kind, "group": words, "arm": name, "seed": seed, "rate": rate}
    fields |= {
        "limit": find_limit(arm, sizes),
        "accuracy": accuracy,
        "val_nats": run.nats,
        "curve": thin(run.curve),
    }
    n_weight = sum(weight.numel() for weight in run.net.parameters())
    how = {"gradient_segments": arm.gradient_segments, "joined": arm.joined}
    fields |= {"net": describe_config(run.net.config), **how, "parameters": n_weight}
    return fields | {"text": run.text}


def train_arm(args: Namespace, words: str, name: str, seed: int, rate: float) -> Trained:
    """Train an arm with a seed, which decides its weights and its words."""
    sizes = choose_sizes(args, words)
    arm = list_arms(sizes)[name]
    group = WORDS[words].group
    open_split = partial(
        open_words,
        group,
        seed=seed,
        n_row=arm.count_rows(sizes.segments),
        segment=sizes.segment,
        lengths=sizes.lengths,
    )
    warmup = sizes.updates // 10
    optim = OptimConfig("muon", rate, 2 * rate, betas=(0.9, 0.95), warmup_steps=warmup)
    net = build(arm.config, group, seed)
    curve = train(net, arm, optim, open_split("train"), sizes.updates)
    nats = measure_nats(net, arm, open_split("val"), sizes.validated)
    return Trained(net, curve, nats, hash_values([GROUPS[group].tolist(), vars(sizes), seed]))


def find_limit(arm: Arm, sizes: Sizes) -> int:
    """Return the last segment of a word whose first token reaches it: states after it are guessed.

    A layer of a Transformer-XL attends to mem_len states before its segment, so that N layers reach
    N * mem_len tokens. A state that is carried reaches all.
    """
    config = arm.config
    if not isinstance(config, TransformerXLConfig):
        return sizes.longest
    n_before = config.n_layer * config.mem_len // sizes.segment
    return min(n_before + arm.joined, sizes.longest)


def choose_sizes(args: Namespace, words: str) -> Sizes:
    if args.fast:
        return FAST
    return Sizes(updates=WORDS[words].updates, trained=WORDS[words].trained)


def thin(curve: list[float]) -> list[float]:
    """Return the means of N_POINT equal parts of a curve, or of as many as it has points."""
    n_part = max(len(curve) // N_POINT, 1)
    parts = [curve[start : start + n_part] for start in range(0, len(curve), n_part)]
    return [sum(part) / len(part) for part in parts]


if __name__ == "__main__":
    main()
