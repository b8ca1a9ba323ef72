"""Table, figure and claims of the ablation, from results.json alone."""

import math
import statistics
from pathlib import Path
from typing import Any

from experiments import results
from experiments.ablation.rows import LONGER, POSITIONS, ROWS, SHUFFLED

HEAD = [
    "row", "table", "recurrence", "positions", "loss", "segment", "attention length",
    "perplexity as trained", "perplexity", "paper: as trained, best", "parameters",
]  # fmt: skip
COMPARISONS = {
    "recurrence helps, four times the training": (
        "recurrence_ours_full_longer", "alone_ours_full_longer",
    ),
    "recurrence helps": ("recurrence_ours_full", "alone_ours_full"),
    "recurrence helps, half loss": ("recurrence_ours_half", "alone_ours_half"),
    "recurrence helps, Shaw's positions": ("recurrence_shaw_full", "alone_shaw_full"),
    "recurrence helps, shuffled lines": ("shuffled_recurrence_ours", "shuffled_alone_ours"),
    "recurrence helps at equal GPU memory": ("recurrence_ours_full", "alone_ours_full_176"),
    "recurrence helps at equal GPU memory, half loss": (
        "recurrence_ours_half", "alone_ours_half_172",
    ),
    "the paper's positions beat Shaw's": ("recurrence_ours_full", "recurrence_shaw_full"),
    "the paper's positions beat Shaw's, no recurrence": ("alone_ours_full", "alone_shaw_full"),
    "the paper's positions beat Shaw's, shuffled lines": (
        "shuffled_recurrence_ours", "shuffled_recurrence_shaw",
    ),
    "the paper's positions beat absolute sinusoids": ("alone_ours_half", "alone_vaswani_half"),
    "the paper's positions beat learned absolute ones": ("alone_ours_half", "alone_al_rfou_half"),
    "full loss beats half loss": ("recurrence_ours_full", "recurrence_ours_half"),
    "full loss beats half loss, no recurrence": ("alone_ours_full", "alone_ours_half"),
}  # fmt: skip
"""Claims, each with two rows that differ in nothing else: the better one, by the paper, first."""
BY_NAME = {row.name: row for row in (*ROWS, *SHUFFLED, *LONGER)}


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [HEAD]
    for row in BY_NAME.values():
        if found := results.select(records, row=row.name):
            theirs = f"{row.published[0]}, {row.published[1]}" if row.published else "none"
            lengths = ", ".join(str(record["attention_len"]) for record in found)
            keys = ("test_as_trained", "test")
            ours = [results.format_spread([record[key] for record in found], 2) for key in keys]
            about = [row.name, row.table, "yes" if row.recurrence else "no"]
            about += [POSITIONS[row.positions], "half" if row.half else "full"]
            about += [found[0]["segment"], lengths, *ours, theirs]
            rows.append([*about, f"{found[0]['parameters']:,}"])
    return rows


def draw(records: results.Records, folder: Path) -> None:
    """Draw the gains of all comparisons, ours and the paper's."""
    gains = {name: each for name in COMPARISONS if (each := compare(records, name))}
    with results.open_figure(folder / "ablation.png", inches=(9, 0.4 * len(gains) + 1.6)) as (
        axes,
    ):
        places, names = range(len(gains)), [f"{name} ({len(each)})" for name, each in gains.items()]
        means, deviations = zip(*map(results.spread, gains.values()), strict=True)
        ours = {"fmt": "o", "capsize": 3, "color": results.COLOURS[0], "label": "ours"}
        axes.errorbar(means, places, xerr=deviations, **ours)
        theirs = {
            "fillstyle": "none",
            "color": results.COLOURS[1],
            "label": "paper, 128M parameters",
        }
        axes.plot([published_gain(name) for name in gains], places, "D", **theirs)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(places, names)
        axes.invert_yaxis()
        axes.set_xlabel("gain: % less perplexity (mean ± standard deviation; number of seeds)")
        results.label_figure(
            axes, "Do the paper's findings hold for a small model? (right of 0: yes)"
        )


def compare(records: results.Records, name: str) -> list[float]:
    """Return by how many percent the better row's perplexity is less, for each seed of both."""
    better, worse = (
        {record["seed"]: record["test"] for record in results.select(records, row=row)}
        for row in COMPARISONS[name]
    )
    return [100 * (1 - better[seed] / worse[seed]) for seed in sorted(better.keys() & worse.keys())]


def published_gain(name: str) -> float:
    better, worse = (BY_NAME[row].published[1] for row in COMPARISONS[name])
    return 100 * (1 - better / worse)


def judge(gains: list[float]) -> str:
    """Return a verdict: a mean gain of two standard errors or more is a difference."""
    if len(gains) < 2:
        return "one seed only"
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    if abs(mean) < 2 * error:
        return "no clear difference"
    return "holds" if mean > 0 else "does not hold"


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each comparison with results."""
    claims = []
    for name, (better, _) in COMPARISONS.items():
        if gains := compare(records, name):
            record = results.select(records, row=better)[0]
            size, tokens = record["parameters"] / 1e6, record["tokens"] / 1e6
            texts = (
                f"{published_gain(name):.1f} % less perplexity",
                f"{results.format_spread(gains, 1)} %",
            )
            scale = f"{size:.2f}M parameters, {tokens:.1f}M tokens"
            source = f"paper, Table {max(BY_NAME[row].table for row in COMPARISONS[name])}"
            claims.append(results.Claim(f"Ablation: {name}", source, *texts, scale, judge(gains)))
    return claims


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
