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
CACHE = "cached keys and values against none, trained without memory"
MARGIN = 0.1
"""Percent of the answers; times."""


def list_rows(records: results.Records) -> list[list[Any]]:
    rows = [["measured", "mean ± standard deviation (seeds)"]]
    for way, label in WAYS.items():
        shares = results.format_spread(percent(records, f"{way}_accuracy"), 2)
        rows.append([f"right answers, {label} (%)", shares])
    identical = results.format_spread(percent(records, "identical"), 2)
    rows.append(["same answer both ways (%)", identical])
    for row in records["time"]["rows"] if "time" in records else ():
        rows.append([f"times as fast with memory, {row['length']} digits", f"{row['times']:.2f}"])
    return rows


def percent(records: results.Records, name: str) -> Collection[float]:
    return [100 * share for share in results.collect(records, name, kind="answers").values()]


def draw(records: results.Records, folder: Path) -> None:
    draw_accuracy(records, folder / "accuracy.png")
    if "time" in records:
        draw_times(records["time"], folder / "time.png")


def draw_accuracy(records: results.Records, path: Path) -> None:
    seeds = results.format_seeds(len(results.select(records, kind="answers")))
    title = f"Which digits are sorted right? ({seeds})"
    labels = {"xlabel": "place in the sorted answer", "ylabel": "right digits (%)"}
    # The curves coincide: crosses on dots.
    styles = {"memory": {}, "rereading": {"marker": "x", "linestyle": ":", "markersize": 7}}
    with results.draw_figure(path, title, **labels) as axes:
        for way, label in WAYS.items():
            shares = results.collect(records, f"{way}_digit_accuracy", kind="answers").values()
            rows = [[100 * share for share in each] for each in shares]
            places = range(1, len(rows[0]) + 1)
            results.plot_seeds(axes, places, rows, label=label, **styles[way])
        axes.set_xticks([1, *range(5, len(places) + 1, 5)])


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
    """Return rows: right answers, the same ones with memory as without, and their time."""
    [first, *_] = results.select(records, kind="answers")
    steps, count = first["options"]["trainer.max_steps"], f"{first['samples']:,}"
    trained = f"Muon, {steps:,} steps of 128 samples that never repeat"
    shares, identical = percent(records, "memory_accuracy"), percent(records, "identical")
    accuracy = results.Claim(
        "Sorting 20 digits",
        SOURCE,
        f"{PUBLISHED} %: {THEIRS}",
        f"{results.format_spread(shares, 2)} %: {trained}",
        f"the same {count} unseen samples for all seeds and settings",
        [share - PUBLISHED for share in shares],
        MARGIN,
    )
    same = results.Claim(
        "Sorting: same answers with memory as without",
        SOURCE,
        "identical",
        f"identical in {results.format_spread(identical, 2)} %",
        f"{count} samples; {CACHE}",
        [share - 100 for share in identical],
        MARGIN,
        is_same=True,
    )
    rows = records["time"]["rows"] if "time" in records else ()
    times = [row["times"] for row in rows if row["length"] == 20]
    return [accuracy, same, *(claim_speedup(each, records["time"]) for each in times)]


def claim_speedup(times: float, record: dict[str, Any]) -> results.Claim:
    texts = f"{PUBLISHED_TIMES} times", f"{times:.2f} times (1)"
    load = f"load {record['origin']['machine']['load']:.1f}"
    scale = f"20 digits, {record['samples']:,} at once, {load}"
    gains = [times - PUBLISHED_TIMES]
    return results.Claim("Sorting: faster with memory", SOURCE, *texts, scale, gains, MARGIN)


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
