"""speed: time a token with memory, and with a sliding window instead."""

from pathlib import Path

import yaml

from ..analysis.plots import Rows, plot_latency, plot_speed
from ..analysis.speed import compare_with_window, is_disturbed, measure_latency
from ..checkpoints import load_run
from ..checkpoints.runs import find_checkpoint
from ..errors import require
from ..evaluation.environment import describe_environment
from ..evaluation.tables import write_table
from ..files import find_config, load_yaml
from ..model import TransformerXL, TransformerXLConfig
from .inputs import Device, make_output_folder, pick_device

DISTURBED = "warning: other processes disturbed the timing; do not trust these figures"


def speed_command(
    source: str,
    lengths: tuple[int, ...] = (800, 1800, 2800, 3800),
    tgt_len: int = 128,
    segments: int = 20,
    positions: int = 3,
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32),
    tokens: int = 200,
    device: Device = None,
    out: str | None = None,
) -> None:
    """Time a token with memory, with a sliding window (the paper's Table 9), and in writing.

    Written as .csv, .json and .png: window, latency.

    Args:
        source: A checkpoint, a run's folder, one of convert's, or a config, whose weights are
            drawn.
        lengths: Attention lengths: what is remembered, and how long the window is.
        tgt_len: Tokens in a segment, with memory.
        segments: How many are timed, with memory; the fastest counts.
        positions: How many windows are timed; each scores one token, and the fastest counts.
        batches: Rows at once, of which one token after the other is written with the least length.
        tokens: How many of these are timed.
        device: Device of the model; left out, a GPU if there is one.
        out: Folder to write to; left out, speed beside the checkpoint, or in runs for a config.
    """
    counts = {"tgt_len": tgt_len, "segments": segments, "positions": positions, "tokens": tokens}
    for key, value in counts.items():
        require(value >= 1, key, value, "at least 1")
    for key, values in {"lengths": lengths, "batches": batches}.items():
        require(all(value >= 1 for value in values), key, list(values), "at least 1 each")
    source = find_config(source)
    model = load_network(source).to(pick_device(device))
    # A config has no run.
    out = "runs/speed" if out is None and is_config(source) else out
    folder = make_output_folder(out, find_checkpoint(source), "speed")
    about = {"source": source, **describe_environment(model.device)}
    window = compare_with_window(model, list(lengths), tgt_len, segments, positions)
    write_table(window, folder / "window", about)
    plot_speed(window, folder / "window.png")
    print_window(window)
    latency = measure_latency(model, min(lengths), list(batches), tokens)
    write_table(latency, folder / "latency", about)
    plot_latency(latency, folder / "latency.png")
    print_latency(latency)
    print(f"written to {folder}")


def print_latency(rows: Rows) -> None:
    print(f"{rows[0]['tokens']} tokens written one by one, {rows[0]['mem_len']:,} remembered")
    for row in rows:
        rate, half, most = row["tokens_per_second"], row["p50_ms"], row["p99_ms"]
        times = f"a token in {half:.1f} ms (half), {most:.1f} ms (99 %)"
        print(f"{row['batch_size']:6} rows: {rate:8,.0f} tokens/s, {times}")
    if is_disturbed(rows):
        print(DISTURBED)


def print_window(rows: Rows) -> None:
    counts = f"{rows[0]['segments']} segments, {rows[0]['window_positions']} windows"
    print(f"milliseconds of a token, fastest of {counts}")
    for row in rows:
        theirs = f" (paper: {row['published_speedup']:,})" if row["published_speedup"] else ""
        print(
            f"{row['attention_len']:6,} seen: {row['memory_ms_per_token']:8.3f} with memory, "
            f"{row['window_ms_per_token']:10.1f} with a window: {row['speedup']:,.0f} times{theirs}"
        )
    if is_disturbed(rows):
        print(DISTURBED)


def is_config(source: str) -> bool:
    return Path(source).suffix in (".yaml", ".yml")


def load_network(source: str) -> TransformerXL:
    """Load the network of a checkpoint, or make one of a config's sizes."""
    if not is_config(source):
        return load_run(source)[0]
    try:
        net = load_yaml(Path(source).read_text())["model"]["net"]
        return TransformerXL(TransformerXLConfig(**net)).eval()
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"source: {source} is not a config with model.net: {reason}") from error
