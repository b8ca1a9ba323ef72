"""Tables and figure of layers with and without memory, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.results import Readings, Records

OURS = ("4, memory", "memory")
KINDS = {
    "4": "4 layers without memory",
    "4, more updates": "4 layers without memory and 1.4 times the updates",
    "8": "8 layers without memory",
    "12": "12 layers without memory",
}
WAYS = {
    "segments": "in segments",
    "window": "by a sliding window",
    "cached": "by a sliding window from kept keys",
}
NAMES = {OURS: "4 layers with a memory of 128"} | {
    (kind, way): f"{name} {how}" for kind, name in KINDS.items() for way, how in WAYS.items()
}
CONTRASTS = {
    f"4 layers with memory against {name} {how}": (OURS, (kind, way))
    for kind, name in KINDS.items()
    for way, how in WAYS.items()
}
BITS = Readings("bits_per_byte", "bits per byte", 0.01, NAMES, CONTRASTS, "depth", {})
list_tables = BITS.list_tables
list_contrasts = BITS.list_contrasts


def draw(records: Records, folder: Path) -> None:
    """Draw bits per byte by layers, with a line for the network with memory."""
    layers = (4, 8, 12)
    ours = BITS.collect(records, *OURS)
    lines = {
        "4 layers with memory": dict.fromkeys(layers, ours),
        "without memory, by a window": {n: BITS.collect(records, f"{n}", "window") for n in layers},
        "the same, 1.4 times the updates": {4: BITS.collect(records, "4, more updates", "window")},
    }
    labels = {"xlabel": "layers", "ylabel": "bits per byte of enwik8's prefix", "xticks": layers}
    results.draw_lines(folder / "depth.png", "Layers that a memory replaces", lines, 8, 4, **labels)
