"""Table, figures and claims of sorting, from results.json alone."""

from collections.abc import Collection
from pathlib import Path
from typing import Any

from experiments import results

WAYS = {"memory": "with memory", "rereading": "reading everything again"}
SOURCE = "augustwester/transformer-xl and its blog post"
PUBLISHED, PUBLISHED_TIMES = 97.32, 3.04
"""The blog's share of right answers in percent, and its speedup by memory."""
THEIRS = "Adam, 6,256 steps, 50,000 samples"
KINDS = {"fixed": THEIRS, "fresh": "Muon, 3,000 steps, samples that never repeat"}
CACHE = "cached keys and values against none, trained without memory"
MARGIN = 0.1  # percent of the answers; times


def list_rows(records: results.Records) -> list[list[Any]]:
    kinds = [kind for kind in KINDS if results.select(records, kind=kind)]
    rows = [["measured", *(KINDS[kind] for kind in kinds)]]
    for way, label in WAYS.items():
        rows.append(
            [f"right answers, {label} (%)", *format_kinds(records, f"{way}_accuracy", kinds)]
        )
    rows.append(["same answer both ways (%)", *format_kinds(records, "identical", kinds)])
    for row in records["time"]["rows"] if "time" in records else ():
        # Of one network: training does not change the time.
        cells = [f"{row['times']:.2f}"] * len(kinds)
        rows.append([f"times as fast with memory, {row['length']} digits", *cells])
    return rows


def format_kinds(records: results.Records, name: str, kinds: list[str]) -> list[str]:
    return [results.format_spread(percent(records, kind, name), 2) for kind in kinds]


def percent(records: results.Records, kind: str, name: str) -> Collection[float]:
    return [100 * share for share in results.collect(records, name, kind=kind).values()]


def draw(records: results.Records, folder: Path) -> None:
    draw_accuracy(records, folder / "accuracy.png")
    if "time" in records:
        draw_times(records["time"], folder / "time.png")


def draw_accuracy(records: results.Records, path: Path) -> None:
    """Draw the right digits by place; with memory and by rereading they are the same."""
    seeds = results.format_seeds(*(len(results.select(records, kind=kind)) for kind in KINDS))
    title = f"Which digits are sorted right? ({seeds})"
    labels = {"xlabel": "place in the sorted answer", "ylabel": "right digits (%)"}
    with results.draw_figure(path, title, **labels) as axes:
        for kind, label in KINDS.items():
            shares = results.collect(records, "memory_digit_accuracy", kind=kind).values()
            if rows := [[100 * share for share in each] for each in shares]:
                places = range(1, len(rows[0]) + 1)
                results.plot_seeds(axes, places, rows, label=label)
        axes.set_xticks([1, *range(5, 21, 5)])


def draw_times(record: dict[str, Any], path: Path) -> None:
    rows = record["rows"]
    lengths = [row["length"] for row in rows]
    title = f"How long do {record['samples']:,} answers take? (1 seed)"
    labels = {"xlabel": "digits to sort", "ylabel": "seconds", "xticks": lengths}
    with results.draw_figure(path, title, **labels) as axes:
        for way, label in WAYS.items():
            axes.plot(lengths, [row[f"{way}_seconds"] for row in rows], label=label)
        for row in rows:
            where = {"xytext": (0, 8), "textcoords": "offset points", "ha": "center"}
            point = row["length"], row["rereading_seconds"]
            axes.annotate(f"{row['times']:.1f}x", point, **where)
        axes.set_ylim(0, 1.15 * max(row["rereading_seconds"] for row in rows))


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows: right answers of each kind, the same ones with memory as without, their time."""
    claims = [claim for kind in KINDS for claim in claim_kind(records, kind)]
    rows = records["time"]["rows"] if "time" in records else ()
    times = [row["times"] for row in rows if row["length"] == 20]
    return [*claims, *(claim_speedup(each, records["time"]) for each in times)]


def claim_kind(records: results.Records, kind: str) -> list[results.Claim]:
    if not (found := results.select(records, kind=kind)):
        return []
    shares, identical = (percent(records, kind, n) for n in ("memory_accuracy", "identical"))
    scale = f"{found[0]['samples']:,} samples of each run's own"
    accuracy = results.Claim(
        f"Sorting 20 digits: more right answers than published; {KINDS[kind]}",
        SOURCE,
        f"{PUBLISHED} %: {THEIRS}",
        f"{results.format_spread(shares, 2)} %",
        scale,
        [share - PUBLISHED for share in shares],
        MARGIN,
    )
    same = results.Claim(
        f"Sorting: same answers with memory as without; {KINDS[kind]}",
        SOURCE,
        "identical",
        f"identical in {results.format_spread(identical, 2)} %",
        f"{scale}; {CACHE}",
        [share - 100 for share in identical],
        MARGIN,
        is_same=True,
    )
    return [accuracy, same]


def claim_speedup(times: float, record: dict[str, Any]) -> results.Claim:
    texts = f"{PUBLISHED_TIMES} times", f"{times:.2f} times (1)"
    load = f"load {record['origin']['machine']['load']:.1f}"
    scale = f"20 digits, {record['samples']:,} at once, {load}"
    gains = [times - PUBLISHED_TIMES]
    name = "Sorting: faster with memory, by the published ratio or more"
    return results.Claim(name, SOURCE, *texts, scale, gains, MARGIN)


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
