"""How much slower is a sliding window than memory, per token? (Dai et al. 2019, Table 9)

    python -m experiments.speed.table_9 [--rounds 3] [--fast] [--out FILE]

The network of configs/paper/enwik8_base.yaml with random weights; a round is a repetition. It needs
an idle machine: results say whether other work disturbed a round.
"""

import json
import math
from pathlib import Path

import torch

from experiments.common import REPOSITORY
from experiments.results import draw_figure, format_spread, format_table, plot_seeds
from experiments.speed.command import make_parser, parse_args, write_results
from experiments.speed.window import PUBLISHED, compare_with_window, is_disturbed
from txl_lightning.files import load_yaml
from txl_lightning.model.config import make_config

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
