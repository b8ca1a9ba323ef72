"""The figure of context fragmentation, its table and claims, from results.json alone.

python -m experiments.fragmentation.figures [FILE]
"""

import math
import statistics
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import matplotlib

from experiments.common import (
    Claim,
    choose,
    find_results,
    load_records,
    open_figure,
    show_spread,
    spread,
    write_table,
)

Records = Mapping[str, dict[str, Any]]
INK = "#797979"
"""As far from white as from the black of a dark page."""
COLOURS = {"alone": "#d97706", "window": "#16a34a", "memory": "#3b82f6"}
NAMES = {"alone": "without memory", "window": "a sliding window", "memory": "with memory"}
PLACES = (1, 2, 4, 8, 16, 32, 64)
STYLE = {
    "svg.fonttype": "none", "svg.hashsalt": "fragmentation", "font.size": 11,
    "text.color": INK, "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK,
    "ytick.color": INK, "grid.color": INK, "axes.spines.top": False, "axes.spines.right": False,
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
}  # fmt: skip


def main() -> None:
    out = find_results(__file__)
    records = load_records(out)
    head = ["read with", "computed for each token", "mean", *map(str, places(records))]
    write_table(out.with_name("table.md"), [head, *table_rows(records)])
    draw(records, out.with_name("fragmentation.svg"))


def places(records: Records) -> list[int]:
    [segment] = {record["segment"] for record in records.values()}
    return [place for place in PLACES if place <= segment]


def table_rows(records: Records) -> list[list[str]]:
    rows = []
    for reading, name in NAMES.items():
        found = choose(records, reading=reading)
        at = [show_spread([r["nats"][place - 1] for r in found], 2) for place in places(records)]
        mean = show_spread([record["mean"] for record in found])
        rows.append([name, found[0]["computed"], mean, *at])
    return rows


def draw(records: Records, path: Path) -> None:
    """Draw nats by position, to be read on a light and on a dark page."""
    options = {"transparent": True, "metadata": {"Date": None}}
    with matplotlib.rc_context(STYLE), open_figure(path, inches=(7, 3.2), **options) as (axes,):
        for reading, name in NAMES.items():
            found = choose(records, reading=reading)
            curve = [spread(nats)[0] for nats in zip(*(r["nats"] for r in found), strict=True)]
            work = found[0]["computed"]
            label = f"{name}: {work} times the work" if work > 1 else name
            style = {"color": COLOURS[reading], "linewidth": 2, "markersize": 4, "label": label}
            axes.plot(*average_in_bins(curve), "o-", **style)
        axes.set_xscale("log", base=2)
        axes.set_xticks(places(records), places(records))
        axes.set(xlabel="position in the segment", ylabel=f"nats per {found[0]['unit']}")
        axes.legend(frameon=False)


def average_in_bins(curve: list[float]) -> tuple[list[float], list[float]]:
    """Return the middle position, and the mean, of bins that grow: neighbours are alike."""
    edges = [edge for power in range(12) for edge in (2**power, 3 * 2**power // 2)]
    edges = [edge for edge in sorted(set(edges)) if edge < len(curve)] + [len(curve) + 1]
    bins = [range(*pair) for pair in pairwise(edges)]
    middles = [math.sqrt(each[0] * each[-1]) for each in bins]
    return middles, [statistics.fmean(curve[place - 1] for place in each) for each in bins]


def list_claims(records: Records) -> list[Claim]:
    """Return one row: what the first position costs, and what memory saves of it."""
    by_seed = {
        reading: {record["seed"]: record for record in choose(records, reading=reading)}
        for reading in NAMES
    }
    seeds = sorted(set.intersection(*map(set, by_seed.values())))
    if not seeds:
        return []
    gains = {
        reading: [by_seed["alone"][s]["mean"] - by_seed[reading][s]["mean"] for s in seeds]
        for reading in ("memory", "window")
    }
    ours = "; ".join(f"{NAMES[r]} saves {show_spread(each)} nats" for r, each in gains.items())
    enough = spread(gains["memory"])[0] >= spread(gains["window"])[0]
    verdict = (
        "holds: more than a window, at 1/{} of its work" if enough else "less than a window of {}"
    )
    work = choose(records, reading="window")[0]["computed"]
    what = "Memory repairs context fragmentation"
    theirs = "no number"
    scale = f"segments of {work}, {by_seed['alone'][seeds[0]]['segments']} of them"
    return [Claim(what, "paper, Section 3.1", theirs, ours, scale, verdict.format(work))]


if __name__ == "__main__":
    main()
