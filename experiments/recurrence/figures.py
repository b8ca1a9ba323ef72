"""Table and picture of the accuracy by segment, from results.json alone."""

from pathlib import Path
from statistics import fmean

from experiments import results
from experiments.results import AGAIN, BySeed, Records
from txl_lightning.analysis.contrasts import Contrast

SHOWN = (1, 2, 3, 4, 8, 16, 32, 64)
"""Segments in the table."""
KNOWN = 0.9
"""Share of right states in a segment up to which it counts as known."""
SAME_SHARE = 5  # percent of the states
SHORT = "S3, short words"
N_ELEMENT = {"S3": 6, SHORT: 6, "A5": 60, "Z60": 60}
"""Number of elements by the kind of words; a guess is right with 1 / number."""
DRAWN = (
    "Transformer-XL, 2 layers",
    "Transformer-XL, 4 layers",
    "Transformer-XL, 8 layers",
    "Gated DeltaNet",
    "LSTM, 1 layer",
    "LSTM, 2 layers",
    "RMT, gradient 2",
    "RMT, gradient 4",
)


N_SHOWN = len(N_ELEMENT) + 1
"""Tables on the page."""


def list_tables(records: Records) -> list[results.Rows]:
    """Return a table for each group that has results, or an empty one; then repeated trainings."""
    tables = [*(tabulate_group(records, group) for group in N_ELEMENT), list_repeats(records)]
    return [rows for rows in tables if len(rows) > 1] or tables[:1]


def tabulate_group(records: Records, group: str) -> results.Rows:
    """Return a row for each arm: its segments that are known, and the accuracy in some."""
    head = [f"{group} (a guess: {100 / N_ELEMENT[group]:.0f} %)", "parameters", "rate"]
    head += ["limit", "known segments (seeds)"]
    rows = [head + [f"segment {number}, %" for number in SHOWN]]
    for name in list_arms(records, group):
        found = results.select(records, group=group, arm=name, kind=f"{group} {name}")
        curves = collect(records, group, name)
        cells = [f"{found[0]['parameters']:,}", f"{found[0]['rate']:g}", found[0]["limit"]]
        known = [count_known(curve) for curve in curves.values()]
        cells.append(f"{format_range(known)} ({len(known)})")
        n_segment = len(next(iter(curves.values())))
        for number in SHOWN:
            values = [100 * curve[number - 1] for curve in curves.values() if number <= n_segment]
            cells.append(f"{fmean(values):.0f}" if values else "")
        rows.append([name, *cells])
    return rows


def list_front(records: Records) -> results.Rows:
    """Return the segments that reach each arm, and those it knows of each kind of words."""
    kinds = {"S3": "known segments of S3 (seeds)", SHORT: "trained on short words"}
    kinds |= {"A5": "of A5", "Z60": "of Z60"}
    found = {kind: tabulate_group(records, kind)[1:] for kind in kinds}
    shown = [kind for kind in kinds if found[kind]]
    known = {(kind, row[0]): row[4] for kind in shown for row in found[kind]}
    limits = {row[0]: row[3] for kind in shown for row in found[kind]}
    rows = [["network", "segments that reach it", *(kinds[kind] for kind in shown)]]
    for name, limit in limits.items():
        rows.append([name, limit, *(known.get((kind, name), "") for kind in shown)])
    return rows


def list_repeats(records: Records) -> results.Rows:
    """Return a row for each repeated training: the percent of all states that is right."""
    pairs = {}
    for group in N_ELEMENT:
        for name in list_arms(records, group):
            both = (average(records, group, each) for each in (name, name + AGAIN))
            pairs[f"{group}: {name}, % of the states"] = tuple(both)
    return results.list_repeats(pairs)


def list_arms(records: Records, group: str) -> list[str]:
    found = results.select(records, group=group)
    return list(dict.fromkeys(record["arm"] for record in found if "accuracy" in record))


def collect(records: Records, group: str, name: str) -> dict[int, list[float]]:
    """Return the accuracy of each segment by seed."""
    return results.collect(records, "accuracy", kind=f"{group} {name}")


def count_known(curve: list[float]) -> int:
    """Return the number of segments, from the first one on, in which KNOWN is reached."""
    return next((n for n, share in enumerate(curve) if share < KNOWN), len(curve))


def format_range(counts: list[int]) -> str:
    return " to ".join(str(n) for n in dict.fromkeys((min(counts), max(counts))))


def list_contrasts(records: Records) -> list[Contrast]:
    pairs = {
        "RMT, gradient 2": "Transformer-XL, 2 layers",
        "LSTM, 1 layer": "Transformer-XL, 8 layers",
        "Transformer-XL, 4 layers, gradient 4": "Transformer-XL, 4 layers",
    }
    return [compare(records, group, *pair) for group in N_ELEMENT for pair in pairs.items()]


def compare(records: Records, group: str, first: str, second: str) -> Contrast:
    """Return the difference of the accuracy over all segments of a word."""
    effects = results.subtract(*(average(records, group, name) for name in (first, second)))
    name = f"{group}, all segments: {first} against {second}"
    return Contrast(name, effects, "% points of the states", SAME_SHARE)


def average(records: Records, group: str, name: str) -> BySeed:
    return {seed: 100 * fmean(curve) for seed, curve in collect(records, group, name).items()}


def draw(records: Records, folder: Path) -> None:
    for group in N_ELEMENT:
        lines = {}
        for name in DRAWN:
            line: dict[int, dict[int, float]] = {}
            for seed, curve in collect(records, group, name).items():
                for number, share in enumerate(curve, start=1):
                    line.setdefault(number, {})[seed] = 100 * share
            lines[name] = line
        labels = {"xlabel": "segment of the word", "ylabel": "right states (%)", "xscale": "log"}
        labels["ylim"] = (0, 104)
        path = folder / f"{group.replace(', ', ' ').replace(' ', '_')}.png"
        title = f"{group}: the product so far, known by segment"
        results.draw_lines(path, title, lines, 8, 4.5, **labels)
