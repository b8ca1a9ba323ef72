"""speed: time a token with memory, with a sliding window, and in generation."""

from pathlib import Path

import yaml

from ..analysis.plots import plot_latency, plot_speed
from ..analysis.timing import compare_with_window, is_disturbed, measure_latency
from ..checkpoints import load_checkpoint
from ..errors import require, require_positive
from ..files import find_config, load_yaml
from ..machine import describe_environment
from ..model.contract import Network, find_device, make_config
from ..tables import Rows, write_table
from .inputs import Device, make_output_folder, pick_device


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
    """Time a token with memory, with a sliding window (the paper's Table 9), and in generation.

    Writes .csv, .json and .png files: window, latency.

    Args:
        source: A checkpoint, a run's folder, one of convert's, or a config, for random weights.
        lengths: Attention lengths: states in the memory, and tokens in the window.
        tgt_len: Tokens in a segment, with memory.
        segments: Segments timed, with memory; the fastest counts.
        positions: Windows timed; each scores one token, and the fastest counts.
        batches: Batch sizes of the generation, which is timed at the smallest length.
        tokens: Tokens generated one by one in each batch.
        device: Device of the model; left out, a GPU if there is one.
        out: Folder to write to; left out, speed in the run's folder, or in runs for a config.
    """
    require_positive(tgt_len=tgt_len, segments=segments, positions=positions, tokens=tokens)
    for key, values in {"lengths": lengths, "batches": batches}.items():
        require(all(value >= 1 for value in values), key, list(values), "at least 1 each")
    source = find_config(source)
    is_config = Path(source).suffix in (".yaml", ".yml")
    checkpoint = None if is_config else load_checkpoint(source)
    model = checkpoint.build_network() if checkpoint else build_network(Path(source))
    model = model.to(pick_device(device))
    folder = make_output_folder(out, checkpoint.run_folder if checkpoint else Path("runs"), "speed")
    origin = {"source": source, **describe_environment(find_device(model))}
    window = compare_with_window(model, list(lengths), tgt_len, segments, positions)
    write_table(window, folder / "window", origin, plot_speed)
    print_window(window)
    latency = measure_latency(model, min(lengths), list(batches), tokens)
    write_table(latency, folder / "latency", origin, plot_latency)
    print_latency(latency)
    print(f"written to {folder}")


def build_network(config: Path) -> Network:
    try:
        net = load_yaml(config.read_text())["model"]["net"]
        return make_config(net).build().eval()
    except (KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ValueError(f"source: {config} is not a config with model.net: {reason}") from error


def print_window(rows: Rows) -> None:
    counts = f"{rows[0]['segments']} segments, {rows[0]['window_positions']} windows"
    print(f"milliseconds per token, fastest of {counts}")
    for row in rows:
        paper = f" (paper: {row['published_speedup']:,})" if row["published_speedup"] else ""
        memory, window = row["memory_ms_per_token"], row["window_ms_per_token"]
        times = f"{memory:8.3f} with memory, {window:10.1f} with a window"
        speedup = f"{row['speedup']:,.0f} times{paper}"
        print(f"attention length {row['attention_len']:6,}: {times}: {speedup}")
    warn_if_disturbed(rows)


def print_latency(rows: Rows) -> None:
    print(f"{rows[0]['tokens']} tokens generated one by one, with mem_len {rows[0]['mem_len']:,}")
    for row in rows:
        rate, median, slowest = row["tokens_per_second"], row["p50_ms"], row["p99_ms"]
        times = f"a token in {median:.1f} ms (median), {slowest:.1f} ms (99 %)"
        print(f"{row['batch_size']:6} rows: {rate:8,.0f} tokens/s, {times}")
    warn_if_disturbed(rows)


def warn_if_disturbed(rows: Rows) -> None:
    if is_disturbed(rows):
        print("warning: other processes disturbed the timing; do not trust these figures")
