"""Does recurrence help when each network has the best of three learning rates? (Tables 6 to 8, 10)

    python -m experiments.recurrence.run [--seeds 11 12 13 14 15] [--only KIND ...] [--fast]

Network and text of the ablation, four times its training. The learning rate of each network is the
best of three on validation text, after a training as long as the ablation's, of seed 0, which is
not reported. Each row is tested in segments, as trained, and with the attention length that is best
on validation text: that of a memory, or of a window that moves by 8 tokens. Of the longer segments
of Table 10, one row has equal tokens and the other equal updates. How far context helps (Table 8):
how much less perplexity a network has with each context than with one half as long, less the same
if the added tokens are unrelated; and how many nats it saves on a passage that comes again.
"""

from argparse import Namespace
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.ablation.rows import FAST, ROWS, Row, Sizes
from experiments.ablation.run import cut_pieces, measure_perplexities
from experiments.ablation.training import fit_options, segment_len, shuffle_lines, text_options
from experiments.copied.run import score_copies
from experiments.results import load_records
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.analysis.context_length import compute_recl, spread_targets
from txl_lightning.commands.recl import score_models

TIMES = 4
SIZES = Sizes(val_tokens=16_384, test_tokens=32_768)
NETS = {
    "memory": "recurrence_ours_full",
    "alone": "alone_ours_full",
    "shaw memory": "recurrence_shaw_full",
    "shaw alone": "alone_shaw_full",
    "long": "alone_ours_full_176",
}
"""Rows of the ablation whose rates are chosen."""
BY_NAME = {row.name: row for row in ROWS}
LONG = BY_NAME["alone_ours_full_176"]
UPDATES = TIMES * segment_len(LONG, SIZES) / SIZES.segment
"""Tokens, as a multiple of the ablation's, with which the longer segments have equal updates."""
KINDS = {
    "memory": ("memory", TIMES),
    "alone": ("alone", TIMES),
    "long, equal tokens": ("long", TIMES),
    "long, equal updates": ("long", UPDATES),
    "shaw memory": ("shaw memory", TIMES),
    "shaw alone": ("shaw alone", TIMES),
    "shuffled memory": ("memory", TIMES),
    "shuffled alone": ("alone", TIMES),
}
"""Of each kind its network and its training; "shuffled" kinds read lines in random order."""
CONTEXT = ("memory", "shaw memory", "alone")
"""Kinds whose contexts are compared, with the same tokens; each alone, not as a group."""
CONTEXTS, POSITIONS, SHARES = (64, 128, 256), 2000, (0.1, 1.0)
GAPS = (0, 64)  # tokens between a passage and itself (experiments/copied)
RATES = (1.5e-3, 3e-3, 6e-3)
TUNING_SEED = 0


def main() -> None:
    """Choose the rate of each network, then train and test each kind with each seed."""
    args = common.parse_args(__file__, __doc__, (11, 12, 13, 14, 15), kinds=KINDS)
    for net in dict.fromkeys(KINDS[kind][0] for kind in args.only):
        common.measure_once(args, f"rate {net}", choose_rate, net)
    for kind in args.only:
        rate = load_records(args.out)[f"rate {KINDS[kind][0]}"]["rate"]
        for seed in args.seeds:
            common.measure_once(args, f"{kind} {seed}", measure, kind, seed, rate)
    for seed in args.seeds if set(CONTEXT) <= set(args.only) else ():
        common.measure_once(args, f"contexts {seed}", measure_contexts, seed)


def choose_rate(args: Namespace, net: str) -> dict[str, Any]:
    """Return the validation perplexity of each rate, and the best rate."""
    row, sizes, losses = BY_NAME[NETS[net]], pick_sizes(args), {}
    for rate in RATES[: 2 if args.fast else None]:
        run = train_row(args, f"rate {net} {rate:g}", row, TUNING_SEED, rate)
        pieces_PT = cut_pieces(run.store.ids("val"), *measure_pieces(sizes, "val"))
        losses[f"{rate:g}"] = score_segments(run.net, pieces_PT, row, sizes)
    best = float(min(losses, key=lambda rate: losses[rate]))
    return {"kind": "rate", "net": net, "text": run.text, "val": losses, "rate": best}


