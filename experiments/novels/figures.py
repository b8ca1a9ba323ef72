"""Tables and figure of memory's gain on novels, from results.json alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results
from experiments.results import AGAIN, Records
from txl_lightning.analysis.contrasts import Contrast

READINGS = {
    "segments": "trained without memory",
    "window": "the same by a sliding window",
    "cached": "the same by a sliding window, from kept keys",
}
"""Of the network without memory."""
TRAINED = "plain 64"
SAME_GAIN = 0.005  # nats that count as no difference
SAME_LENGTH = 0.002
NAMES = {
    ("memory", TRAINED): "memory of 64",
    **{("alone", way): name for way, name in READINGS.items()},
    **{(f"alone{AGAIN}", way): f"{name}, measured again" for way, name in READINGS.items()},
}
"""Of rows, by kind and way of reading."""
ByBook = Mapping[int, Sequence[float]]
"""Nats of each book, by seed."""


def list_tables(records: Records) -> list[results.Rows]:
    """Return the nats per token of the test books, by network and training tokens."""
    every = list_millions(records)
    rows: list[list[Any]] = [["nats per token", *(f"{n:g} million tokens" for n in every)]]
    for (kind, way), name in NAMES.items():
        found = [average(collect(records, kind, millions, way)).values() for millions in every]
        if any(found):
            rows.append([name, *(results.format_spread(each) if each else "" for each in found)])
    return [rows]


def collect(records: Records, kind: str, millions: float, way: str) -> ByBook:
    """Return the nats of the test books by seed; `chosen`: the way that is best on others."""
    return {
        record["seed"]: record["nats"]["test"][choose_way(record) if way == "chosen" else way]
        for record in results.select(records, kind=kind, millions=millions)
        if way in record["nats"]["test"] or way == "chosen"
    }


def choose_way(record: dict[str, Any]) -> str:
    """Return the way with the fewest nats on the validation books."""
    nats = record["nats"]["val"]
    return min(nats, key=lambda name: fmean(nats[name]))


def list_millions(records: Records) -> list[float]:
    return sorted({r["millions"] for r in records.values() if "millions" in r})


def draw(records: Records, folder: Path) -> None:
    """Draw the nats that memory saves, by tokens of training and reading of the other network."""
    millions = list_millions(records)
    lines = {
        f"against {name}": {n: average(save(records, n, way)) for n in millions}
        for way, name in READINGS.items()
    }
    labels = {"xlabel": "tokens of training (millions)", "ylabel": "nats saved per token"}
    path = folder / "novels.png"
    title = "What memory saves on novels"
    results.draw_lines(path, title, lines, 7, 4, ylim=(0, None), **labels)


def average(books: ByBook) -> results.BySeed:
    return {seed: fmean(nats) for seed, nats in books.items()}


def save(records: Records, millions: float, way: str) -> ByBook:
    """Return what memory saves of each book, by seed."""
    memory = collect(records, "memory", millions, TRAINED)
    return subtract_books(collect(records, "alone", millions, way), memory)


def subtract_books(first: ByBook, second: ByBook) -> ByBook:
    return {
        seed: [a - b for a, b in zip(first[seed], second[seed], strict=True)]
        for seed in sorted(first.keys() & second.keys())
    }


def list_contrasts(records: Records) -> list[Contrast]:
    if not (every := list_millions(records)):
        return []
    first = every[0]
    last = every[-1]
    name = f"{last:g} million tokens"
    without = "memory against trained without memory"
    better = save(records, last, "chosen")
    trained, chosen = (collect(records, "memory", last, way) for way in (TRAINED, "chosen"))
    longer = f"{name}: length chosen on other books against the 64 of training"
    rows = [
        (f"{name}: {without} (its better reading)", better, SAME_GAIN),
        (f"{name}: {without}", save(records, last, "segments"), SAME_GAIN),
        (f"{first:g} million tokens: {without}", save(records, first, "segments"), SAME_GAIN),
        (longer, subtract_books(trained, chosen), SAME_LENGTH),
    ]
    return [
        Contrast(name, [*average(saved).values()], "nats per token", margin, [*saved.values()])
        for name, saved, margin in rows
    ]
