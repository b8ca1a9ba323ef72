"""Tables and figure of other memories, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast

NETWORKS = {"xl": "Transformer-XL", "lstm": "LSTM", "tokens": "recurrent memory tokens"}
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
    """Draw the bits per byte of validation text by minutes."""
    found = {name: results.select(records, kind=f"text-{name}") for name in NETWORKS}
    seeds = results.format_seeds(*map(len, found.values()))
    title = f"Python source, 2.5 minutes ({seeds})"
    labels = {"xlabel": "minutes of training", "ylabel": "bits per byte of the validation text"}
    with results.draw_figure(folder / "other_networks.png", title, **labels) as axes:
        for name, runs in found.items():
            if runs:
                share = runs[0]["minutes"] / runs[0]["steps"]
                places = [(step + 1) * share for step in runs[0]["curve"]["steps"]]
                rows = [run["curve"]["val/bits_per_byte"] for run in runs]
                results.plot_seeds(axes, places, rows, label=NETWORKS[name])


def list_contrasts(records: results.Records) -> list[Contrast]:
    ours = collect(records, "text", "xl")
    return [
        results.compare(
            f"Transformer-XL against {NETWORKS[name]}",
            ours,
            collect(records, "text", name),
            "bits per byte",
            MARGIN,
        )
        for name in ("lstm", "tokens")
    ]
