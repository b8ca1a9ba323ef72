"""Table, figure and claim of context fragmentation, from results.json alone."""

import math
from itertools import pairwise
from pathlib import Path
from statistics import fmean

import matplotlib

from experiments import results
from txl_lightning.analysis.plots import open_figure

INK = "#797979"
"""Readable on a white page and on a dark one, like the colours of the curves."""
NAMES = {"alone": "no memory", "window": "no memory, sliding window", "memory": "with memory"}
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


def list_rows(records: results.Records) -> list[list[str]]:
    places = list_places(records)
    rows = [["read with", "computed for each token", "mean", *map(str, places)]]
    for reading, name in NAMES.items():
        found = results.select(records, reading=reading)
        at = [results.format_spread([r["nats"][place - 1] for r in found], 2) for place in places]
        mean = results.format_spread(collect_means(records, reading).values())
        rows.append([name, found[0]["computed"], mean, *at])
    return rows


def collect_means(records: results.Records, reading: str) -> dict[int, float]:
    return results.collect(records, "mean", reading=reading)


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
            bins, work = list_bins(found[0]["segment"]), found[0]["computed"]
            rows = [
                [fmean(record["nats"][n - 1] for n in each) for each in bins] for record in found
            ]
            middles = [math.sqrt(each[0] * each[-1]) for each in bins]
            label = f"{name} ({work} times the work)" if work > 1 else name
            results.plot_seeds(axes, middles, rows, label=label, linewidth=2, **STYLES[reading])
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


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return two rows: nats that memory saves, and those that it saves more than a window."""
    means = {reading: collect_means(records, reading) for reading in NAMES}
    if not (memory := results.subtract(means["alone"], means["memory"])):
        return []
    window = results.subtract(means["alone"], means["window"])
    more = results.subtract(means["window"], means["memory"])
    [first, *_] = results.select(records, reading="window")
    work, scale = first["computed"], f"segments of {first['computed']}, {first['segments']} of them"
    share = f"{results.format_spread(window)} of them, by a sliding window at {work} times the work"
    saved = f"{results.format_spread(memory)} nats saved; {share}"
    sees = f"memory sees {work} to {2 * work - 1} bytes, the window {work - 1} or {work}"
    rows = [
        ("Memory repairs context fragmentation", saved, scale, memory),
        (
            "Memory saves more than the sliding window",
            f"{results.format_spread(more)} nats",
            f"{scale}; another effect: {sees}",
            more,
        ),
    ]
    source = "paper, Section 3.1", "no number"
    return [results.Claim(name, *source, *rest, MARGIN) for name, *rest in rows]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
