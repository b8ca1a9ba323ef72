"""Tables and figure of an LSTM beside a Transformer-XL, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.words.figures import count_minutes
from txl_lightning.analysis.contrasts import Contrast

NETWORKS = {"text-xl": "Transformer-XL", "text-lstm": "LSTM"}
MARGIN = 0.01  # bits per byte


def list_tables(records: results.Records) -> list[results.Rows]:
    rows = [["network", "parameters", "steps in the time", "bits per byte of the test text"]]
    for kind, name in NETWORKS.items():
        if found := results.select(records, kind=kind):
            bits = results.format_spread([record["bits_per_byte"] for record in found])
            rows.append([name, f"{found[0]['parameters']:,}", f"{found[0]['steps']:,}", bits])
    return [rows]


def draw(records: results.Records, folder: Path) -> None:
    runs = {name: results.select(records, kind=kind) for kind, name in NETWORKS.items()}
    labels = {"xlabel": "minutes of training", "ylabel": "bits per byte of the validation text"}
    path = folder / "other_networks.png"
    title = "Python source, 2.5 minutes"
    results.draw_curves(path, title, runs, "val/bits_per_byte", count_minutes, **labels)


def list_contrasts(records: results.Records) -> list[Contrast]:
    both = (results.collect(records, "bits_per_byte", kind=kind) for kind in NETWORKS)
    return [results.compare("Transformer-XL against LSTM", *both, "bits per byte", MARGIN)]
