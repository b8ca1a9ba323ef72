"""Does the paper's order of recurrence, positions and loss hold? (Tables 6, 7 and 10)

    python -m experiments.ablation.run [--seeds 1 2 3] [--fast] [--text FILE] [--tables 6 7 10]

All rows have equal numbers of parameters and of computed tokens. Each is tested with the attention
length that is best on validation text, and with that of its training. Order: Tables 6 and 10 seed
by seed, then Table 7 (shuffled lines), then two rows with four times the training.
"""

from argparse import Namespace
from typing import Any

import numpy as np
import torch

from experiments import common
from experiments.ablation.rows import LONGER, ROWS, SHUFFLED, Row, Sizes
from experiments.ablation.training import pick_sizes, segment_len, train_row
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.data.store import Store

STRIDE = 8  # tokens by which the window of a model without memory moves
PIECES = 64  # number of scored pieces of a text
TOLERANCE = 1.001
"""The best attention length is the shortest with at most this multiple of the least perplexity."""


def main() -> None:
    """Train and test each row with each seed."""
    tables = {"type": int, "nargs": "+", "default": [6, 7, 10], "help": "the paper's tables"}
    more = {"text": "a text in place of python_source", "tables": tables}
    args = common.parse_args(__file__, __doc__, **more)
    for rows in (ROWS, SHUFFLED, LONGER):
        for seed in args.seeds:
            for row in (row for row in rows if row.table in args.tables):
                common.measure_once(args, f"{row.name}/{seed}", measure_row, row, seed)


def measure_row(args: Namespace, row: Row, seed: int) -> dict[str, Any]:
    """Return the record of a row: what `measure_perplexities` finds, and sizes."""
    run, sizes = train_row(args, args.runs, row, seed), pick_sizes(args)
    return {
        "row": row.name,
        "seed": seed,
        "table": row.table,
        "text": run.text,
        **measure_perplexities(run.net, run.store, row, sizes),
        "parameters": run.parameters,
        "segment": segment_len(row, sizes),
        **count_tokens(run.options),
    }


def measure_perplexities(
    model: TransformerXL, store: Store, row: Row, sizes: Sizes
) -> dict[str, Any]:
    """Return validation perplexities by attention length, and test perplexities."""
    val_PT, test_PT = (
        cut_pieces(store.ids(split), count // PIECES, max(sizes.memory_lens))
        for split, count in (("val", sizes.val_tokens), ("test", sizes.test_tokens))
    )
    lengths = sizes.memory_lens if row.recurrence else sizes.attention_lens
    by_len = {n: perplexity(model, val_PT, sizes, n) for n in lengths}
    best = min(n for n in lengths if by_len[n] <= TOLERANCE * min(by_len.values()))
    trained = None if row.recurrence else segment_len(row, sizes)
    return {
        "attention_len": best,
        "test": perplexity(model, test_PT, sizes, best),
        "test_as_trained": perplexity(model, test_PT, sizes, trained),
        "val": {str(n): value for n, value in by_len.items()},
    }


def count_tokens(options: common.Options) -> dict[str, int]:
    """Return the numbers of targets and of computed tokens of a training run."""
    segments = options["data.batch_size"] * options["trainer.max_steps"]
    scored, reread = options["data.tgt_len"], options["data.ext_len"]
    return {"targets": scored * segments, "tokens": (scored + reread) * segments}


def cut_pieces(ids: np.ndarray, length: int, before: int) -> np.ndarray:
    """Return PIECES rows of `before` context tokens and `length` scored ones, evenly over a text.

    The files of a corpus differ, so a single long piece would not represent it.
    """
    starts = before + np.linspace(0, len(ids) - before - length, PIECES).astype(int)
    return np.stack([ids[start - before : start + length] for start in starts])


def perplexity(
    model: TransformerXL, ids_PT: np.ndarray, sizes: Sizes, attention_len: int | None
) -> float:
    """Return the perplexity of pieces, each token predicted from `attention_len` others.

    Without memory, a window moves by STRIDE tokens, and `attention_len` is the longest context.
    With memory, None means as in training: a segment and its memory.
    """
    mem_len, before = model.config.mem_len, max(sizes.memory_lens)
    if mem_len and attention_len is None:
        how = {"tgt_len": mem_len}
    elif mem_len:
        how = {"tgt_len": mem_len, "mem_len": attention_len, "same_length": "mem_len"}
    else:
        stride = min(STRIDE, attention_len)
        how = {"tgt_len": stride, "ext_len": attention_len - stride}
        ids_PT, before = ids_PT[:, before - attention_len :], attention_len
    nats_PT = stream_nats(model, ids_PT.ravel(), batch_size=len(ids_PT), **how)[:, before - 1 :]
    return torch.exp(nats_PT.double().mean()).item()


if __name__ == "__main__":
    main()
