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
WORK = {"segments": "in segments", "window": "by a sliding window (8 times the work)"}
NAMES = {OURS: "4 layers with a memory of 128"} | {
    (kind, way): f"{name} {work}" for kind, name in KINDS.items() for way, work in WORK.items()
}
CONTRASTS = {
    f"4 layers with memory against {name} {work.partition(' (')[0]}": (OURS, (kind, way))
    for kind, name in KINDS.items()
    for way, work in WORK.items()
}
BITS = Readings("bits_per_byte", "bits per byte", 0.01, NAMES, CONTRASTS, "depth", {})
list_tables = BITS.list_tables
list_contrasts = BITS.list_contrasts


def draw(records: Records, folder: Path) -> None:
    """Draw bits per byte by layers, with a line for the network with memory."""
    ours = BITS.collect(records, *OURS)
    depths = [kind for kind in ("4", "8", "12") if BITS.collect(records, kind, "window")]
    if not ours or not depths:
        return
    title = f"Layers that a memory replaces ({results.format_seeds(len(ours))})"
    labels = {"xlabel": "layers", "ylabel": "bits per byte of enwik8's prefix"}
    with results.draw_figure(folder / "depth.png", title, 8, 4, **labels) as axes:
        for way, colour in zip(WORK, results.COLOURS, strict=False):
            line = {int(kind): BITS.collect(records, kind, way) for kind in depths}
            results.plot_seeds(axes, line, label=f"without memory {WORK[way]}", color=colour)
            if longer := BITS.collect(records, "4, more updates", way).values():
                mean, _ = results.spread(longer)
                axes.plot(4, mean, "o", color=colour, markerfacecolor="none")
                words = "equal time: 1.4 times the updates"
                axes.annotate(words, (4, mean), (8, -3), textcoords="offset points")
        mean, _ = results.spread(ours.values())
        axes.axhline(mean, linestyle="--", color="black", label="4 layers with memory")
        axes.set_xticks([*map(int, depths)])
