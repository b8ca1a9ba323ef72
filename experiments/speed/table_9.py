"""How much slower is a sliding window than memory, per token? (Dai et al. 2019, Table 9)

    python -m experiments.speed.table_9 [--rounds 3] [--fast] [--out FILE]

The network of configs/paper/enwik8_base.yaml with random weights; a round is a repetition. It needs
an idle machine: results say whether other work disturbed a round.
"""

import json
import math
import time
from collections.abc import Iterator
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.common import REPOSITORY
from experiments.results import draw_figure, format_spread, format_table, plot_seeds
from experiments.speed.command import make_parser, parse_args, write_results
from txl_lightning.files import load_yaml
from txl_lightning.model import EvalLengths, Network, find_device, make_reader
from txl_lightning.model.config import make_config

PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""The paper's speedup over a sliding window, by attention length (Table 9, one GPU)."""
FILL_LEN = 256  # length of the segments that fill the memory
CONFIGS = REPOSITORY / "configs"
SIZES = {"lengths": [*PUBLISHED], "tgt_len": 128, "segments": 20, "positions": 3}
FAST = {"lengths": [16, 32], "tgt_len": 8, "segments": 2, "positions": 1}


def main() -> None:
    """Measure each round, and print milliseconds, ratios and the paper's."""
    args = parse_args(make_parser(__doc__))
    torch.set_num_threads(args.threads)
    network = "smoke.yaml" if args.fast else "paper/enwik8_base.yaml"
    config = load_yaml((CONFIGS / network).read_text())["model"]["net"]
    model, rounds = make_config(config).build().eval(), []
    for _ in range(args.rounds):
        rows = compare_with_window(model, **(FAST if args.fast else SIZES))
        rounds.append({"rows": rows, "disturbed": is_disturbed(rows)})
    print(format_rounds(rounds))
    write_results(args, "table-9", {"rounds": rounds}, draw_rounds)


def time_segments(model: Network, attention_len: int, tgt_len: int) -> Iterator[float]:
    """Yield the seconds of each further tgt_len tokens, after a memory of attention_len."""
    reader, generator = make_reader(model), torch.Generator().manual_seed(0)
    # Allocate the full memory now, so that a failure does not come after hours of filling it.
    model.empty_memory(1, EvalLengths(attention_len))
    memory = reader.empty_memory(1, EvalLengths(attention_len))
    for start in range(0, attention_len, FILL_LEN):
        shape = (1, min(FILL_LEN, attention_len - start))
        _, memory = reader.hidden(draw_tokens(model, shape, generator), memory)
    while True:
        tokens_BL, targets_BL = draw_tokens(model, (2, 1, tgt_len), generator)
        start = read_clock(model)
        _, memory = reader.loss(tokens_BL, targets_BL, memory)
        yield read_clock(model) - start


def time_windows(model: Network, attention_len: int) -> Iterator[float]:
    """Yield the seconds of each prediction of one token from a new window of attention_len."""
    reader, generator = make_reader(model), torch.Generator().manual_seed(0)
    while True:
        window_1L = draw_tokens(model, (1, attention_len), generator)
        start = read_clock(model)
        h_1LD, _ = reader.hidden(window_1L, reader.empty_memory(1, EvalLengths(0)))
        reader.head(h_1LD[:, -1:])
        yield read_clock(model) - start


def draw_tokens(model: Network, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.randint(model.config.n_token, shape, generator=draw).to(find_device(model))


def read_clock(model: Network) -> float:
    """Return seconds, after the device has finished all work."""
    if find_device(model).type == "cuda":
        torch.cuda.synchronize()
    return time.perf_counter()


@torch.inference_mode()
def compare_with_window(
    model: Network, lengths: list[int], tgt_len: int, segments: int, positions: int
) -> list[dict[str, Any]]:
    """Return a row for each attention length: times per token, and the speedup by memory.

    Each round times a window and some segments of every length, so that other load on the machine
    affects all of them; the fastest of each counts.
    """
    n_segment = -(-segments // positions)
    timers = [(time_segments(model, n, tgt_len), time_windows(model, n)) for n in lengths]
    rounds, rows = [], []
    for _ in range(positions + 1):
        rounds.append([(list(islice(each, n_segment)), next(window)) for each, window in timers])
    # The first round is a warm-up.
    for attention_len, times in zip(lengths, zip(*rounds[1:], strict=True), strict=True):
        memory_s, window_s = zip(*times, strict=True)
        memory_ms, window_ms = 1e3 * np.ravel(memory_s) / tgt_len, 1e3 * np.array(window_s)
        row = {"attention_len": attention_len, "tgt_len": tgt_len}
        for name, ms in (("memory", memory_ms), ("window", window_ms)):
            row[f"{name}_ms_per_token"] = float(ms.min())
            row[f"{name}_median_ms"] = float(np.median(ms))
        row["speedup"] = row["window_ms_per_token"] / row["memory_ms_per_token"]
        row["published_speedup"] = PUBLISHED.get(attention_len)
        rows.append(row | {"segments": len(memory_ms), "window_positions": len(window_ms)})
    return rows


def is_disturbed(rows: list[dict[str, Any]]) -> bool:
    """Return True if times differ so much that other processes must have disturbed them."""
    windows = [row["window_ms_per_token"] for row in sorted(rows, key=itemgetter("attention_len"))]
    return windows != sorted(windows) or any(
        row[f"{name}_median_ms"] > 1.5 * row[f"{name}_ms_per_token"]
        for row in rows
        for name in ("memory", "window")
    )


def format_rounds(rounds: list[dict]) -> str:
    head = ["attention length", "ms with memory", "ms with a window", "times slower", "paper"]
    table = [head]
    for row in zip(*(each["rows"] for each in rounds), strict=True):
        columns = {"memory_ms_per_token": 2, "window_ms_per_token": 0, "speedup": 0}
        cells = [format_spread([r[key] for r in row], digits) for key, digits in columns.items()]
        length = row[0]["attention_len"]
        table.append([f"{length:,}", *cells, f"{PUBLISHED.get(length, '')}"])
    return format_table(table)


def draw_rounds(path: Path, picture: Path | None = None) -> Path:
    """Draw the ratios, ours and the paper's."""
    rounds = json.loads(path.read_text())["rounds"]
    picture = picture or path.with_suffix(".png")
    lengths = [row["attention_len"] for row in rounds[0]["rows"]]
    ratios = [[row["speedup"] for row in each["rows"]] for each in rounds]
    title = f"A sliding window beside memory ({len(rounds)} repetitions)"
    labels = {"xlabel": "attention length (tokens)", "ylabel": "times slower than memory"}
    with draw_figure(picture, title, **labels) as axes:
        plot_seeds(axes, lengths, ratios, label="a CPU, two threads")
        theirs = [PUBLISHED.get(length, math.nan) for length in lengths]
        axes.plot(lengths, theirs, linestyle="--", label="the paper, one GPU")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")
    return picture


if __name__ == "__main__":
    main()
