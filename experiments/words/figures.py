"""Tables and figure of words, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from txl_lightning.analysis.contrasts import Contrast

NETS = {"xl": "Transformer-XL", "lstm": "LSTM"}
SETUPS = {
    ("adamw", 6.0): "6 minutes",
    ("tuned", 6.0): "6 minutes (optimizer and dropout tuned)",
    ("tuned", 30.0): "30 minutes (optimizer and dropout tuned)",
}
TRAIN_WORDS = 2_088_628
MARGIN = 0.01  # nats per word


def list_tables(records: results.Records) -> list[results.Rows]:
    head = ["network", "minutes", "optimizer", "rate", "dropout", "training seconds", "passes"]
    rows: list[list[Any]] = [[*head, "nats per word of the test text", "perplexity"]]
    for setup, minutes in SETUPS:
        for net, name in NETS.items():
            if found := find(records, net, setup, minutes):
                cells = describe_training(found)
                for key, digits in (("nats", 3), ("perplexity", 1)):
                    cells.append(results.format_spread([each[key] for each in found], digits))
                rows.append([name, f"{minutes:g}", *cells])
    return [rows]


def describe_training(found: list[dict[str, Any]]) -> list[str]:
    """Return settings, seconds and passes of the runs of a network."""
    first = found[0]
    options = found[0]["options"]
    optimizer = {"adamw": "AdamW", "muon": "Muon"}[first["optimizer"]]
    settings = [optimizer, f"{first['rate']:g}", f"{options['model.net.dropout']:g}"]
    size = options["data.batch_size"] * options["data.tgt_len"]
    passes = options["trainer.max_steps"] * size / TRAIN_WORDS
    return [*settings, results.format_training_seconds(found), f"{passes:.1f}"]


def draw(records: results.Records, folder: Path) -> None:
    """Draw the nats of validation text by minutes, of the longest trainings."""
    done = [key for key in SETUPS if find(records, "xl", *key) and find(records, "lstm", *key)]
    if not done:
        return
    setup, minutes = done[-1]
    runs = {name: find(records, net, setup, minutes) for net, name in NETS.items()}
    title = f"WikiText-2, {minutes:g} minutes, {setup}"
    labels = {"xlabel": "minutes of training", "ylabel": "nats per word of the validation text"}
    results.draw_curves(folder / "words.png", title, runs, "val/nats", count_minutes, **labels)


def count_minutes(record: dict[str, Any]) -> float:
    return record["minutes"] / record["options"]["trainer.max_steps"]


def find(records: results.Records, net: str, setup: str, minutes: float) -> list[dict[str, Any]]:
    return results.select(records, kind=f"{net} {setup}", minutes=minutes)


def list_contrasts(records: results.Records) -> list[Contrast]:
    rows = []
    for (setup, minutes), name in SETUPS.items():
        kinds = ({"kind": f"{net} {setup}", "minutes": minutes} for net in NETS)
        both = (results.collect(records, "nats", **kind) for kind in kinds)
        name = f"{name}: Transformer-XL against LSTM"
        rows.append(results.compare(name, *both, "nats per word", MARGIN))
    return rows
