"""Tables and pictures of the ways to read a text, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.results import AGAIN, Records
from txl_lightning.analysis.contrasts import Contrast

UNIT = "bits per byte"
MARGIN = 0.01
N_SHOWN = 2
"""Tables on the page."""
TEXTS = {
    "django_code": "Django's code",
    "django_docs": "Django's documentation",
    "python_source": "Python source",
}
FAMILIES = {
    "longer memory": ("static", "memory of "),
    "cache": ("cache of ",),
    "steps": ("steps of ",),
    "RMS steps": ("RMS steps of ",),
    "cache and steps": ("cache and steps",),
    "cache and RMS steps": ("cache and RMS steps",),
}
"""Beginnings of the names of ways, by the name of a line in the pictures.

Ways of one line differ in their work. That of the RMS is not counted.
"""
CONTRASTS = {
    "cache of 20,000 against steps of all weights": ("cache of 20,000", "steps of all weights"),
    "RMS steps against plain steps": ("RMS steps of all weights", "steps of all weights"),
    "memory of 512 against static": ("memory of 512", "static"),
    "static against memory of 2048": ("static", "memory of 2048"),
    "steps of all weights against the last layer": (
        "steps of all weights",
        "steps of the last layer",
    ),
    "steps of the last layer against norms": ("steps of the last layer", "steps of norms"),
    "cache and RMS steps against the cache": ("cache and RMS steps", "cache of 20,000"),
    "cache and RMS steps against RMS steps": ("cache and RMS steps", "RMS steps of all weights"),
    "cache and RMS steps against cache and steps": ("cache and RMS steps", "cache and steps"),
}
"""First the way that shall need less, in the order of the hypotheses."""


FRONT = (
    "static",
    "memory of 512",
    "cache of 2,000",
    "cache of 20,000",
    "steps of all weights",
    "RMS steps of all weights",
    "cache and steps",
)
"""Ways on the page of the study."""


def list_chosen(records: Records) -> dict[str, dict]:
    """Return the ways by name, the one with the least work first."""
    found = sorted(results.select(records, kind="chosen"), key=lambda each: each["operations"])
    return {record["way"]: record for record in found}


def collect(records: Records, key: str, way: str, text: str) -> dict[int, object]:
    return results.collect(records, key, text, kind=way)


def list_tables(records: Records) -> list[results.Rows]:
    """Return the work and bits per byte of each way; repeated trainings; what was chosen."""
    chosen = list_chosen(records)
    if not chosen:
        return [[["way", "work", *TEXTS.values()]]]
    least = chosen["static"]["operations"]
    rows = [["way", "work, static is 1", *TEXTS.values()]]
    values = [["way", "options", "nats of validation text"]]
    for name, record in chosen.items():
        work = f"{record['operations'] / least:.1f}"
        values.append([name, format_options(record["options"]), f"{record['val']:.4f}"])
        found = [collect(records, "bits_per_byte", name, text) for text in TEXTS]
        cells = [results.format_spread(each.values()) if each else "" for each in found]
        rows.append([name, work, *cells])
    pairs = {
        f"{title}: {name}": (
            collect(records, "bits_per_byte", name, text),
            collect(records, "bits_per_byte", f"{name}{AGAIN}", text),
        )
        for text, title in TEXTS.items()
        for name in chosen
    }
    return [rows, results.list_repeats(pairs), values]


def list_front(records: Records) -> results.Rows:
    """Return the work and bits per byte of the ways in FRONT, the one with the least work first."""
    head, *rows = list_tables(records)[0]
    return [head, *(row for row in rows if row[0] in FRONT)]


def format_options(options: dict) -> str:
    # As code, because a pattern of weights has asterisks.
    words = " ".join(f"{name} {value}" for name, value in options.items())
    return f"`{words}`" if words else "none"


def list_contrasts(records: Records) -> list[Contrast]:
    return [
        compare(records, f"{title}: {name}", text, *pair)
        for text, title in TEXTS.items()
        for name, pair in CONTRASTS.items()
    ]


def compare(records: Records, label: str, text: str, first: str, second: str) -> Contrast:
    """Return a contrast that is paired by seed, and by the blocks of a text."""
    better, worse = (
        results.Scores(*(collect(records, key, way, text) for key in ("bits_per_byte", "blocks")))
        for way in (first, second)
    )
    return results.compare_blocks(label, better, worse, UNIT, MARGIN)


def draw(records: Records, folder: Path) -> None:
    """Draw bits per byte against work, a picture for each text."""
    for text, title in TEXTS.items():
        labels = {"xlabel": "work of a token (static is 1)", "ylabel": UNIT}
        path = folder / f"{text}.png"
        title = f"{title}: what work at test time buys"
        results.draw_lines(path, title, collect_lines(records, text), 8, 4.5, **labels)


def collect_lines(records: Records, text: str) -> results.Lines:
    """Return the bits per byte of a text by family, by work (static is 1), and by seed."""
    operations = {name: record["operations"] for name, record in list_chosen(records).items()}
    return {
        family: {
            operations[name] / operations["static"]: collect(records, "bits_per_byte", name, text)
            for name in operations
            if name.startswith(starts)
        }
        for family, starts in FAMILIES.items()
    }
