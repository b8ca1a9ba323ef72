"""speed: what a token takes with memory, and with a sliding window instead."""

from pathlib import Path

import torch
import yaml

from ..checkpoints import load_run
from ..evaluation.figures import draw_speed
from ..evaluation.machine import made_with
from ..evaluation.speed import against_window, latencies
from ..evaluation.tables import write_table
from ..model import TransformerXL, TransformerXLConfig, require


def speed_verb(
    source: str,
    lengths: tuple[int, ...] = (800, 1800, 2800, 3800),
    tgt_len: int = 128,
    segments: int = 20,
    positions: int = 3,
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    out: str = "speed",
) -> None:
    """The paper's Table 9 on this machine, and how long a token takes to be written.

    Both are written as .csv and .json, window and latency, and the first as a picture.

    Args:
        source: A checkpoint, a folder of convert's, or a config (.yaml), whose weights are drawn.
        lengths: Attention lengths: what is remembered, and how long the window is.
        tgt_len: Tokens in a segment, with memory.
        segments: How many are timed; of the first table, the fastest counts.
        positions: How many windows are timed; each scores one token.
        batches: Rows at once, of which one token after the other is written with the least length.
        out: The folder to write to.
    """
    # Numbers too small to be normal slow a CPU's step several-fold.
    torch.set_flush_denormal(True)
    for field, value in {"tgt_len": tgt_len, "segments": segments, "positions": positions}.items():
        require(value >= 1, field, value, "at least 1")
    for field, values in {"lengths": lengths, "batches": batches}.items():
        require(all(value >= 1 for value in values), field, list(values), "at least 1 each")
    model, folder = network(source), Path(out)
    about = {"source": source, **made_with(model.probe.device)}
    window = against_window(model, list(lengths), tgt_len, segments, positions)
    write_table(window, folder / "window", about)
    draw_speed(window, folder / "window.png")
    for row in window:
        print(
            f"{row['attention_len']:6,} seen: {row['memory_ms_per_token']:8.2f} ms a token with "
            f"memory, {row['window_ms_per_token']:10.1f} with a window: {row['speedup']:,.0f} times"
        )
    latency = latencies(model, min(lengths), 1, list(batches), segments)
    write_table(latency, folder / "latency", about)
    for row in latency:
        print(
            f"{row['batch_size']:6} rows: {row['tokens_per_second']:8,.0f} tokens/s, a token in "
            f"{row['p50_ms']:.1f} ms (half), {row['p99_ms']:.1f} ms (99 %)"
        )
    print(f"written to {folder}")


def network(source: str) -> TransformerXL:
    """The network of a checkpoint, or one of a config's sizes.

    Raises:
        ValueError: it is neither.
    """
    if Path(source).suffix not in (".yaml", ".yml"):
        return load_run(source)[0]
    try:
        net = yaml.safe_load(Path(source).read_text())["model"]["net"]
        return TransformerXL(TransformerXLConfig(**net)).eval()
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise ValueError(f"source: {source} is not a config with model.net: {error}") from error
