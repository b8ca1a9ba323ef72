"""inspect: measure what a trained model does with its memory."""

from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import plots
from ..analysis.attention_distance import measure_attention_distance
from ..analysis.loss_by_position import (
    average_by_memory_len,
    average_by_position,
    score_memory_lens,
)
from ..checkpoints.runs import find_checkpoint, sha256_of_weights
from ..data.documents import show_progress
from ..errors import require
from ..evaluation.environment import describe_environment
from ..evaluation.tables import write_table
from .inputs import Device, find_tgt_len, load_model, make_output_folder, read_ids


def inspect_command(
    ckpt_path: str,
    path: str | None = None,
    split: str = "val",
    tokens: int = 50_000,
    batch_size: int = 8,
    tgt_len: int | None = None,
    mem_lens: tuple[int, ...] = (),
    device: Device = None,
    out: str | None = None,
) -> None:
    """Measure what memory does: loss by its length and by position, and attention distance.

    Writes .csv, .json and .png files: positions, memory, attention.

    Args:
        ckpt_path: A checkpoint written by fit, or a run's folder, for its best.ckpt.
        path: Text to measure on; left out, that of the training.
        split: Part of that text: train, val or test.
        tokens: Most tokens to read, from its beginning.
        batch_size: Rows read in parallel.
        tgt_len: Tokens in a segment; left out, as in training.
        mem_lens: Lengths of memory beside 0 and that of training; left out, up to four times it.
        device: Device of the model; left out, a GPU if there is one.
        out: Folder to write to; left out, inspect beside the checkpoint.
    """
    require(tokens >= 1, "tokens", tokens, "at least 1")
    checkpoint = find_checkpoint(ckpt_path)
    model, vocab = load_model(checkpoint, device)
    ids = read_ids(checkpoint, vocab, path, split)[:tokens]
    folder = make_output_folder(out, checkpoint, "inspect")
    mem_len = model.config.mem_len
    tgt_len = find_tgt_len(checkpoint) if tgt_len is None else tgt_len
    segments = {"batch_size": batch_size, "tgt_len": tgt_len}
    usual = [max(1, (mem_len or tgt_len) * 2**power // 4) for power in range(5)]
    lengths = sorted({0, mem_len, *(mem_lens or usual)})
    with show_progress("inspect", len(lengths) + 1, in_bytes=False) as advance:
        nats = score_memory_lens(model, ids, lengths, **segments, advance=advance)
        attention = measure_attention_distance(model, ids, **segments)
        advance(1)
    about = {"checkpoint": str(checkpoint), "checkpoint_sha256": sha256_of_weights(checkpoint)}
    about |= {"path": path, "split": split} | describe_environment(model.device)
    about |= {"tokens": len(ids), "unit": vocab.unit, "trained_mem_len": mem_len, **segments}
    write_results(folder, nats, attention, about)


def write_results(
    folder: Path, nats: dict[int, np.ndarray], attention: plots.Rows, about: dict[str, Any]
) -> None:
    unit, mem_len = about["unit"], about["trained_mem_len"]
    memory = average_by_memory_len(nats)
    positions = average_by_position({length: nats[length] for length in sorted({0, mem_len})})
    for name, rows in {"memory": memory, "positions": positions, "attention": attention}.items():
        write_table(rows, folder / name, about)
    plots.plot_loss_by_memory(memory, folder / "memory.png", unit, mem_len)
    plots.plot_loss_by_position(positions, folder / "positions.png", unit)
    plots.plot_attention(attention, folder / "attention.png", unit)
    print(f"mem_len  nats per {unit}  saved (and its standard error)")
    for row in memory:
        saved = f"{row['saved']:7.4f} ({row['saved_standard_error']:.4f})"
        print(f"{row['mem_len']:7,}  {row['nats']:{len(unit) + 9}.4f}  {saved}")
    print(f"layer  mean distance of each head, {unit}s")
    for layer, heads in plots.group_by(attention, "layer").items():
        print(f"{layer:5}  " + "  ".join(f"{row['mean']:.1f}" for row in heads))
    print(f"written to {folder}")
