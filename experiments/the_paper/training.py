"""Training of the paper's rows: equal numbers of parameters and of computed tokens."""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.the_paper.rows import FAST, KINDS, Row, Sizes
from txl_lightning import TransformerXL, TransformerXLConfig
from txl_lightning.files import write_text

RATES = (1.5e-3, 3e-3, 6e-3)
"""Of which the best is chosen for each row; early kinds have the second."""
TUNING_SEED = 0


def pick_sizes(args: Namespace) -> Sizes:
    return FAST if args.fast else Sizes()


def train_kind(args: Namespace, kind: str, seed: int, rate: float) -> common.TrainedRun:
    """Return the run of a kind; shuffled lines have the vocabulary of the text in order."""
    how = KINDS[kind]
    more = {}
    if how.is_shuffled:
        # Any run of the text in order.
        ordered = train_row(args, f"rate {how.row.name} {RATES[0]:g}", how.row, 1, 0, RATES[0], {})
        more = {"data.path": shuffle_lines(ordered, args.runs / "lines")}
        more |= {"data.vocab": str(ordered.folder / "vocab.json"), "data.corpus": None}
    return train_row(args, f"{kind} {seed}", how.row, how.times, seed, rate, more)


def train_row(
    args: Namespace, name: str, row: Row, times: float, seed: int, rate: float, more: common.Options
) -> common.TrainedRun:
    sizes = pick_sizes(args)
    options = text_options(None, sizes) | fit_options(row, sizes, seed, times)
    options |= {"model.optim.lr": rate} | more
    # A text has a path or the name of a corpus.
    options = {key: value for key, value in options.items() if value is not None}
    return common.train(args, name, seed, options)


def text_options(path: str | None, sizes: Sizes) -> dict[str, Any]:
    """Return the options of the training text and its vocabulary."""
    text = {"data.path": path} if path else {"data.corpus": "python_source"}
    subwords = {"data.subwords": {"n_token": sizes.n_token}} if sizes.vocab == "bpe" else {}
    return text | {"data.vocab": sizes.vocab} | subwords


def shuffle_lines(run: common.TrainedRun, folder: Path) -> list[str]:
    """Write each split of a run's text with its lines shuffled, and return the three files."""
    paths = [folder / f"{split}.txt" for split in ("train", "val", "test")]
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if not path.is_file():
            lines = run.store.vocab.decode(run.store.ids(path.stem).tolist()).splitlines(True)
            order = np.random.default_rng(0).permutation(len(lines))
            write_text("".join(lines[at] for at in order), path)
    return [str(path) for path in paths]


def fit_options(row: Row, sizes: Sizes, seed: int, times: float = 1) -> dict[str, Any]:
    """Return the options of fit: equal numbers of computed tokens, and a random start of the text.

    The seed draws initial weights and the start.
    """
    length = segment_len(row, sizes)
    steps = round(times * sizes.steps * sizes.segment / length)
    scored = length // 2 if row.half else length
    data = {"tgt_len": scored, "ext_len": length - scored, "batch_size": sizes.batch_size}
    trainer = {"max_steps": steps, "val_check_interval": steps, "limit_val_batches": 20}
    sections = {
        "model.net": net_options(row, sizes),
        "model.optim": {
            "name": "adam",
            "lr": 3e-3,
            "betas": [0.9, 0.95],
            "warmup_steps": steps // 10,
        },
        "data": data | {"order": "rolled", "seed": seed},
        "trainer": trainer | {"gradient_clip_val": 1.0, "accelerator": "cpu"},
        "checkpoint": {"every_n_steps": 300},
    }
    return {"seed_everything": seed} | common.flatten(sections)


def segment_len(row: Row, sizes: Sizes) -> int:
    """Return the segment length of a row; it is even, because half of it may be scored."""
    return 2 * round(sizes.segment * row.segment / 256)


def net_options(row: Row, sizes: Sizes) -> dict[str, Any]:
    """Return the network's settings; d_inner makes the numbers of parameters equal."""
    length = segment_len(row, sizes)
    mem_len = length if row.recurrence else 0
    net = {"n_layer": sizes.n_layer, "n_head": sizes.n_head, "d_model": sizes.d_model}
    net |= {"norm": "pre", "init_std": 0.05, "mem_len": mem_len, "d_inner": 4 * sizes.d_model}
    ours = count_parameters(net, sizes)
    net |= {"positions": row.positions}
    if row.positions not in ("sinusoidal", "absolute_sinusoidal"):
        net |= {"clamp_len": length + mem_len - 1}
    surplus = count_parameters(net, sizes) - ours
    net["d_inner"] -= round(surplus / (sizes.n_layer * (2 * sizes.d_model + 1)))
    return net


def count_parameters(net: dict[str, Any], sizes: Sizes) -> int:
    with torch.device("meta"):
        model = TransformerXL(TransformerXLConfig(n_token=sizes.n_token, **net))
    return sum(weight.numel() for weight in model.parameters())
