"""inspect: measure how a trained model uses its memory."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ..analysis import loss_by_position, plots
from ..analysis.attention_distance import measure_attention_distance
from ..errors import require_positive
from ..machine import describe_environment
from ..model import find_device
from ..model.config import is_transformer_xl
from ..tables import Rows, write_table
from ..terminal import show_progress
from .inputs import Device, choose_split, load_model, make_output_folder, read_ids, share_unknown


def inspect_command(
    ckpt_path: str,
    path: str | None = None,
    split: str | None = None,
    tokens: int = 50_000,
    batch_size: int | None = None,
    tgt_len: int | None = None,
    mem_lens: tuple[int, ...] = (),
    device: Device = None,
    out: str | None = None,
) -> None:
    """Measure the effect of memory: loss by its length and by position, and attention distance.

    Writes .csv, .json and .png files: positions, memory, attention.

    Args:
        ckpt_path: A checkpoint written by fit, or a run's folder, for its best.ckpt.
        path: Text, file of ids or store; left out, that of the training.
        split: Part of that text: train, val or test; left out, val.
        tokens: Most tokens to read, from its beginning.
        batch_size: Rows read in parallel; left out, 8, or fewer for a short text.
        tgt_len: Tokens in a segment; left out, as in training.
        mem_lens: Lengths of memory besides 0 and that of training; left out, up to four times it.
        device: Device of the model; left out, a GPU if there is one.
        out: Folder to write to; left out, inspect in the run's folder.
    """
    require_positive(tokens=tokens)
    checkpoint, model, vocab = load_model(ckpt_path, device)
    ids = read_ids(checkpoint, vocab, path, split, tokens)
    trained = model.config.mem_len
    tgt_len = checkpoint.tgt_len if tgt_len is None else tgt_len
    multiples = [max(1, (trained or tgt_len) * 2**power // 4) for power in range(5)]
    lengths = sorted({0, trained, *(mem_lens or multiples)})
    if batch_size is None:
        batch_size = loss_by_position.choose_batch_size(len(ids), lengths, tgt_len)
    segments = {"batch_size": batch_size, "tgt_len": tgt_len}
    loss_by_position.count_warmup(len(ids), lengths, **segments)
    # Once nothing can be wrong with the text: it makes the folder.
    folder = make_output_folder(out, checkpoint.run_folder, "inspect")
    with show_progress("inspect", len(lengths) + 1, in_bytes=False) as advance:
        nats = loss_by_position.score_memory_lens(model, ids, lengths, **segments, advance=advance)
        has_attention = is_transformer_xl(model)
        attention = measure_attention_distance(model, ids, **segments) if has_attention else []
        advance(1)
    origin = {"checkpoint": str(checkpoint.path), "checkpoint_sha256": checkpoint.sha256}
    origin |= describe_environment(find_device(model)) | {"tokens": len(ids), "path": path}
    origin |= {"split": choose_split(path, split), "unknown_share": share_unknown(vocab, ids)}
    origin |= {"unit": vocab.unit, "trained_mem_len": trained, **segments}
    write_results(folder, nats, attention, origin)


def write_results(
    folder: Path, nats: dict[int, np.ndarray], attention: Rows, origin: dict[str, Any]
) -> None:
    unit = origin["unit"]
    trained = origin["trained_mem_len"]
    memory = loss_by_position.average_by_memory_len(nats)
    shown = {length: nats[length] for length in sorted({0, trained})}
    positions = loss_by_position.average_by_position(shown)
    plot_memory = partial(plots.plot_loss_by_memory, unit=unit, trained=trained)
    plot_positions = partial(plots.plot_loss_by_position, unit=unit)
    write_table(memory, folder / "memory", origin, plot_memory)
    write_table(positions, folder / "positions", origin, plot_positions)
    print(f"mem_len  nats per {unit}  saved (and its standard error)")
    for row in memory:
        saved = f"{row['saved']:7.4f} ({row['saved_standard_error']:.4f})"
        print(f"{row['mem_len']:7,}  {row['nats']:{len(unit) + 9}.4f}  {saved}")
    if attention:
        draw = partial(plots.plot_attention, unit=unit)
        write_table(attention, folder / "attention", origin, draw)
        print(f"layer  mean distance of each head, {unit}s")
        for layer, heads in plots.group_by(attention, "layer").items():
            print(f"{layer:5}  " + "  ".join(f"{row['mean']:.1f}" for row in heads))
    else:
        print("attention distance: this network does not have it")
    print(f"written to {folder}")
