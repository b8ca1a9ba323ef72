"""Table, figure and claims of the ablation, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.ablation.rows import LONGER, POSITIONS, ROWS, SHUFFLED

HEAD = [
    "row", "table", "recurrence", "positions", "loss", "segment", "attention length",
    "perplexity as trained", "perplexity (± is mostly of the text: seeds read other parts)",
    "paper: as trained, best", "parameters",
]  # fmt: skip
COMPARISONS = {
    "recurrence helps": ("recurrence_ours_full", "alone_ours_full"),
    "recurrence helps, four times the training": (
        "recurrence_ours_full_longer", "alone_ours_full_longer",
    ),
    "recurrence helps, half loss": ("recurrence_ours_half", "alone_ours_half"),
    "recurrence helps, Shaw's positions": ("recurrence_shaw_full", "alone_shaw_full"),
    "recurrence helps, shuffled lines": ("shuffled_recurrence_ours", "shuffled_alone_ours"),
    "recurrence helps at equal GPU memory": ("recurrence_ours_full", "alone_ours_full_176"),
    "recurrence helps at equal GPU memory, half loss": (
        "recurrence_ours_half", "alone_ours_half_172",
    ),
    "the paper's positions learn faster than Shaw's": (
        "recurrence_ours_full", "recurrence_shaw_full",
    ),
    "the paper's positions learn faster than Shaw's, no recurrence": (
        "alone_ours_full", "alone_shaw_full",
    ),
    "the paper's positions learn faster than Shaw's, shuffled lines": (
        "shuffled_recurrence_ours", "shuffled_recurrence_shaw",
    ),
    "the paper's positions learn faster than absolute sinusoids": (
        "alone_ours_half", "alone_vaswani_half",
    ),
    "the paper's positions learn faster than learned absolute ones": (
        "alone_ours_half", "alone_al_rfou_half",
    ),
    "full loss learns faster than half loss": ("recurrence_ours_full", "recurrence_ours_half"),
    "full loss learns faster than half loss, no recurrence": (
        "alone_ours_full", "alone_ours_half",
    ),
}  # fmt: skip
"""Claims, each with two rows that differ in nothing else: the better one, by the paper, first."""
MARGIN = 1.0  # percent of perplexity
DOUBT = "at equal tokens the longer segments had 509 or 521 updates, recurrence 700"
GAIN = "gain: % less perplexity (mean ± standard deviation; number of seeds)"
BY_NAME = {row.name: row for row in (*ROWS, *SHUFFLED, *LONGER)}


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [HEAD]
    for row in BY_NAME.values():
        if found := results.select(records, row=row.name):
            keys = ("test_as_trained", "test")
            perplexities = (results.collect(records, key, row=row.name).values() for key in keys)
            cells = [row.name, row.table, "yes" if row.recurrence else "no"]
            cells += [POSITIONS[row.positions], "half" if row.half else "full"]
            cells += [found[0]["segment"], ", ".join(str(r["attention_len"]) for r in found)]
            cells += [results.format_spread(values, 2) for values in perplexities]
            cells += [f"{row.published[0]}, {row.published[1]}" if row.published else "none"]
            rows.append([*cells, f"{found[0]['parameters']:,}"])
    return rows


def draw(records: results.Records, folder: Path) -> None:
    """Draw the gains of all comparisons, ours and the paper's."""
    gains = {name: each for name in COMPARISONS if (each := compare(records, name))}
    title = "Do the paper's findings hold for a small model? (right of 0: yes)"
    path, size = folder / "ablation.png", (9, 0.4 * len(gains) + 1.6)
    with results.draw_figure(path, title, *size, xlabel=GAIN) as axes:
        places, names = range(len(gains)), [f"{name} ({len(each)})" for name, each in gains.items()]
        means, deviations = zip(*map(results.spread, gains.values()), strict=True)
        axes.errorbar(means, places, xerr=deviations, fmt="o", capsize=3, label="ours")
        theirs = {"fillstyle": "none", "label": "paper, 128M parameters"}
        axes.plot([published_gain(name) for name in gains], places, "D", **theirs)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(places, names)
        axes.invert_yaxis()


def compare(records: results.Records, name: str) -> list[float]:
    """Return by how many percent the better row's perplexity is less, for each seed of both."""
    better, worse = (results.collect(records, "test", row=row) for row in COMPARISONS[name])
    return results.percent_less(better, worse)


def published_gain(name: str) -> float:
    better, worse = (BY_NAME[row].published[1] for row in COMPARISONS[name])
    return 100 * (1 - better / worse)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return a row for each comparison with results."""
    claims = []
    for name, pair in COMPARISONS.items():
        if gains := compare(records, name):
            table = max(BY_NAME[row].table for row in pair)
            texts = (
                f"{published_gain(name):.1f} % less perplexity",
                f"{results.format_spread(gains, 1)} %",
            )
            scale = describe_scale(results.select(records, row=pair[0])[0], *pair)
            names = f"Ablation: {name}", f"paper, Table {table}"
            doubt = DOUBT if table == 10 else ""
            claims.append(results.Claim(*names, *texts, scale, gains, MARGIN, doubt))
    return claims


def describe_scale(record: dict[str, Any], better: str, worse: str) -> str:
    size, tokens = record["parameters"] / 1e6, record["tokens"] / 1e6
    scale = f"{size:.2f}M parameters, {tokens:.1f}M tokens"
    is_equal = BY_NAME[better].half == BY_NAME[worse].half
    return scale if is_equal else f"{scale}, half of them new with half loss"


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
