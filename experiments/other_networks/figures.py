"""Tables and figure of an LSTM beside a Transformer-XL, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast
from experiments.words.figures import count_minutes

NETWORKS = {"xl": "Transformer-XL", "lstm": "LSTM"}
MEASURED = {"text": "bits_per_byte", "recall": "accuracy"}
MARGIN = 0.01  # bits per byte


def list_tables(records: results.Records) -> list[results.Rows]:
    head = ["network", "parameters", "steps in the time", "bits per byte of the test text"]
    rows = [[*head, "parameters (recall)", "right answers (recall)"]]
    for name, title in NETWORKS.items():
        text, recall = (list_cells(records, task, name) for task in MEASURED)
        rows.append([title, *text, recall[0], recall[2]])
    return [rows]


def list_cells(records: results.Records, task: str, name: str) -> list[str]:
    if not (found := results.select(records, kind=f"{task}-{name}")):
        return ["", "", ""]
    values = results.format_spread(collect(records, task, name).values())
    return [f"{found[0]['parameters']:,}", f"{found[0]['steps']:,}", values]


def collect(records: results.Records, task: str, name: str) -> results.BySeed:
    return results.collect(records, MEASURED[task], kind=f"{task}-{name}")


def draw(records: results.Records, folder: Path) -> None:
    runs = {name: results.select(records, kind=f"text-{net}") for net, name in NETWORKS.items()}
    labels = {"xlabel": "minutes of training", "ylabel": "bits per byte of the validation text"}
    path, title = folder / "other_networks.png", "Python source, 2.5 minutes"
    results.draw_curves(path, title, runs, "val/bits_per_byte", count_minutes, **labels)


def list_contrasts(records: results.Records) -> list[Contrast]:
    both = (collect(records, "text", name) for name in NETWORKS)
    return [results.compare("Transformer-XL against LSTM", *both, "bits per byte", MARGIN)]
