"""Does the paper's order of recurrence, positions and loss hold? (Tables 6, 7 and 10)

    python -m experiments.ablation.run [--seeds 1 2 3] [--fast] [--text FILE] [--tables 6 7 10]

All rows have equal numbers of parameters and of computed tokens. Each is tested with the attention
length that is best on validation text, and with that of its training. Order: Tables 6 and 10 seed
by seed, then Table 7 (shuffled lines), then two rows with four times the training.
"""

from argparse import Namespace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from experiments import common
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
from txl_lightning import TransformerXL, stream_nats
from txl_lightning.checkpoints import load_run
from txl_lightning.checkpoints.runs import load_training_text
from txl_lightning.files import load_yaml, write_text

STRIDE = 8
"""Tokens by which the window of a model without memory moves."""
PIECES = 64
"""Number of scored pieces of a text."""
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
                common.measure_once(args, f"{row.name}/{seed}", measure_row, args, row, seed)


def pick_sizes(args: Namespace) -> Sizes:
    return FAST if args.fast else Sizes()


def train_row(args: Namespace, runs: Path, row: Row, seed: int) -> Path:
    """Return the run's folder of a row; it is trained if it is missing under `runs`."""
    sizes = pick_sizes(args)
    data = text_options(args.text, sizes)
    if row in SHUFFLED:
        # The vocabulary of the text in order.
        first = train_row(args, runs, ROWS[0], seed)
        data = {"data.path": shuffle_lines(first, runs / "lines")}
        data |= {"data.vocab": str(first / "vocab.json")}
    return common.fit(runs / f"seed{seed}" / row.name, data | fit_options(row, sizes, seed))


def text_options(text: str | None, sizes: Sizes) -> dict[str, Any]:
    """Return the options of the training text and its vocabulary."""
    data = {"data.path": text} if text else {"data.corpus": "python_source"}
    subwords = {"data.subwords": {"n_token": sizes.n_token}} if sizes.vocab == "bpe" else {}
    return data | {"data.vocab": sizes.vocab} | subwords


def shuffle_lines(run: Path, folder: Path) -> list[str]:
    """Write each split of a run's text with its lines shuffled, and return the three files."""
    _, store = load_training_text(common.checkpoint(run))
    paths = [folder / f"{split}.txt" for split in ("train", "val", "test")]
    folder.mkdir(parents=True, exist_ok=True)
    for path in paths:
        if not path.is_file():
            lines = store.vocab.decode(store.ids(path.stem).tolist()).splitlines(keepends=True)
            order = np.random.default_rng(0).permutation(len(lines))
            write_text("".join(lines[at] for at in order), path)
    return [str(path) for path in paths]


def measure_row(args: Namespace, row: Row, seed: int) -> dict[str, Any]:
    """Return validation perplexities by attention length, and test perplexities."""
    run, sizes = train_row(args, args.runs, row, seed), pick_sizes(args)
    model, _ = load_run(common.checkpoint(run))
    _, store = load_training_text(common.checkpoint(run))
    val_PT, test_PT = (
        cut_pieces(store.ids(split), count // PIECES, max(sizes.memory_lens))
        for split, count in (("val", sizes.val_tokens), ("test", sizes.test_tokens))
    )
    lengths = sizes.memory_lens if row.recurrence else sizes.attention_lens
    by_len = {n: perplexity(model, val_PT, sizes, n) for n in lengths}
    best = min(n for n in lengths if by_len[n] <= TOLERANCE * min(by_len.values()))
    trained = None if row.recurrence else segment_len(row, sizes)
    found = {"row": row.name, "seed": seed, "table": row.table, "attention_len": best}
    found |= {"test": perplexity(model, test_PT, sizes, best)}
    found |= {"test_as_trained": perplexity(model, test_PT, sizes, trained)}
    found |= {"val": {str(n): value for n, value in by_len.items()}}
    found |= {"parameters": common.count_parameters(model), "segment": segment_len(row, sizes)}
    return found | count_tokens(run, row, sizes)


def count_tokens(run: Path, row: Row, sizes: Sizes) -> dict[str, int]:
    """Return the numbers of targets and of computed tokens of a training run."""
    settings = load_yaml((run / "config.yaml").read_text())
    scored = settings["data"]["tgt_len"]
    targets = scored * sizes.batch_size * settings["trainer"]["max_steps"]
    return {"targets": targets, "tokens": round(targets * segment_len(row, sizes) / scored)}


def cut_pieces(ids: np.ndarray, own: int, before: int) -> np.ndarray:
    """Return PIECES rows of `before` context tokens and `own` scored ones, evenly over a text.

    The files of a corpus differ, so a single long piece would not represent it.
    """
    starts = before + np.linspace(0, len(ids) - before - own, PIECES).astype(int)
    return np.stack([ids[start - before : start + own] for start in starts])


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
