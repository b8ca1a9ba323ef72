"""Tables and figure of memory's gain on novels, from results.json alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results
from experiments.results import Records
from txl_lightning.analysis.contrasts import Contrast

TRAINED = "plain 64"
NAMES = {
    ("memory", TRAINED): "memory of 64",
    ("alone", "segments"): "trained without memory",
    ("alone", "window"): "the same by a sliding window",
    ("alone", "cached"): "the same by a sliding window, from kept keys",
}
"""Of rows, by kind and way of reading."""
SAME_GAIN = 0.005  # nats that count as no difference
SAME_LENGTH = 0.002
LINES = {
    "plain": "as trained",
    "clamped": "distances clamped",
    "clamped, same_length": "clamped, as many states for each token",
}
"""Of the picture, by the beginning of a way of reading."""
ByBook = Mapping[int, Sequence[float]]
"""Nats of each book, by seed."""


def list_tables(records: Records) -> list[results.Rows]:
    """Return the nats per token of the test books, by network and way of reading."""
    rows = [["network and reading", "nats per token"]]
    for key, name in NAMES.items():
        if found := average(collect(records, *key)):
            rows.append([name, results.format_spread(found.values())])
    return [rows]


def collect(records: Records, kind: str, way: str) -> ByBook:
    """Return the nats of the test books by seed; `chosen`: the way that is best on others."""
    return {
        record["seed"]: record["nats"]["test"][choose_way(record) if way == "chosen" else way]
        for record in results.select(records, kind=kind)
        if way in record["nats"]["test"] or way == "chosen"
    }


def choose_way(record: dict[str, Any]) -> str:
    """Return the way with the fewest nats on the validation books."""
    nats = record["nats"]["val"]
    return min(nats, key=lambda name: fmean(nats[name]))


def draw(records: Records, folder: Path) -> None:
    """Draw the nats of the test books by the length of the memory that reads them."""
    lines: dict[str, dict[int, results.BySeed]] = {}
    for way in sorted({way for record in records.values() for way in record["nats"]["test"]}):
        name, _, length = way.rpartition(" ")
        if name in LINES:
            lines.setdefault(LINES[name], {})[int(length)] = average(
                collect(records, "memory", way)
            )
    ordered = {name: dict(sorted(line.items())) for name, line in lines.items()}
    labels = {"xlabel": "states in memory", "ylabel": "nats per token", "xscale": "log"}
    title = "Novels by states in memory (64 in training)"
    results.draw_lines(folder / "novels.png", title, ordered, 7, 4, **labels)


def average(books: ByBook) -> results.BySeed:
    return {seed: fmean(nats) for seed, nats in books.items()}


def subtract_books(first: ByBook, second: ByBook) -> ByBook:
    return {
        seed: [a - b for a, b in zip(first[seed], second[seed], strict=True)]
        for seed in sorted(first.keys() & second.keys())
    }


def list_contrasts(records: Records) -> list[Contrast]:
    trained, chosen = (collect(records, "memory", way) for way in (TRAINED, "chosen"))
    better, segments = (collect(records, "alone", way) for way in ("chosen", "segments"))
    without = "memory against trained without memory"
    rows = [
        (f"{without} (its better reading)", subtract_books(better, trained), SAME_GAIN),
        (without, subtract_books(segments, trained), SAME_GAIN),
        (
            "length chosen on other books against the 64 of training",
            subtract_books(trained, chosen),
            SAME_LENGTH,
        ),
    ]
    return [
        Contrast(name, [*average(saved).values()], "nats per token", margin, [*saved.values()])
        for name, saved, margin in rows
    ]
