"""Figures of the speed measurements, from their JSON alone.

python -m experiments.speed.figures           bench.png of the latest results
python -m experiments.speed.figures FILE...   figures beside these files
"""

import json
import sys
from pathlib import Path
from typing import Any

from experiments.results import STYLES, draw_figure

FOLDER = Path(__file__).parent
DRAWN = ("x-transformers", "original", "Hugging Face")
"""Contestants beside ours, whose time is 1."""


def main() -> None:
    if sys.argv[1:]:
        pairs = [(Path(name), Path(name).with_suffix(".png")) for name in sys.argv[1:]]
    else:
        latest = max((FOLDER / "results").glob("*-bench.json"))
        pairs = [(latest, FOLDER / "bench.png")]
    for path, picture in pairs:
        print(draw_bench(path, picture))


def draw_bench(path: Path, picture: Path | None = None) -> Path:
    """Draw the time of others' steps as a multiple of ours, one row per case."""
    record, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    cases = record["cases"]
    title = f"Time of a step ({record['machine']['cpu']}, {record['threads']} threads)"
    labels = {"xlabel": "time of a step as a multiple of this package's (left is faster)"}
    with draw_figure(picture, title, 9, 0.5 * len(cases) + 1.8, **labels) as axes:
        for name, style in zip(DRAWN, STYLES, strict=False):
            rows = [row for row, case in enumerate(cases) if name in case["contestants"]]
            times = [cases[row]["contestants"][name]["times_ours"] for row in rows]
            axes.plot(times, rows, linestyle="", label=name if rows else "", **style)
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_yticks(range(len(cases)), [describe_case(case) for case in cases], fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    return picture


def describe_case(case: dict[str, Any]) -> str:
    sizes, disturbed = case["sizes"], " (disturbed)" if case["spoilt"] else ""
    # Results before 2026-11-23 are in float32.
    precision = ", bf16" if case.get("dtype") == "bfloat16" else ""
    network = f"{sizes['n_layer']} layers of {sizes['d_model']}, batch {case['rows']}"
    lengths = f"tgt_len {case['tgt_len']}, mem_len {case['mem_len']:,}"
    return f"{case['kind']}: {network}, {lengths}{precision}{disturbed}"


if __name__ == "__main__":
    main()
