"""Figures of the speed measurements, from their JSON alone.

python -m experiments.speed.figures           those of README.md
"""

import json
import math
from pathlib import Path
from typing import Any

from experiments.results import STYLES, draw_figure, plot_seeds

FOLDER = Path(__file__).parent
DRAWN = ("x-transformers", "original", "Hugging Face")
"""Contestants beside ours, whose time is 1."""
PUBLISHED = {800: 363, 1800: 773, 2800: 1409, 3800: 1874}
"""The paper's speedup over a sliding window, by attention length (Table 9, one GPU)."""


def main() -> None:
    draw_bench(FOLDER / "results" / "2026-11-24-bench.json", FOLDER / "bench.png")
    draw_rounds(FOLDER / "results" / "2026-11-22-table-9.json", FOLDER / "table_9.png")


def draw_bench(path: Path, picture: Path) -> None:
    """Draw the time of others' steps as a multiple of ours, one row per case."""
    record = json.loads(path.read_text())
    # Earlier results have bfloat16, too.
    cases = [case for case in record["cases"] if case.get("dtype") != "bfloat16"]
    title = f"Time of a step ({record['machine']['cpu']}, {record['threads']} threads)"
    labels = {"xlabel": "time of a step as a multiple of this package's (right: slower)"}
    with draw_figure(picture, title, 9, 0.4 * len(cases) + 1.5, **labels) as axes:
        for name, style in zip(DRAWN, STYLES, strict=False):
            rows = [row for row, case in enumerate(cases) if name in case["contestants"]]
            times = [cases[row]["contestants"][name]["times_ours"] for row in rows]
            axes.plot(times, rows, linestyle="", label=name if rows else "", **style)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(cases)), map(describe_case, cases), fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")


def describe_case(case: dict[str, Any]) -> str:
    sizes = case["sizes"]
    disturbed = " (disturbed)" if case["spoilt"] else ""
    network = f"{sizes['n_layer']} layers of {sizes['d_model']}"
    lengths = f"{case['rows']} x {case['tgt_len']} tokens, memory of {case['mem_len']:,}"
    return f"{case['kind']}: {network}, {lengths}{disturbed}"


def draw_rounds(path: Path, picture: Path) -> None:
    """Draw how many times slower a window is than memory, here and in the paper."""
    rounds = json.loads(path.read_text())["rounds"]
    lengths = [row["attention_len"] for row in rounds[0]["rows"]]
    line: dict[int, dict[int, float]] = {length: {} for length in lengths}
    for n, each in enumerate(rounds):
        for row in each["rows"]:
            line[row["attention_len"]][n] = row["speedup"]
    title = f"A sliding window beside memory ({len(rounds)} repetitions)"
    labels = {"xlabel": "attention length (tokens)", "ylabel": "times slower than memory"}
    with draw_figure(picture, title, **labels) as axes:
        plot_seeds(axes, line, label="a CPU, two threads")
        theirs = [PUBLISHED.get(length, math.nan) for length in lengths]
        axes.plot(lengths, theirs, linestyle="--", label="the paper, one GPU")
        axes.set_xticks(lengths, [f"{length:,}" for length in lengths])
        axes.set_ylim(bottom=0)
        axes.yaxis.set_major_formatter("{x:,g}")


if __name__ == "__main__":
    main()
