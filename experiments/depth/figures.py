"""Tables and figure of layers with and without memory, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast
from experiments.results import Readings, Records

KINDS = {"4": "", "4, more updates": ", 1.4 times the updates", "8": "", "12": ""}
WAYS = {"segments": "", "window": ", sliding window"}
WORK = {"segments": "in segments", "window": "sliding window (8 times the work)"}
OURS = ("4, memory", "memory")
BITS = Readings(
    "bits_per_byte",
    "bits per byte",
    0.01,
    {OURS: "4 layers, memory of 128"}
    | {
        (kind, way): f"{kind[:2].strip(',')} layers without memory{more}, {work}"
        for kind, more in KINDS.items()
        for way, work in WORK.items()
    },
)
CONTRASTS = {
    f"4 layers with memory against {kind[:2].strip(',')} without{more}{end}": (OURS, (kind, way))
    for kind, more in KINDS.items()
    for way, end in WAYS.items()
}


def list_tables(records: Records) -> list[results.Rows]:
    return [BITS.list_rows(records)]


def list_contrasts(records: Records) -> list[Contrast]:
    return BITS.compare(records, CONTRASTS)


def draw(records: Records, folder: Path) -> None:
    """Draw bits per byte by layers, with a line for the network with memory."""
    ours = BITS.collect(records, *OURS)
    depths = [kind for kind in ("4", "8", "12") if BITS.collect(records, kind, "window")]
    if not ours or not depths:
        return
    title = f"Layers that a memory replaces ({results.format_seeds(len(ours))})"
    labels = {"xlabel": "layers", "ylabel": "bits per byte of enwik8's prefix"}
    with results.draw_figure(folder / "depth.png", title, 8, 4, **labels) as axes:
        for way, work in WORK.items():
            columns = [[*BITS.collect(records, kind, way).values()] for kind in depths]
            rows = [*zip(*columns, strict=True)]
            results.plot_seeds(axes, [*map(int, depths)], rows, label=f"without memory, {work}")
        mean, _ = results.spread(ours.values())
        axes.axhline(mean, linestyle="--", color="black", label="4 layers with memory")
        axes.set_xticks([*map(int, depths)])
