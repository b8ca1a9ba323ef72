"""Figures of the speed measurements, from their JSON alone.

python -m experiments.speed.figures           bench.png of README.md, from baseline.json
python -m experiments.speed.figures FILE...   figures beside these files
"""

import json
import sys
from itertools import compress
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
        pairs = [(FOLDER / "results" / "baseline.json", FOLDER / "bench.png")]
    for path, picture in pairs:
        print(draw_bench(path, picture))


def draw_bench(path: Path, picture: Path | None = None) -> Path:
    """Draw the time of others' steps as a multiple of ours, one row per case in float32."""
    record, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    # Results before 2026-11-23 are in float32.
    is_wide = [case.get("dtype") != "bfloat16" for case in record["cases"]]
    cases = [*compress(record["cases"], is_wide)] or record["cases"]
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
    return picture


def describe_case(case: dict[str, Any]) -> str:
    sizes, disturbed = case["sizes"], " (disturbed)" if case["spoilt"] else ""
    network = f"{sizes['n_layer']} layers of {sizes['d_model']}"
    lengths = f"{case['rows']} x {case['tgt_len']} tokens, memory of {case['mem_len']:,}"
    return f"{case['kind']}: {network}, {lengths}{disturbed}"


if __name__ == "__main__":
    main()
