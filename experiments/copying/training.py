"""How the paper's rows are trained and read.

All have equal numbers of parameters and of updates. A text is read in pieces: in segments, and by
attention length.
"""

from argparse import Namespace
from typing import Any

import numpy as np

from experiments import common
from experiments.copying.rows import FAST, Row, Sizes
from txl_lightning import TransformerXL
from txl_lightning.data.store import Store

RATE = 6e-3
STRIDE = 8  # tokens by which the window of a model without memory moves
PIECES = 64  # number of scored pieces of a text
TOLERANCE = 1.001
"""The best attention length is the shortest with at most this multiple of the least perplexity."""


def choose_sizes(args: Namespace) -> Sizes:
    return FAST if args.fast else Sizes()


def make_text_options(sizes: Sizes) -> dict[str, Any]:
    subwords = {"data.subwords": {"n_token": sizes.n_token}} if sizes.vocab == "bpe" else {}
    return {"data.corpus": "python_source", "data.vocab": sizes.vocab} | subwords


def make_fit_options(row: Row, sizes: Sizes, seed: int) -> dict[str, Any]:
    """Return the options of fit, with a random start of the text."""
    data = {"tgt_len": find_segment_len(row, sizes), "batch_size": sizes.batch_size}
    optim = {"name": "adam", "lr": RATE, "betas": [0.9, 0.95], "warmup_steps": sizes.steps // 10}
    sections = {
        "model.net": make_net_options(row, sizes),
        "model.optim": optim,
        "data": data | {"order": "rolled", "seed": seed},
        "trainer": {"limit_val_batches": 20, "gradient_clip_val": 1.0},
        "checkpoint": {"every_n_steps": 300},
    }
    return common.flatten(sections) | common.plan_steps(sizes.steps)


def find_segment_len(row: Row, sizes: Sizes) -> int:
    return sizes.segment * row.times


def make_net_options(row: Row, sizes: Sizes) -> dict[str, Any]:
    mem_len = find_segment_len(row, sizes) if row.recurrence else 0
    net = {"n_layer": sizes.n_layer, "n_head": sizes.n_head, "d_model": sizes.d_model}
    return net | {"norm": "pre", "init_std": 0.05, "mem_len": mem_len}


def cut_pieces(store: Store, split: str, sizes: Sizes) -> np.ndarray:
    """Return PIECES rows of context tokens and scored ones, evenly over a text of many files."""
    count = sizes.val_tokens if split == "val" else sizes.test_tokens
    ids = store.ids(split)
    length = count // PIECES
    before = max(sizes.memory_lens)
    starts = before + np.linspace(0, len(ids) - before - length, PIECES).astype(int)
    return np.stack([ids[start - before : start + length] for start in starts])


def measure_best_length(
    model: TransformerXL, store: Store, row: Row, sizes: Sizes
) -> dict[str, Any]:
    """Return validation perplexities by attention length, and that of test with the best one."""
    val_PT, test_PT = (cut_pieces(store, split, sizes) for split in ("val", "test"))
    lengths = sizes.memory_lens if row.recurrence else sizes.attention_lens
    by_len = {n: measure_perplexity(model, val_PT, sizes, n) for n in lengths}
    best = min(n for n in lengths if by_len[n] <= TOLERANCE * min(by_len.values()))
    return {
        "attention_len": best,
        "best": measure_perplexity(model, test_PT, sizes, best),
        "val": {str(n): value for n, value in by_len.items()},
    }


def measure_perplexity(
    model: TransformerXL, ids_PT: np.ndarray, sizes: Sizes, attention_len: int
) -> float:
    """Return the perplexity of pieces, each token predicted from `attention_len` others.

    Without memory, a window moves by STRIDE tokens, and `attention_len` is the longest context.
    """
    mem_len = model.config.mem_len
    before = max(sizes.memory_lens)
    if mem_len:
        how = {"tgt_len": mem_len, "mem_len": attention_len, "same_length": "mem_len"}
    else:
        stride = min(STRIDE, attention_len)
        how = {"tgt_len": stride, "ext_len": attention_len - stride}
        ids_PT = ids_PT[:, before - attention_len :]
        before = attention_len
    return common.read_rows(model, ids_PT, before, **how).mean().exp().item()


def score_segments(model: TransformerXL, ids_PT: np.ndarray, row: Row, sizes: Sizes) -> float:
    """Return the perplexity of pieces that are read in segments, as in training."""
    how = {"tgt_len": find_segment_len(row, sizes), "mem_len": model.config.mem_len}
    nats_PT = common.read_rows(model, ids_PT, max(sizes.memory_lens), **how)
    return nats_PT.mean().exp().item()
