"""Tables and figure of the quickstart's memory, from results.json alone."""

from pathlib import Path

from experiments.contrasts import Contrast
from experiments.results import Readings, Records, Rows

OURS, TWICE, ZERO = (("memory", f"mem_len {n}") for n in (128, 256, 0))
ALONE, WINDOW = ("alone", "mem_len 0"), ("alone", "window")
BITS = Readings(
    "bits_per_byte",
    "bits per byte",
    0.01,
    {
        OURS: "memory of 128",
        TWICE: "the same, memory of 256",
        ZERO: "the same, zero memory at evaluation",
        ALONE: "trained without memory",
        WINDOW: "the same, sliding window (8 times the work)",
    },
)
CONTRASTS = {
    "memory against trained without memory": (OURS, ALONE),
    "memory against trained without memory, sliding window": (OURS, WINDOW),
    "memory of 256 against the 128 of training": (TWICE, OURS),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "sliding window against reading in segments": (WINDOW, ALONE),
}


def list_tables(records: Records) -> list[Rows]:
    return [BITS.list_rows(records)]


def list_contrasts(records: Records) -> list[Contrast]:
    return BITS.compare(records, CONTRASTS)


def draw(records: Records, folder: Path) -> None:
    BITS.draw(records, folder / "quickstart.png", "Python source")
