"""Tables and figures of the paper's ablations, from results.json alone."""

from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results
from experiments.results import Records
from experiments.the_paper.rows import KINDS
from txl_lightning.analysis.contrasts import Contrast

Comparisons = Mapping[str, tuple[str, str]]
"""Kinds that are compared, the better first."""
READINGS = {"best": "best length", "segments": "in segments"}
SHUFFLED = {"shuffled memory": (25.2,), "shuffled alone": (27.1,)}
"""The paper's perplexities of Table 7."""
AGAINST_NONE = "recurrence against none"
COMPARISONS: Comparisons = {
    AGAINST_NONE: ("memory", "alone"),
    f"{AGAINST_NONE} on shuffled lines": ("shuffled memory", "shuffled alone"),
}
NAMES = {
    "memory": "recurrence",
    "alone": "none",
    "shuffled memory": "recurrence on shuffled lines",
    "shuffled alone": "none on shuffled lines",
}
DRAWN = {
    AGAINST_NONE: "recurrence\nagainst none",
    f"{AGAINST_NONE} on shuffled lines": "recurrence on\nshuffled lines",
}
MARGIN = 1.0  # percent of perplexity


def list_tables(records: Records) -> list[results.Rows]:
    head = ["network", "rate", "tokens", "perplexity in segments", "with the best length"]
    rows: list[list[Any]] = [[*head, "paper: as trained, best", "nats saved on a copy, by seed"]]
    for kind, how in KINDS.items():
        if found := results.select(records, kind=kind):
            cells = [NAMES[kind], f"{found[0]['rate']:g}", f"{found[0]['tokens']:,}"]
            for way in ("segments", "best"):
                cells.append(results.format_spread([record[way] for record in found], 2))
            paper = SHUFFLED.get(kind, how.row.published)
            copies = [f"{r['saved_on_copy']:.2f}" for r in found if "saved_on_copy" in r]
            rows.append([*cells, ", ".join(map(str, paper)), ", ".join(copies)])
    return [rows]


def compare(records: Records, pair: tuple[str, str], way: str) -> list[float]:
    """Return by how many percent the first kind's perplexity is less, by seed."""
    better, worse = (results.collect(records, way, kind=kind) for kind in pair)
    return [100 * (1 - better[seed] / worse[seed]) for seed in sorted(better.keys() & worse.keys())]


def draw(records: Records, folder: Path) -> None:
    effects = {DRAWN[name]: compare(records, COMPARISONS[name], "best") for name in DRAWN}
    effects = {name: values for name, values in effects.items() if values}
    if not effects:
        return
    seeds = results.count_seeds(*map(len, effects.values()))
    title = f"The paper's ablations, each with its best attention length ({seeds})"
    label = "less perplexity (%; right of 0: as in the paper)"
    with results.draw_figure(folder / "the_paper.png", title, 8, 3.6, xlabel=label) as axes:
        for place, values in enumerate(effects.values()):
            dots = {"color": results.COLOURS[0], "label": "" if place else "a seed"}
            axes.plot(values, [place] * len(values), "o", alpha=0.6, **dots)
            mean = {"color": "black", "label": "" if place else "mean"}
            axes.plot(fmean(values), place, "|", markersize=18, **mean)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(effects)), effects)
        axes.margins(y=0.15)
        axes.invert_yaxis()


def list_contrasts(records: Records, comparisons: Comparisons = COMPARISONS) -> list[Contrast]:
    unit = "% less perplexity"
    return [
        Contrast(f"{name} ({shown})", compare(records, pair, way), unit, MARGIN)
        for name, pair in comparisons.items()
        for way, shown in READINGS.items()
    ]
