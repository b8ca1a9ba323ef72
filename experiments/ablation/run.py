"""Does the paper's order hold? Recurrence, positions and loss (Tables 6, 7, 10), with spread.

    python -m experiments.ablation.run [--seeds 1 2 3] [--fast] [--text FILE] [--tables 6 7 10]

Every row has as many parameters and computes as many tokens. It is tested with the attention length
that is best on validation text, and with that of its training. Rows of seed 1 come first, then
those of seed 2, so that a stop leaves whole seeds; rows of a text of shuffled lines come later, and
last those with four times the training.
"""

import argparse
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments.ablation.rows import (
    FAST,
    LONGER,
    ROWS,
    SHUFFLED,
    Row,
    Sizes,
    fit_options,
    segment_len,
)
from experiments.common import checkpoint, fit, load_records, parse_options, save_record
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text
from txl_lightning.files import load_yaml, write_text

STRIDE = 8
"""Tokens that are scored in a window of a model without memory."""
PIECES = 64
"""Pieces of a text that are scored."""
ENOUGH = 1.001
"""Attention is long enough where perplexity is at most so many times the least."""


def main() -> None:
    """Train and test each row with each seed."""
    tables = {"type": int, "nargs": "+", "default": [6, 7, 10], "help": "the paper's tables"}
    options = {"text": "a text in place of python_source", "tables": tables}
    given = parse_options(__file__, __doc__, **options)
    for rows in (ROWS, SHUFFLED, LONGER):
        for seed in given.seeds:
            for row in (row for row in rows if row.table in given.tables):
                if (name := f"{row.name}/{seed}") not in load_records(given.out):
                    run = train_row(given, given.runs, row, seed)
                    save_record(given, name, **measure_row(run, row, seed, given.fast))


def pick_sizes(fast: bool) -> Sizes:
    return FAST if fast else Sizes()


def train_row(given: argparse.Namespace, runs: Path, row: Row, seed: int) -> Path:
    """Return the folder of the row's run under `runs`, trained now or before."""
    sizes = pick_sizes(given.fast)
    data = text_options(given.text, sizes)
    if row in SHUFFLED:
        # The same subwords.
        first = train_row(given, runs, ROWS[0], seed)
        data = {"data.path": shuffle_lines(first, runs / "lines")}
        data |= {"data.vocab": str(first / "vocab.json")}
    return fit(runs / f"seed{seed}" / row.name, data | fit_options(row, sizes, seed))


def text_options(text: str | None, sizes: Sizes) -> dict[str, Any]:
    """Return the options of the text that is learned, and of its vocabulary."""
    data = {"data.path": text} if text else {"data.corpus": "python_source"}
    subwords = {"data.subwords": {"n_token": sizes.n_token}} if sizes.vocab == "bpe" else {}
    return data | {"data.vocab": sizes.vocab} | subwords


def shuffle_lines(run: Path, folder: Path) -> list[str]:
    """Write a run's text with its lines in another order, and return the three files of it."""
    _, store = load_training_text(checkpoint(run, "last"))
    paths = [folder / f"{split}.txt" for split in ("train", "val", "test")]
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if not path.is_file():
            lines = store.vocab.decode(store.ids(path.stem).tolist()).splitlines(keepends=True)
            order = np.random.default_rng(0).permutation(len(lines))
            write_text("".join(lines[at] for at in order), path)
    return [str(path) for path in paths]


def measure_row(run: Path, row: Row, seed: int, fast: bool) -> dict[str, Any]:
    """Return perplexities by attention length, and those of the test text."""
    sizes, path = pick_sizes(fast), checkpoint(run, "last")
    model, _ = load_run(path)
    _, store = load_training_text(path)
    val, test = (
        cut_pieces(store.ids(split), count // PIECES, max(sizes.memory_lens))
        for split, count in (("val", sizes.val_tokens), ("test", sizes.test_tokens))
    )
    lengths = sizes.memory_lens if row.recurrence else sizes.attention_lens
    by_len = {n: perplexity(model, val, sizes, n) for n in lengths}
    best = min(n for n in lengths if by_len[n] <= ENOUGH * min(by_len.values()))
    length = segment_len(row, sizes)
    trained = None if row.recurrence else length
    found = {"row": row.name, "seed": seed, "table": row.table, "attention_len": best}
    found |= {"test": perplexity(model, test, sizes, best)}
    found |= {"test_as_trained": perplexity(model, test, sizes, trained)}
    found |= {"val": {str(n): value for n, value in by_len.items()}}
    settings = load_yaml((run / "config.yaml").read_text())
    scored = settings["data"]["tgt_len"] * sizes.batch_size * settings["trainer"]["max_steps"]
    parameters = sum(weight.numel() for weight in model.parameters())
    found |= {"parameters": parameters, "targets": scored, "segment": length}
    return found | {"tokens": round(scored * length / settings["data"]["tgt_len"])}


def cut_pieces(ids: np.ndarray, own: int, before: int) -> np.ndarray:
    """Return rows of `own` tokens and as many as `before` before them, evenly over a text.

    The texts of a corpus differ: neighbours are too few of them.
    """
    starts = before + np.linspace(0, len(ids) - before - own, PIECES).astype(int)
    return np.stack([ids[start - before : start + own] for start in starts])


def perplexity(
    model: TransformerXL, ids_PT: np.ndarray, sizes: Sizes, attention_len: int | None
) -> float:
    """Return the perplexity of pieces, each token of which is predicted from attention_len others.

    Without memory they are read again for every STRIDE tokens, which see at most so many. With
    memory None is as in training: a segment and its memory.
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
