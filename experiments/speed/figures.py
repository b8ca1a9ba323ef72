"""Figures of results, drawn from their JSON alone.

python experiments/speed/figures.py experiments/speed/results/baseline.json
"""

import json
import sys
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

COLOURS = {"ours": "tab:blue", "products alone": "lightgrey", "reading its bytes": "lightgrey"}


def draw_bench(path: Path) -> Path:
    """Draw tokens per second, a panel for each case, beside the JSON."""
    found = json.loads(path.read_text())
    cases = found["cases"]
    bars = max(len(case["contestants"]) for case in cases)
    columns = 2 if len(cases) > 1 else 1
    rows = -(-len(cases) // columns)
    figure = Figure(figsize=(6.5 * columns, rows * (0.9 + 0.3 * bars)), layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False).ravel()
    for panel in panels[len(cases) :]:
        panel.remove()
    for panel, case in zip(panels, cases, strict=False):
        draw_case(panel, case)
    commit = (found["commit"] or "unknown")[:7]
    figure.suptitle(f"{found['machine']['cpu']}, {found['threads']} threads, {commit}", fontsize=9)
    return save(figure, path)


def draw_case(panel: Any, case: dict[str, Any]) -> None:
    """Draw a case's bars, each with its share of the products' peak."""
    rates = {name: each["tokens_per_second"] for name, each in case["contestants"].items()}
    colours = [COLOURS.get(name.split(",")[0], "tab:orange") for name in rates]
    bars = panel.barh(list(rates), list(rates.values()), color=colours)
    shares = [f"{each['share_of_peak']:.0%}" for each in case["contestants"].values()]
    panel.bar_label(bars, shares, padding=2, fontsize=7)
    panel.set_xlim(0, 1.12 * max(rates.values()))
    panel.invert_yaxis()
    panel.tick_params(labelsize=7)
    panel.set_xlabel(f"tokens/s by {case['basis']}; share of the products' peak", fontsize=7)
    panel.set_title(case["name"] + (" (spoilt)" if case["spoilt"] else ""), fontsize=9)


def draw_scaling(path: Path) -> Path:
    """Draw the time of a token against the length of memory, beside the JSON."""
    found = json.loads(path.read_text())
    figure = Figure(figsize=(6, 3.5), layout="constrained")
    panel = figure.subplots()
    for kind, curve in found["memory"]["curves"].items():
        (line,) = panel.plot(curve["mem_len"], curve["us_per_token"], "o", label=kind)
        fit = [curve["intercept_us"] + curve["slope_us"] * each for each in curve["mem_len"]]
        label = f"{curve['slope_us'] * 1e3:.1f} us per 1,000 states (R² {curve['r_squared']:.3f})"
        panel.plot(curve["mem_len"], fit, color=line.get_color(), linewidth=0.8, label=label)
    panel.set_xlabel("states remembered (mem_len)")
    panel.set_ylabel(f"us per token, {found['memory']['basis']}", fontsize=8)
    panel.set_ylim(bottom=0)
    panel.legend(fontsize=7)
    return save(figure, path)


def save(figure: Figure, path: Path) -> Path:
    figure.savefig(path.with_suffix(".png"), dpi=120)
    return path.with_suffix(".png")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        path = Path(argument)
        draw = draw_bench if "cases" in json.loads(path.read_text()) else draw_scaling
        print(draw(path))
