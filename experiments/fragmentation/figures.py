"""Table, figure and claim of context fragmentation, from results.json alone."""

import math
import statistics
from itertools import pairwise
from pathlib import Path

import matplotlib

from experiments import results

INK = "#797979"
"""Readable on a white page and on a dark one, like the colours of the curves."""
NAMES = {"alone": "no memory", "window": "no memory, sliding window", "memory": "with memory"}
STYLES = {
    "alone": {"color": "#d97706", "marker": "^"},
    "window": {"color": "#16a34a", "marker": "s"},
    "memory": {"color": "#3b82f6", "marker": "o"},
}
PLACES = (1, 2, 4, 8, 16, 32, 64)
"""Positions in the table, and ticks of the figure."""
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
        mean = results.format_spread([record["mean"] for record in found])
        rows.append([name, found[0]["computed"], mean, *at])
    return rows


def list_places(records: results.Records) -> list[int]:
    [segment] = {record["segment"] for record in records.values()}
    return [place for place in PLACES if place <= segment]


def draw(records: results.Records, folder: Path) -> None:
    """Draw nats by position, for a light and for a dark page."""
    options = {"inches": (7, 3.4), "transparent": True, "metadata": {"Date": None}}
    path = folder / "fragmentation.svg"
    with matplotlib.rc_context(PAGE), results.open_figure(path, **options) as (axes,):
        for reading, name in NAMES.items():
            found = results.select(records, reading=reading)
            bins, curves = list_bins(found[0]["segment"]), [record["nats"] for record in found]
            rows = [
                [statistics.fmean(nats[n - 1] for n in each) for each in bins] for nats in curves
            ]
            middles = [math.sqrt(each[0] * each[-1]) for each in bins]
            work = found[0]["computed"]
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
    """Return one row: nats that memory and a sliding window save."""
    means = {
        reading: {
            record["seed"]: record["mean"] for record in results.select(records, reading=reading)
        }
        for reading in NAMES
    }
    seeds = sorted(set.intersection(*map(set, means.values())))
    if not seeds:
        return []
    memory, window = (
        [means["alone"][seed] - means[reading][seed] for seed in seeds]
        for reading in ("memory", "window")
    )
    first = results.select(records, reading="window")[0]
    work = first["computed"]
    saved = results.format_spread(memory), results.format_spread(window)
    ours = "memory saves {} nats, a sliding window {}".format(*saved)
    verdict = f"less than a window of {work}"
    if results.spread(memory)[0] >= results.spread(window)[0]:
        verdict = f"holds: more than a window, at 1/{work} of its work"
    scale = f"segments of {work}, {first['segments']} of them"
    name = "Memory repairs context fragmentation"
    return [results.Claim(name, "paper, Section 3.1", "no number", ours, scale, verdict)]


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