def measure(args: Namespace, kind: str, seed: int, rate: float) -> dict[str, Any]:
    """Return the perplexities of a kind, read as trained and with the best attention length."""
    (net, times), sizes = KINDS[kind], pick_sizes(args)
    row = replace(BY_NAME[NETS[net]], times=times)
    run = train_row(args, f"{kind} {seed}", row, seed, rate, kind.startswith("shuffled"))
    pieces_PT = cut_pieces(run.store.ids("test"), *measure_pieces(sizes, "test"))
    found = measure_perplexities(run.net, run.store, row, sizes)
    return {
        "kind": kind,
        "seed": seed,
        "rate": rate,
        "segments": score_segments(run.net, pieces_PT, row, sizes),
        "best": found["test"],
        "attention_len": found["attention_len"],
        "val": found["val"],
    } | run.describe()


def measure_contexts(args: Namespace, seed: int) -> dict[str, Any]:
    """Return gains by length of context of each network of a seed, and nats saved on copies."""
    contexts, records, runs = CONTEXTS[: 2 if args.fast else None], load_records(args.out), {}
    for kind in CONTEXT:
        net, times = KINDS[kind]
        row, rate = replace(BY_NAME[NETS[net]], times=times), records[f"rate {net}"]["rate"]
        runs[kind] = train_row(args, f"{kind} {seed}", row, seed, rate)
    ids, gains, saved = runs["memory"].store.ids("test"), [], {}
    place_P = spread_targets(len(ids), contexts[-1], 50 if args.fast else POSITIONS)
    for kind, run in runs.items():
        nats = score_models({kind: run.net}, ids, place_P, contexts, [])
        gains += compute_recl(*nats, contexts, SHARES)[1]
        how = {"mem_len": run.net.config.mem_len, "tgt_len": pick_sizes(args).segment}
        copies = {gap: score_copies(run.net, ids, gap, seed, how) for gap in GAPS}
        saved[kind] = {str(gap): nats["control"] - nats["copy"] for gap, nats in copies.items()}
    fields = {"kind": "contexts", "seed": seed, "text": runs["memory"].text}
    return fields | {"positions": len(place_P), "gains": gains, "nats_saved_by_gap": saved}


def pick_sizes(args: Namespace) -> Sizes:
    return FAST if args.fast else SIZES


def train_row(
    args: Namespace, name: str, row: Row, seed: int, rate: float, is_shuffled: bool = False
) -> common.TrainedRun:
    """Return the run of a row with a rate; of shuffled lines, with the vocabulary in order."""
    sizes = pick_sizes(args)
    text = text_options(None, sizes)
    if is_shuffled:
        # Any run of the text in order.
        ordered = train_row(
            args, f"rate memory {RATES[0]:g}", BY_NAME[NETS["memory"]], TUNING_SEED, RATES[0]
        )
        text = {"data.path": shuffle_lines(ordered, args.runs / "lines")}
        text |= {"data.vocab": str(ordered.folder / "vocab.json")}
    options = text | fit_options(row, sizes, seed) | {"model.optim.lr": rate}
    return common.train(args, name, seed, options)


def measure_pieces(sizes: Sizes, split: str) -> tuple[int, int]:
    """Return the scored tokens and the context of a piece of a split."""
    count = sizes.val_tokens if split == "val" else sizes.test_tokens
    return count // 64, max(sizes.memory_lens)


def score_segments(model: TransformerXL, ids_PT: np.ndarray, row: Row, sizes: Sizes) -> float:
    """Return the perplexity of pieces that are read in segments, as in training."""
    how = {"tgt_len": segment_len(row, sizes), "mem_len": model.config.mem_len}
    nats_PT = stream_nats(model, ids_PT.ravel(), batch_size=len(ids_PT), **how)
    return torch.exp(nats_PT[:, max(sizes.memory_lens) - 1 :].double().mean()).item()


if __name__ == "__main__":
    main()
