"""How much slower is a sliding window than memory, per token? (Dai et al. 2019, Table 9)

    python -m experiments.speed.table_9 [--rounds 3] [--fast] [--out FILE]

The network of configs/paper/enwik8_base.yaml with random weights, on an idle machine.
"""

import time
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from experiments.common import REPOSITORY
from experiments.results import format_spread, format_table
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.figures import PUBLISHED, draw_rounds
from txl_lightning.files import load_yaml
from txl_lightning.model import EvalLengths, Network
from txl_lightning.model.config import make_config
from txl_lightning.model.reading import Reader

read_clock = time.perf_counter
FILL_LEN = 256  # length of the segments that fill the memory
CONFIGS = REPOSITORY / "configs"
SIZES = {"lengths": [*PUBLISHED], "tgt_len": 128, "segments": 20, "positions": 3}
FAST = {"lengths": [16, 32], "tgt_len": 8, "segments": 2, "positions": 1}


def main() -> None:
    args = parse_args(make_parser(__doc__))
    torch.set_num_threads(args.threads)
    network = "smoke.yaml" if args.fast else "paper/enwik8_base.yaml"
    config = load_yaml((CONFIGS / network).read_text())["model"]["net"]
    model = make_config(config).build().eval()
    sizes = FAST if args.fast else SIZES
    rounds = [{"rows": compare_with_window(model, **sizes)} for _ in range(args.rounds)]
    print(format_rounds(rounds))
    write_results(args, "table-9", {"rounds": rounds}, draw_rounds)


def time_segments(model: Network, attention_len: int, tgt_len: int) -> Iterator[float]:
    """Yield the seconds of each further tgt_len tokens, after a memory of attention_len."""
    reader = Reader(model)
    generator = torch.Generator().manual_seed(0)
    memory = reader.empty_memory(1, EvalLengths(attention_len))
    for start in range(0, attention_len, FILL_LEN):
        shape = (1, min(FILL_LEN, attention_len - start))
        _, memory = reader.hidden(draw_tokens(model, shape, generator), memory)
    while True:
        tokens_BL, targets_BL = draw_tokens(model, (2, 1, tgt_len), generator)
        start = read_clock()
        _, memory = reader.loss(tokens_BL, targets_BL, memory)
        yield read_clock() - start


def time_windows(model: Network, attention_len: int) -> Iterator[float]:
    """Yield the seconds of each prediction of one token from a new window of attention_len."""
    reader = Reader(model)
    generator = torch.Generator().manual_seed(0)
    while True:
        window_1L = draw_tokens(model, (1, attention_len), generator)
        start = read_clock()
        h_1LD, _ = reader.hidden(window_1L, reader.empty_memory(1, EvalLengths(0)))
        reader.head(h_1LD[:, -1:])
        yield read_clock() - start


def draw_tokens(model: Network, shape: tuple[int, ...], draw: torch.Generator) -> Tensor:
    return torch.randint(model.config.n_token, shape, generator=draw)


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
    rounds = []
    rows = []
    for _ in range(positions + 1):
        rounds.append([(list(islice(each, n_segment)), next(window)) for each, window in timers])
    # The first round is a warm-up.
    for attention_len, times in zip(lengths, zip(*rounds[1:], strict=True), strict=True):
        memory_s, window_s = zip(*times, strict=True)
        memory_ms = float((1e3 * np.ravel(memory_s) / tgt_len).min())
        window_ms = 1e3 * min(window_s)
        row = {"attention_len": attention_len, "memory_ms_per_token": memory_ms}
        row |= {"window_ms_per_token": window_ms, "speedup": window_ms / memory_ms}
        rows.append(row)
    return rows


def format_rounds(rounds: list[dict]) -> str:
    head = ["attention length", "ms with memory", "ms with a window", "times slower", "paper"]
    table = [head]
    for row in zip(*(each["rows"] for each in rounds), strict=True):
        columns = {"memory_ms_per_token": 2, "window_ms_per_token": 0, "speedup": 0}
        cells = [format_spread([r[key] for r in row], digits) for key, digits in columns.items()]
        length = row[0]["attention_len"]
        table.append([f"{length:,}", *cells, f"{PUBLISHED.get(length, '')}"])
    return format_table(table)


if __name__ == "__main__":
    main()
