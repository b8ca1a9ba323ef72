"""Tables and figure of memory at equal attention length, from results.json alone."""

from pathlib import Path

from experiments.contrasts import Contrast
from experiments.results import Readings, Records, Rows

TEXTS = {"python_source": "Python source", "enwik8_prefix": "enwik8's prefix"}
READINGS = {
    ("memory", "memory"): "memory of 128, segments of 64",
    ("memory", "zero memory"): "the same, zero memory at evaluation",
    ("segment", "segments"): "segments of 192, trained without memory",
    ("segment", "window"): "the same, sliding window (24 times the work)",
}
NAMES = {
    (f"{text}, {net}", way): f"{title}: {name}"
    for text, title in TEXTS.items()
    for (net, way), name in READINGS.items()
}
BITS = Readings("bits_per_byte", "bits per byte", 0.01, NAMES)
OTHERS = {
    "segment 192, sliding window": ("segment", "window"),
    "segment 192": ("segment", "segments"),
    "zero memory at evaluation": ("memory", "zero memory"),
}
CONTRASTS = {
    f"{text}: memory 128 + segment 64 against {name}": (
        (f"{text}, memory", "memory"),
        (f"{text}, {net}", way),
    )
    for text in TEXTS
    for name, (net, way) in OTHERS.items()
}


def list_tables(records: Records) -> list[Rows]:
    return [BITS.list_rows(records)]


def list_contrasts(records: Records) -> list[Contrast]:
    return BITS.compare(records, CONTRASTS)


def draw(records: Records, folder: Path) -> None:
    BITS.draw(records, folder / "attention_length.png", "Equal attention length and seconds")
