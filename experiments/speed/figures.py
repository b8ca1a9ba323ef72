"""Figures of the speed measurements, from their JSON alone.

python -m experiments.speed.figures           bench.png and scaling.png of the latest results
python -m experiments.speed.figures FILE...   figures beside these files
"""

import json
import sys
from itertools import cycle
from pathlib import Path
from typing import Any

from experiments.results import STYLES, label_figure, open_figure

FOLDER = Path(__file__).parent
BOUNDS = {"products alone": "|", "reading its bytes": "_"}
"""Markers of parts of our own step that are timed alone."""


def main() -> None:
    if sys.argv[1:]:
        pairs = [(Path(name), Path(name).with_suffix(".png")) for name in sys.argv[1:]]
    else:
        pairs = [(find_latest(name), FOLDER / f"{name}.png") for name in ("bench", "scaling")]
    for path, picture in pairs:
        draw = draw_bench if "cases" in json.loads(path.read_text()) else draw_scaling
        print(draw(path, picture))


def find_latest(name: str) -> Path:
    return max((FOLDER / "results").glob(f"*-{name}.json"))


def draw_bench(path: Path, picture: Path | None = None) -> Path:
    """Draw the time of each contestant's step as a multiple of ours, one row per case."""
    found, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    cases = found["cases"]
    with open_figure(picture, inches=(9, 0.5 * len(cases) + 1.8)) as (axes,):
        names = dict.fromkeys(name for case in cases for name in case["contestants"])
        for name, style in zip(names, cycle(STYLES), strict=False):
            rows = [row for row, case in enumerate(cases) if name in case["contestants"]]
            times = [cases[row]["contestants"][name]["times_ours"] for row in rows]
            if name in BOUNDS:
                style = {"color": "gray", "marker": BOUNDS[name], "markersize": 11}
            axes.plot(times, rows, linestyle="", label=name, **style)
        axes.set_yticks(range(len(cases)), [describe_case(case) for case in cases], fontsize=8)
        axes.invert_yaxis()
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set_xlabel("time of a step as a multiple of ours (left is faster)")
        commit = (found["commit"] or "unknown commit")[:7]
        about = f"{found['machine']['cpu']}, {found['threads']} threads, {commit}"
        label_figure(axes, f"How fast is each implementation? ({about})")
    return picture


def describe_case(case: dict[str, Any]) -> str:
    sizes = case["sizes"]
    about = f"{case['kind']}: {sizes['n_layer']} layers of {sizes['d_model']}, batch {case['rows']}"
    about += f", tgt_len {case['tgt_len']}, mem_len {case['mem_len']:,}"
    return about + (" (disturbed)" if case["spoilt"] else "")


def draw_scaling(path: Path, picture: Path | None = None) -> Path:
    """Draw the time of a token by memory length, with fitted lines."""
    found, picture = json.loads(path.read_text()), picture or path.with_suffix(".png")
    with open_figure(picture) as (axes,):
        curves = found["memory"]["curves"].items()
        for (kind, curve), style in zip(curves, STYLES, strict=False):
            slope = f"{1e3 * curve['slope_us']:.0f} µs per 1,000 states"
            label = f"{kind}: {slope} (R² {curve['r_squared']:.3f})"
            axes.plot(curve["mem_len"], curve["us_per_token"], linestyle="", label=label, **style)
            line = [curve["intercept_us"] + curve["slope_us"] * each for each in curve["mem_len"]]
            axes.plot(curve["mem_len"], line, color=style["color"], linewidth=0.8)
        axes.set(xlabel="mem_len (states)", ylabel=f"µs per token ({found['memory']['basis']})")
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_formatter("{x:,g}")
        label_figure(axes, "Does the time of a token grow linearly with memory?")
    return picture


if __name__ == "__main__":
    main()
