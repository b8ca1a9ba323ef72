"""Table, figure and claims of other memories, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results

NETWORKS = {"xl": "Transformer-XL", "lstm": "LSTM", "tokens": "recurrent memory tokens"}
MEASURED = {"text": "bits_per_byte", "recall": "accuracy"}
SOURCES = {
    "lstm": ("paper, Table 1", "24.0 and 48.7 perplexity of WikiText-103; trained here, untuned: "),
    "tokens": ("Bulatov et al. 2022", "on par for small memories; trained here, untuned: "),
}
"""Sources, and what they have, beside what is trained here."""
MARGIN = 0.01  # bits per byte


def list_rows(records: results.Records) -> list[list[Any]]:
    head = ["network", "parameters", "steps in the time (seeds)", "bits per byte of the test text"]
    rows = [[*head, "parameters (recall)", "right answers (recall)"]]
    for name, title in NETWORKS.items():
        text, recall = (list_cells(records, task, name) for task in MEASURED)
        rows.append([title, *text, recall[0], recall[2]])
    return rows


def list_cells(records: results.Records, task: str, name: str) -> list[str]:
    kind = f"{task}-{name}"
    if not (found := results.select(records, kind=kind)):
        return ["", "", ""]
    steps = results.format_spread([each["steps"] for each in found], 0)
    values = results.format_spread(collect(records, task, name).values())
    return [f"{found[0]['parameters']:,}", steps, values]


def collect(records: results.Records, task: str, name: str) -> results.BySeed:
    return results.collect(records, MEASURED[task], kind=f"{task}-{name}")


def draw(records: results.Records, folder: Path) -> None:
    """Draw bits per byte of the test text by network."""
    bits = {title: collect(records, "text", name).values() for name, title in NETWORKS.items()}
    bits = {title: values for title, values in bits.items() if values}
    seeds = results.format_seeds(*map(len, bits.values()))
    results.draw_bits(folder / "own_network.png", f"Which memory for a text? ({seeds})", bits)


def list_claims(records: results.Records) -> list[results.Claim]:
    """Return rows: the Transformer-XL against each other network, on the text."""
    ours, rows = collect(records, "text", "xl"), []
    for name, (source, known) in SOURCES.items():
        if not (ours and (theirs := collect(records, "text", name))):
            continue
        gains = results.subtract(theirs, ours)
        shown, less = (f"{results.format_spread(each)}" for each in (theirs.values(), gains))
        [first, *_] = results.select(records, kind="text-xl")
        scale = f"{first['minutes']} minutes, {first['parameters']:,} parameters"
        claim = f"Own network: fewer bits than {NETWORKS[name]}, at equal size and time"
        gain = f"{results.format_spread(ours.values())}: {less} less"
        rows.append(results.Claim(claim, source, known + shown, gain, scale, gains, MARGIN))
    return rows


if __name__ == "__main__":
    results.publish(__file__, list_rows, draw)
