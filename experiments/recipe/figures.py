"""Table and figure of recipes for a text of one's own, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast

DRAWN = {
    "70 MB, 4096 restarted": "4,096 subwords, width 128",
    "70 MB, 8192 192": "8,192 subwords, width 192",
    "70 MB, 4096 192 restarted": "4,096 subwords, width 192",
}


def list_tables(records: results.Records) -> list[results.Rows]:
    head = ["text, recipe", "minutes", "steps", "parameters", "bits per byte of the test text"]
    rows = [[*head, "first 128 tokens after an empty memory", "words of samples that the text has"]]
    runs = [record for record in records.values() if "minutes" in record]
    for record in sorted(runs, key=lambda each: (each["minutes"], place_of(each["kind"]))):
        words = record["known_words"]["temperature 0.8"]
        bits = [f"{record[name]:.3f}" for name in ("bits_per_byte", "first_bits_per_byte")]
        sizes = [f"{record['steps']:,}", f"{record['parameters']:,}"]
        rows.append([record["kind"], f"{record['minutes']:g}", *sizes, *bits, f"{words:.0%}"])
    return [rows]


def place_of(kind: str) -> tuple[float, str]:
    """Return the size of a kind's text, and the rest of its name."""
    size, name = kind.split(" MB, ")
    return float(size), name


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of the longest text by minutes, of recipes with several of them."""
    title = "A text of 70 MB, by width of the network (1 seed)"
    labels = {"xlabel": "minutes of training", "ylabel": "bits per byte of the test text"}
    with results.draw_figure(folder / "recipe.png", title, **labels) as axes:
        for kind, name in DRAWN.items():
            found = sorted(results.select(records, kind=kind), key=lambda each: each["minutes"])
            minutes = [record["minutes"] for record in found]
            axes.plot(minutes, [record["bits_per_byte"] for record in found], label=name)


def list_contrasts(records: results.Records) -> list[Contrast]:
    """Return nothing: there is one seed of each recipe."""
    return []
