"""Tables and figure of chorales, from results.json alone."""

from pathlib import Path

from experiments.contrasts import Contrast
from experiments.results import Readings, Records, Rows

OURS, ZERO = ("memory", "memory"), ("memory", "zero memory")
ALONE, WINDOW = ("alone", "segments"), ("alone", "window")
NATS = Readings(
    "nats_per_note",
    "nats per note",
    0.01,
    {
        OURS: "memory of 256",
        ZERO: "the same, zero memory at evaluation",
        ALONE: "trained without memory",
        WINDOW: "the same, sliding window (8 times the work)",
    },
)
CONTRASTS = {
    "memory against trained without memory": (OURS, ALONE),
    "memory against trained without memory, sliding window": (OURS, WINDOW),
    "memory against zero memory at evaluation": (OURS, ZERO),
    "sliding window against reading in segments": (WINDOW, ALONE),
}


def list_tables(records: Records) -> list[Rows]:
    return [NATS.list_rows(records)]


def list_contrasts(records: Records) -> list[Contrast]:
    return NATS.compare(records, CONTRASTS)


def draw(records: Records, folder: Path) -> None:
    NATS.draw(records, folder / "music.png", "Bach chorales")
