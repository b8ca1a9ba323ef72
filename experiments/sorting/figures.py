"""Tables and figure of sorting, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast

PUBLISHED = 97.32  # percent of right answers, of one run
KINDS = {
    "fixed": "Adam, 6,256 steps, 50,000 samples (as published)",
    "fresh": "Muon, 3,000 steps, samples that never repeat",
}
MARGIN = 0.1  # percent of the answers


def list_tables(records: results.Records) -> list[results.Rows]:
    rows = [["training", "right answers (%, seeds)"]]
    for kind, name in KINDS.items():
        if shares := collect_percent(records, kind):
            rows.append([name, results.format_spread(shares.values(), 2)])
    return [[*rows, ["published", f"{PUBLISHED}"]]]


def collect_percent(records: results.Records, kind: str) -> results.BySeed:
    shares = results.collect(records, "memory_accuracy", kind=kind)
    return {seed: 100 * share for seed, share in shares.items()}


def draw(records: results.Records, folder: Path) -> None:
    """Draw the right digits by place."""
    seeds = results.format_seeds(*(len(results.select(records, kind=kind)) for kind in KINDS))
    title = f"Digits that are sorted right ({seeds})"
    labels = {"xlabel": "place in the sorted answer", "ylabel": "right digits (%)"}
    with results.draw_figure(folder / "accuracy.png", title, **labels) as axes:
        for kind, label in KINDS.items():
            shares = results.collect(records, "memory_digit_accuracy", kind=kind).values()
            if rows := [[100 * share for share in each] for each in shares]:
                results.plot_seeds(axes, range(1, len(rows[0]) + 1), rows, label=label)
        axes.set_xticks([1, *range(5, 21, 5)])


def list_contrasts(records: results.Records) -> list[Contrast]:
    fresh, fixed = (collect_percent(records, kind) for kind in ("fresh", "fixed"))
    name = "samples that never repeat against 50,000 samples"
    return [Contrast(name, results.subtract(fresh, fixed), "% of the answers", MARGIN)]
