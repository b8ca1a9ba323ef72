"""Tables and figure of tiny Shakespeare, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.results import Readings, Records

PUBLISHED = 1.88
"""nats per character of nanoGPT's CPU example: the mean of 20 random batches of one run."""
OURS, ZERO, TWICE = (("memory", n) for n in ("64", "0", "128"))
PLAIN, RECIPE = ("plain", "0"), ("recipe", "0")
NAMES = {
    OURS: "Muon, memory of 64",
    ZERO: "the same with zero memory at evaluation",
    TWICE: "the same with a memory of 128",
    PLAIN: "Muon, trained without memory",
    RECIPE: "AdamW as in nanoGPT, trained without memory",
}
CONTRASTS = {
    "memory against trained without memory": (OURS, PLAIN),
    "memory of 128 against the 64 of training": (TWICE, OURS),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "Muon against AdamW as in nanoGPT": (PLAIN, RECIPE),
}
DRAWN = {
    "memory": "Muon with memory",
    "plain": "Muon without memory",
    "recipe": "AdamW as in nanoGPT without memory",
}
NATS = Readings("nats_by_mem_len", "nats per character", 0.01, NAMES, CONTRASTS, "", {})
list_contrasts = NATS.list_contrasts


def list_tables(records: Records) -> list[results.Rows]:
    batches = results.collect(records, "nats_of_batches", kind="recipe").values()
    rows = [["AdamW as in nanoGPT, 20 random batches", "", "", ""]] if batches else []
    rows = [[*row, results.format_spread(batches)] for row in rows]
    published = ["nanoGPT's README, 20 random batches", "", "", "", f"{PUBLISHED}"]
    return [[*NATS.list_tables(records)[0], *rows, published]]


def draw(records: Records, folder: Path) -> None:
    runs = {name: results.select(records, kind=kind) for kind, name in DRAWN.items()}
    labels = {"xlabel": "training characters (millions)"}
    labels |= {"ylabel": "nats per character of the validation text"}
    path = folder / "tiny_shakespeare.png"
    results.draw_curves(path, "Tiny Shakespeare", runs, "val/nats", count_millions, **labels)


def count_millions(record: dict[str, Any]) -> float:
    options = record["options"]
    return options["data.batch_size"] * options["data.tgt_len"] / 1e6
