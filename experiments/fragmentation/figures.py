"""Tables and figure of context fragmentation, from results.json alone."""

import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import matplotlib

from experiments import results
from experiments.results import AGAIN
from txl_lightning.analysis.contrasts import Contrast
from txl_lightning.analysis.plots import open_figure

INK = "#797979"
"""Readable on a white page and on a dark one, like the colours of the curves."""
NAMES = {
    "alone": "trained without memory",
    "window": "the same by a sliding window",
    "memory": "with memory",
}
KEPT = {
    f"alone{AGAIN}": "trained without memory, measured again",
    f"window{AGAIN}": "the same by a sliding window",
    f"cached{AGAIN}": "the same by a sliding window, from kept keys",
}
"""Readings of a network that was trained again: a record of its own."""
STYLES = {
    "alone": {"color": "#d97706", "marker": "^"},
    "window": {"color": "#16a34a", "marker": "s"},
    "memory": {"color": "#3b82f6", "marker": "o"},
}
MARGIN = 0.01  # Nats
PLACES = (1, 2, 4, 8, 16, 32, 64)  # positions in the table, and ticks of the figure
PAGE = {
    "svg.hashsalt": "fragmentation", "font.size": 11, "text.color": INK,
    "axes.labelcolor": INK, "axes.edgecolor": INK, "xtick.color": INK, "ytick.color": INK,
    "font.sans-serif": ["Helvetica", "Arial", "DejaVu Sans"],
}  # fmt: skip


def list_tables(records: results.Records) -> list[results.Rows]:
    places = list_places(records)
    rows = [["read with", "mean", *map(str, places)]]
    for reading, name in (NAMES | KEPT).items():
        if not (found := results.select(records, reading=reading)):
            continue
        by_place = [
            results.format_spread([r["nats"][place - 1] for r in found], 2) for place in places
        ]
        mean = results.format_spread([record["mean"] for record in found])
        rows.append([name, mean, *by_place])
    return [rows]


def list_places(records: results.Records) -> list[int]:
    [segment] = {record["segment"] for record in records.values()}
    return [place for place in PLACES if place <= segment]


def draw(records: results.Records, folder: Path) -> None:
    """Draw nats by position, for a light and for a dark page."""
    options = {"inches": (7, 3.4), "transparent": True, "metadata": {"Date": None}}
    path = folder / "fragmentation.svg"
    with matplotlib.rc_context(PAGE), open_figure(path, **options) as (axes,):
        for reading, name in NAMES.items():
            found = results.select(records, reading=reading)
            line = {}
            for each in list_bins(found[0]["segment"]):
                means = {r["seed"]: fmean(r["nats"][n - 1] for n in each) for r in found}
                line[math.sqrt(each[0] * each[-1])] = means
            results.plot_seeds(axes, line, label=name, linewidth=2, **STYLES[reading])
        axes.set_xscale("log", base=2)
        axes.set_xticks(list_places(records), list_places(records))
        axes.set(xlabel="position in the segment", ylabel=f"nats per {found[0]['unit']}")
        seeds = results.format_seeds(len(found))
        axes.set_title(f"What does the start of a segment cost? ({seeds})", fontsize=11)
        axes.legend(frameon=False)


def list_bins(segment: int) -> list[range]:
    """Return bins of positions that grow in size, because neighbours cost about the same."""
    edges = [edge for power in range(12) for edge in (2**power, 3 * 2**power // 2)]
    edges = [edge for edge in sorted(set(edges)) if edge < segment] + [segment + 1]
    return [range(*pair) for pair in pairwise(edges)]


def list_contrasts(records: results.Records) -> list[Contrast]:
    mean = {way: results.collect(records, "mean", reading=way) for way in NAMES}
    first: dict[str, dict[int, float]] = {way: {} for way in NAMES}
    for record in records.values():
        if record["reading"] in first:
            first[record["reading"]][record["seed"]] = record["nats"][0]
    against = "memory against trained without memory"
    rows = {
        f"first byte of a segment: {against}": (first, "memory", "alone"),
        f"all bytes: {against}": (mean, "memory", "alone"),
        "all bytes: memory against sliding window": (mean, "memory", "window"),
        "all bytes: sliding window against reading in segments": (mean, "window", "alone"),
    }
    return [
        results.compare(name, found[better], found[worse], "nats", MARGIN)
        for name, (found, better, worse) in rows.items()
    ]
