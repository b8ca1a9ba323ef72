"""Figure, table and claims of the sliding window's slowdown, from results.json alone.

python -m experiments.sliding_window.figures [FILE]
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from experiments.common import (
    COLOURS,
    Claim,
    find_results,
    load_records,
    open_figure,
    show_spread,
    spread,
    write_table,
)

Records = Mapping[str, dict[str, Any]]
HEAD = ("attention length", "ms with memory", "ms with a window", "times slower", "paper")


def main() -> None:
    out = find_results(__file__)
    records = load_records(out)
    write_table(out.with_name("table.md"), [HEAD, *table_rows(records)])
    draw(records, out.with_name("sliding_window.png"))


def gather(records: Records, key: str) -> dict[int, list[float]]:
    """Return the values of a column, one for each repetition, by attention length."""
    found: dict[int, list[float]] = {}
    for record in records.values():
        for row in record["rows"]:
            found.setdefault(row["attention_len"], []).append(row[key])
    return found


def table_rows(records: Records) -> list[list[str]]:
    columns = {"memory_ms_per_token": 2, "window_ms_per_token": 0, "speedup": 0}
    found = [(gather(records, key), digits) for key, digits in columns.items()]
    theirs = published(records)
    return [
        [f"{at:,}", *(show_spread(each[at], digits) for each, digits in found), theirs.get(at)]
        for at in found[0][0]
    ]


def published(records: Records) -> dict[int, int]:
    every = gather(records, "published_speedup")
    return {at: values[0] for at, values in every.items() if values[0] is not None}


def draw(records: Records, path: Path) -> None:
    """Draw ours beside the paper's ratios."""
    times, theirs = gather(records, "speedup"), published(records)
    means, deviations = zip(*map(spread, times.values()), strict=True)
    origin = next(iter(records.values()))["origin"]
    with open_figure(path) as (axes,):
        style = {"fmt": "o-", "capsize": 3, "color": COLOURS[0]}
        axes.errorbar(list(times), means, yerr=deviations, label="ours, CPU", **style)
        if theirs:
            names = {"color": COLOURS[1], "label": "paper, one GPU"}
            axes.plot(list(theirs), list(theirs.values()), "s--", **names)
        axes.set(xlabel="attention length", ylabel="times slower than memory", yscale="log")
        axes.set_title(f"A sliding window, {origin['machine']['cpu']}", fontsize=10)
        axes.legend(frameon=False)


def list_claims(records: Records) -> list[Claim]:
    """Return a row for each attention length of the paper."""
    times = gather(records, "speedup")
    claims = []
    for at, theirs in published(records).items():
        verdict = "holds" if spread(times[at])[0] >= theirs else "less than theirs"
        if any(record["disturbed"] for record in records.values()):
            verdict += "; the machine was disturbed"
        what = f"A sliding window of {at:,} is slower than memory"
        ours = f"{show_spread(times[at], 0)} times"
        scale = "12 layers of 512, a CPU"
        claims.append(Claim(what, "paper, Table 9", f"{theirs:,} times", ours, scale, verdict))
    return claims


if __name__ == "__main__":
    main()
