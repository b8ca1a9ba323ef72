"""Table of recipes for a text of one's own, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results


def list_rows(records: results.Records) -> list[list[Any]]:
    head = ["text, recipe", "minutes", "steps", "parameters", "bits per byte of the test text"]
    rows = [[*head, "first 128 tokens after an empty memory", "words of samples that the text has"]]
    runs = [record for record in records.values() if "minutes" in record]
    for record in sorted(runs, key=lambda each: (each["minutes"], place_of(each["kind"]))):
        words = record["known_words"]["temperature 0.8"]
        bits = [f"{record[name]:.3f}" for name in ("bits_per_byte", "first_bits_per_byte")]
        sizes = [f"{record['steps']:,}", f"{record['parameters']:,}"]
        rows.append([record["kind"], f"{record['minutes']:g}", *sizes, *bits, f"{words:.0%}"])
    return rows


def place_of(kind: str) -> tuple[float, str]:
    """Return the size of a kind's text, and the rest of its name."""
    size, name = kind.split(" MB, ")
    return float(size), name


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of the test text by recipe, of the fewest minutes that all have."""
    runs = [record for record in records.values() if "minutes" in record]
    if not runs:
        return
    minutes = min(record["minutes"] for record in runs)
    chosen = [record for record in runs if record["minutes"] == minutes]
    chosen.sort(key=lambda record: place_of(record["kind"]))
    bits = {record["kind"]: [record["bits_per_byte"]] for record in chosen}
    title = f"Which settings, in {minutes:g} minutes? (1 seed)"
    results.draw_bits(folder / "first_result.png", title, bits)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return no rows: the paper claims nothing of this."""
    return []


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
