"""Tables and figure of the original code beside this one, from results.json alone."""

from pathlib import Path

from experiments import results
from txl_lightning.analysis.contrasts import Contrast

NAMES = {"ours": "this code", "original": "the original code"}
MARGIN = 0.01  # nats per word


def list_tables(records: results.Records) -> list[results.Rows]:
    rows = [["code", "nats per word of the test text", "minutes on a thread of a CPU (seed 1)"]]
    for kind, name in NAMES.items():
        if found := results.select(records, kind=kind):
            nats = results.format_spread([record["nats"] for record in found])
            # The others were trained on a GPU, beside each other.
            on_cpu = [r for r in found if r["origin"]["machine"]["device"] == "cpu"]
            minutes = [f"{s / 60:.0f}" for r in on_cpu if (s := r["training_seconds"])]
            rows.append([name, nats, ", ".join(minutes)])
    return [rows]


def draw(records: results.Records, folder: Path) -> None:
    nats = {name: results.collect(records, "nats", kind=kind) for kind, name in NAMES.items()}
    text = "WikiText-2"
    results.draw_panels(folder / "original.png", "nats per word", {text: nats}, {text: {}})


def list_contrasts(records: results.Records) -> list[Contrast]:
    ours, theirs = (results.collect(records, "nats", kind=kind) for kind in NAMES)
    name = "this code against the original"
    return [results.compare(name, ours, theirs, "nats per word", MARGIN)]
