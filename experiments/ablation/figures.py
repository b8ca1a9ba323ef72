"""Figure, table and claims of the ablation, from results.json alone.

python -m experiments.ablation.figures [FILE]
"""

import math
import statistics
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.ablation.rows import LONGER, POSITIONS, ROWS, SHUFFLED, Row
from experiments.common import (
    COLOURS,
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
HEAD = (
    "row", "table", "recurrence", "positions", "loss", "segment", "attention length",
    "perplexity as trained", "perplexity", "paper: as trained, best", "parameters",
)  # fmt: skip
# Better row, worse row, and what it shows; the rows differ in nothing else.
COMPARISONS = [
    ("recurrence_ours_full", "alone_ours_full", "recurrence helps", "Table 6"),
    ("recurrence_ours_half", "alone_ours_half", "recurrence helps, loss on half", "Table 6"),
    ("recurrence_shaw_full", "alone_shaw_full", "recurrence helps, Shaw's positions", "Table 6"),
    ("recurrence_ours_full", "recurrence_shaw_full", "its positions beat Shaw's", "Table 6"),
    ("alone_ours_full", "alone_shaw_full", "its positions beat Shaw's, alone", "Table 6"),
    ("recurrence_ours_full", "recurrence_ours_half", "loss on the whole segment", "Table 6"),
    ("alone_ours_full", "alone_ours_half", "loss on the whole segment, alone", "Table 6"),
    ("alone_ours_half", "alone_vaswani_half", "relative beats absolute sinusoids", "Table 6"),
    ("alone_ours_half", "alone_al_rfou_half", "relative beats learned absolute", "Table 6"),
    (
        "recurrence_ours_full_longer",
        "alone_ours_full_longer",
        "recurrence helps, four times the training",
        "Table 6",
    ),
    (
        "shuffled_recurrence_ours",
        "shuffled_alone_ours",
        "recurrence helps, shuffled lines",
        "Table 7",
    ),
    (
        "shuffled_recurrence_ours",
        "shuffled_recurrence_shaw",
        "positions help, shuffled lines",
        "Table 7",
    ),
    ("recurrence_ours_full", "alone_ours_full_176", "at equal memory, full loss", "Table 10"),
    ("recurrence_ours_half", "alone_ours_half_172", "at equal memory, half loss", "Table 10"),
]
BY_NAME = {row.name: row for row in (*ROWS, *SHUFFLED, *LONGER)}


def main() -> None:
    out = find_results(__file__)
    records = load_records(out)
    write_table(out.with_name("table.md"), [HEAD, *table_rows(records)])
    draw(records, out.with_name("ablation.png"))


def values(records: Records, name: str, key: str) -> list[float]:
    return [record[key] for record in choose(records, row=name)]


def table_rows(records: Records) -> list[list[str]]:
    rows = []
    for row in measured(records):
        first = choose(records, row=row.name)[0]
        theirs = f"{row.published[0]}, {row.published[1]}" if row.published else "none"
        about = [row.name, row.table, "yes" if row.recurrence else "no", POSITIONS[row.positions]]
        about += ["half" if row.half else "full", first["segment"]]
        lengths = ", ".join(map(str, values(records, row.name, "attention_len")))
        numbers = [
            show_spread(values(records, row.name, key)) for key in ("test_as_trained", "test")
        ]
        rows.append([*about, lengths, *numbers, theirs, f"{first['parameters']:,}"])
    return rows


def measured(records: Records) -> list[Row]:
    return [row for row in BY_NAME.values() if choose(records, row=row.name)]


def draw(records: Records, path: Path) -> None:
    """Draw perplexities, ours beside the paper's, in the paper's order."""
    rows = [row for row in measured(records) if row in ROWS and row.table == 6 and row.published]
    rows.sort(key=lambda row: row.published[1])
    with open_figure(path, 2, inches=(9, 0.42 * len(rows) + 1.2)) as (ours, theirs):
        for place, row in enumerate(rows):
            seeds = values(records, row.name, "test")
            mean, deviation = spread(seeds)
            colour = COLOURS[0 if row.recurrence else 1]
            ours.plot(seeds, [place] * len(seeds), "o", color=colour, markersize=3, alpha=0.5)
            ours.errorbar(mean, place, xerr=deviation, fmt="|", color=colour, capsize=3)
            theirs.plot(row.published[1], place, "o", color=colour)
        ours.set_yticks(range(len(rows)), [describe(row) for row in rows])
        ours.invert_yaxis()
        seeds = len(values(records, rows[0].name, "test"))
        first = choose(records, row=rows[0].name)[0]
        size = f"{first['parameters'] / 1e6:.2f} million parameters"
        tokens = f"{first['tokens'] / 1e6:.1f} million tokens"
        ours.set_title(f"Ours: {size}, {tokens} (seeds: {seeds})", loc="left", fontsize=8)
        theirs.set_title("Paper: WikiText-103, 128 million parameters", loc="left", fontsize=8)
        for axes, text in ((ours, "perplexity of a subword"), (theirs, "perplexity of a word")):
            axes.set_xlabel(f"{text}, best attention length")


def describe(row: Row) -> str:
    how = "recurrence" if row.recurrence else "no recurrence"
    return f"{how}, {POSITIONS[row.positions]}, {'half' if row.half else 'full'}"


def compare(records: Records, better: str, worse: str) -> list[float]:
    """Return, for each seed of both, by how many percent the better row's perplexity is less."""
    tests = [{r["seed"]: r["test"] for r in choose(records, row=name)} for name in (better, worse)]
    seeds = sorted(tests[0].keys() & tests[1].keys())
    return [100 * (1 - tests[0][seed] / tests[1][seed]) for seed in seeds]


def judge(gains: list[float]) -> str:
    """Return a verdict: a mean gain of two standard errors or more is a difference."""
    if len(gains) < 2:
        return "one seed only"
    mean, error = statistics.fmean(gains), statistics.stdev(gains) / math.sqrt(len(gains))
    if abs(mean) < 2 * error:
        return "not told apart"
    return "holds" if mean > 0 else "does not hold"


def list_claims(records: Records) -> list[Claim]:
    """Return a row for each comparison of the paper."""
    claims = []
    for better, worse, what, source in COMPARISONS:
        if gains := compare(records, better, worse):
            theirs = 100 * (1 - BY_NAME[better].published[1] / BY_NAME[worse].published[1])
            record = choose(records, row=better)[0]
            million = [record[key] / 1e6 for key in ("parameters", "tokens")]
            scale = "{:.2f}M parameters, {:.1f}M tokens".format(*million)
            claims.append(
                Claim(
                    f"Ablation: {what}",
                    f"paper, {source}",
                    f"{theirs:.1f} % less perplexity",
                    f"{show_spread(gains, 1)} %",
                    scale,
                    judge(gains),
                )
            )
    return claims


if __name__ == "__main__":
    main()
