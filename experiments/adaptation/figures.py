"""Tables and figure of adaptation on four texts, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.contrasts import Contrast

TEXTS = {
    "python source": "Python source",
    "novels": "novels, 10 MB",
    "novel": "Howards End",
    "shakespeare": "Tiny Shakespeare",
}
WAYS = {
    "static": "static",
    "steps": "gradient steps",
    "cache": "cache of 20,000 states",
    "both": "adapted: both",
}
PPMD = "PPMd after the training text"
DRAWN = {"static": "static", "both": "adapted by a cache and gradient steps"}
MARGIN = 0.01  # bits per byte


def list_tables(records: results.Records) -> list[results.Rows]:
    """Return bits per byte by text and way of reading, and as a share of PPMd's."""
    rows = [["text", "reading", "bits per byte (seeds)", "share of PPMd's"]]
    for kind, text in TEXTS.items():
        ppmd = records.get(f"ppmd {kind}")
        for way, name in WAYS.items() if ppmd else ():
            if values := collect(records, kind, way).values():
                share = results.spread(values)[0] / ppmd["after"]
                rows.append([text, name, results.format_spread(values), f"{share:.2f}"])
        if ppmd:
            alone = f"PPMd of order {ppmd['order']} alone"
            rows.append([text, alone, f"{ppmd['alone']:.3f}", ""])
            rows.append([text, PPMD, f"{ppmd['after']:.3f}", "1"])
    return [rows]


def list_contrasts(records: results.Records) -> list[Contrast]:
    """Return what each way saves of the bits of static evaluation."""
    return [
        results.compare(
            f"{TEXTS[kind]}: {WAYS[way]} against static",
            collect(records, kind, way),
            collect(records, kind, "static"),
            "bits per byte",
            MARGIN,
        )
        for kind in TEXTS
        for way in WAYS
        if way != "static"
    ]


def collect(records: results.Records, kind: str, way: str) -> results.BySeed:
    return results.collect(records, "bits_per_byte", way, kind=kind)


def draw(records: results.Records, folder: Path) -> None:
    """Draw the bits of each seed, static and adapted, beside PPMd's."""
    found = {kind: [*collect(records, kind, "both")] for kind in TEXTS}
    seeds = results.count_seeds(*(len(each) for each in found.values() if each))
    xlabel = "bits per byte of the test text (fewer is better; a mark is a seed)"
    title = f"Five minutes of training, then adapted while reading ({seeds})"
    with results.draw_figure(folder / "adaptation.png", title, 8, 3, xlabel=xlabel) as axes:
        for place, (way, name) in enumerate(DRAWN.items()):
            style = results.STYLES[place]
            points = [
                (value, TEXTS[kind])
                for kind in TEXTS
                for value in collect(records, kind, way).values()
            ]
            axes.plot(*zip(*points, strict=True), linestyle="", label=name, **style)
        ppmd = [(records[f"ppmd {kind}"]["after"], TEXTS[kind]) for kind in TEXTS if found[kind]]
        style = {"color": results.COLOURS[-1], "marker": "D"}
        axes.plot(*zip(*ppmd, strict=True), linestyle="", label=PPMD, **style)
        axes.margins(y=0.2)
        axes.invert_yaxis()
