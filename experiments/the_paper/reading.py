"""Ways to read a text in pieces: in segments, by attention length, and by length of memory."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.the_paper.rows import Row, Sizes
from experiments.the_paper.training import segment_len
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.data.store import Store

STRIDE = 8  # tokens by which the window of a model without memory moves
PIECES = 64  # number of scored pieces of a text
TOLERANCE = 1.001
"""The best attention length is the shortest with at most this multiple of the least perplexity."""


def cut_pieces(store: Store, split: str, sizes: Sizes) -> np.ndarray:
    """Return PIECES rows of context tokens and scored ones, evenly over a text.

    The files of a corpus differ, so a single long piece would not represent it.
    """
    count = sizes.val_tokens if split == "val" else sizes.test_tokens
    return cut_evenly(store.ids(split), count // PIECES, max(sizes.memory_lens))


def cut_evenly(ids: np.ndarray, length: int, before: int) -> np.ndarray:
    starts = before + np.linspace(0, len(ids) - before - length, PIECES).astype(int)
    return np.stack([ids[start - before : start + length] for start in starts])


def measure_best_length(
    model: TransformerXL, store: Store, row: Row, sizes: Sizes
) -> dict[str, Any]:
    """Return validation perplexities by attention length, and that of test with the best one."""
    val_PT, test_PT = (cut_pieces(store, split, sizes) for split in ("val", "test"))
    lengths = sizes.memory_lens if row.recurrence else sizes.attention_lens
    by_len = {n: perplexity(model, val_PT, sizes, n) for n in lengths}
    best = min(n for n in lengths if by_len[n] <= TOLERANCE * min(by_len.values()))
    return {
        "attention_len": best,
        "best": perplexity(model, test_PT, sizes, best),
        "val": {str(n): value for n, value in by_len.items()},
    }


def perplexity(model: TransformerXL, ids_PT: np.ndarray, sizes: Sizes, attention_len: int) -> float:
    """Return the perplexity of pieces, each token predicted from `attention_len` others.

    Without memory, a window moves by STRIDE tokens, and `attention_len` is the longest context.
    """
    mem_len, before = model.config.mem_len, max(sizes.memory_lens)
    if mem_len:
        how = {"tgt_len": mem_len, "mem_len": attention_len, "same_length": "mem_len"}
    else:
        stride = min(STRIDE, attention_len)
        how = {"tgt_len": stride, "ext_len": attention_len - stride}
        ids_PT, before = ids_PT[:, before - attention_len :], attention_len
    return exponentiate(stream_nats(model, ids_PT.ravel(), batch_size=PIECES, **how), before)


def exponentiate(nats_PT: Tensor, before: int) -> float:
    """Return the perplexity of the tokens after the first `before`."""
    return torch.exp(nats_PT[:, before - 1 :].double().mean()).item()


def score_segments(model: TransformerXL, ids_PT: np.ndarray, row: Row, sizes: Sizes) -> float:
    """Return the perplexity of pieces that are read in segments, as in training."""
    how = {"tgt_len": segment_len(row, sizes), "mem_len": model.config.mem_len}
    nats_PT = stream_nats(model, ids_PT.ravel(), batch_size=PIECES, **how)
    return exponentiate(nats_PT, max(sizes.memory_lens))


def read_with_memories(
    model: TransformerXL, ids: np.ndarray, sizes: Sizes, lengths: Sequence[int]
) -> dict[str, float]:
    """Return mean nats of the same tokens of a text by memory length."""
    before, nats = max(lengths), {}
    ids_PT = cut_evenly(ids, sizes.test_tokens // PIECES, before)
    how = {"batch_size": PIECES, "tgt_len": sizes.segment}
    for mem_len in lengths:
        nats_PT = stream_nats(model, ids_PT.ravel(), mem_len=mem_len, **how)
        nats[str(mem_len)] = nats_PT[:, before - 1 :].double().mean().item()
    return nats
