"""Tables and pictures of the ways to read a text, from results.json alone."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results
from experiments.results import AGAIN, Records, Scores
from txl_lightning.analysis.contrasts import Contrast

Points = Mapping[str, Mapping[str, tuple[float, results.BySeed]]]
"""Work (static is 1) and bits per byte by seed, by family and way."""

UNIT = "bits per byte"
MARGIN = 0.01
N_SHOWN = 3
"""Tables on the page."""
N_QUARTER = 4
DOCUMENTATION = "django_docs"
BEFORE_INDEX = "django_docs_before_index"
TEXTS = {
    "django_code": "Django's code",
    DOCUMENTATION: "Django's documentation",
    BEFORE_INDEX: "Django's documentation without its index",
    "python_source": "Python source",
}
"""The index is the end of what is read, so that what is before it is read as without it."""
FAMILIES = {
    "longer memory": ("static", "memory of "),
    "cache": ("cache of ",),
    "steps": ("steps of ", "steps in "),
    "RMS steps": ("RMS steps of ",),
    "cache and steps": ("cache and steps",),
    "cache and RMS steps": ("cache and RMS steps",),
}
"""Beginnings of the names of ways, by the name of a mark in the pictures.

Ways of one mark differ in their work. That of the RMS is not counted.
"""
NAMED = ("longer memory", "cache", "steps")
"""Marks beside which the rest of a way's name stands; RMS steps are beside plain ones."""
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
    "cache of 20,000 against steps in shorter segments": (
        "cache of 20,000",
        "steps in shorter segments",
    ),
    "steps in shorter segments against steps of all weights": (
        "steps in shorter segments",
        "steps of all weights",
    ),
    "cache of 20,000 against steps in segments of 4": (
        "cache of 20,000",
        "steps in segments of 4",
    ),
    "steps in segments of 4 against steps in shorter segments": (
        "steps in segments of 4",
        "steps in shorter segments",
    ),
    "cache and steps in shorter segments against cache and steps": (
        "cache and steps in shorter segments",
        "cache and steps",
    ),
}
"""First the way that shall need less, in the order of the hypotheses."""
QUARTERED = {
    f"{cache} against {steps}": (cache, steps)
    for cache in ("cache of 20,000", "cache of 2,000")
    for steps in ("steps of all weights", "steps in shorter segments")
}
"""What is compared by the place in a text."""
COMPRESSORS = {"ppmd": "PPMd", "zpaq": "zpaq -m5"}
COMPRESSED = {"alone": "alone", "after": "after the training text"}
"""What a compressor has read before a text, by its key in the records."""
FRONT = (
    "static",
    "memory of 512",
    "cache of 2,000",
    "cache of 20,000",
    "steps of all weights",
    "steps in shorter segments",
    "steps in segments of 4",
    "RMS steps of all weights",
    "cache and steps",
    "cache and steps in shorter segments",
    *(f"{name} {when}" for when in COMPRESSED.values() for name in COMPRESSORS.values()),
)
"""Ways, and all compressors, on the page of the study."""


def list_chosen(records: Records) -> dict[str, dict]:
    """Return the ways by name, the one with the least work first."""
    found = sorted(results.select(records, kind="chosen"), key=lambda each: each["operations"])
    return {record["way"]: record for record in found}


def collect(records: Records, way: str, text: str) -> Scores:
    """Return the bits per byte of a text, and of its blocks, read in one way."""
    if text == BEFORE_INDEX:
        part = slice(len(list_block_bytes(records, text)))
        return collect_part(records, way, DOCUMENTATION, part)
    keys = ("bits_per_byte", "blocks")
    return Scores(*(results.collect(records, key, text, kind=way) for key in keys))


def collect_part(records: Records, way: str, text: str, part: slice) -> Scores:
    return cut_scores(collect(records, way, text), list_block_bytes(records, text), part)


def list_block_bytes(records: Records, text: str) -> list[int]:
    """Return the bytes of each block of a text; none without a record of sizes."""
    sizes = records.get("sizes", {})
    if text == BEFORE_INDEX:
        n_block = sizes.get("blocks_before_index", 0)
        return list_block_bytes(records, DOCUMENTATION)[:n_block]
    return sizes.get("block_bytes", {}).get(text, [])


def cut_scores(scores: Scores, n_byte: Sequence[int], part: slice) -> Scores:
    """Return the bits per byte of some blocks of a text, and of each; none if none are chosen.

    The blocks have equal tokens, and their mean is the bits per byte of the whole text: so are they
    in `scores`, for the whole, and in what is returned, for the part. n_byte: of each block.
    """
    if not n_byte[part]:
        return Scores({}, {})
    # Where a token has more bytes, as many bits per token are fewer per byte.
    size = fmean(n_byte[part]) / fmean(n_byte)
    blocks = {seed: [each / size for each in found[part]] for seed, found in scores.blocks.items()}
    return Scores({seed: fmean(each) for seed, each in blocks.items()}, blocks)


def list_tables(records: Records) -> list[results.Rows]:
    """Return the bits per byte of each way; by place; repeated trainings; and what was chosen."""
    chosen = list_chosen(records)
    if not chosen:
        return [list_ways(records)]
    tables = [list_ways(records), list_quarters(records), list_repeats(records)]
    return [*tables, list_options(records)]


def list_ways(records: Records) -> results.Rows:
    """Return the work and bits per byte of each way, and the bits per byte of compressors."""
    rows = [["way", "work, static is 1", *TEXTS.values()]]
    chosen = list_chosen(records)
    for name, record in chosen.items():
        work = f"{record['operations'] / chosen['static']['operations']:.1f}"
        found = [collect(records, name, text).whole for text in TEXTS]
        cells = [results.format_spread(each.values()) if each else "" for each in found]
        rows.append([name, work, *cells])
    for name, found in list_compressed(records).items():
        bits = found["bits_per_byte"]
        rows.append([name, "", *(f"{bits[text]:.3f}" if text in bits else "" for text in TEXTS)])
    return rows


def list_compressed(records: Records) -> dict[str, dict[str, Any]]:
    """Return the record of each compressor by its name, first alone and then after a text."""
    return {
        f"{name} {title}": record
        for when, title in COMPRESSED.items()
        for key, name in COMPRESSORS.items()
        for record in results.select(records, kind="compressor", compressor=key, when=when)
    }


def list_quarters(records: Records) -> results.Rows:
    """Return by how many bits per byte a cache is ahead of steps in each quarter of a text."""
    rows = [["by quarter of the text, bits per byte", "first", "second", "third", "fourth"]]
    for text in [text for text in TEXTS if len(list_block_bytes(records, text)) >= N_QUARTER]:
        length = len(list_block_bytes(records, text)) // N_QUARTER
        parts = [slice(n * length, (n + 1) * length) for n in range(N_QUARTER)]
        for name, pair in QUARTERED.items():
            found = [compare_part(records, text, pair, part) for part in parts]
            if found[0].effects:
                cells = [f"{each.format(each.mean)}, {each.count_seeds()}" for each in found]
                rows.append([f"{TEXTS[text]}: {name}", *cells])
    return rows


def list_repeats(records: Records) -> results.Rows:
    """Return the bits per byte of each training that was repeated: before, and again."""
    pairs = {
        f"{title}: {name}": (
            collect(records, name, text).whole,
            collect(records, f"{name}{AGAIN}", text).whole,
        )
        for text, title in TEXTS.items()
        for name in list_chosen(records)
    }
    return results.list_repeats(pairs)


def list_options(records: Records) -> results.Rows:
    """Return what was chosen on validation text."""
    rows = [["way", "options", "nats of validation text"]]
    for name, record in list_chosen(records).items():
        rows.append([name, format_options(record["options"]), f"{record['val']:.4f}"])
    for name, found in list_compressed(records).items():
        rows.append([name, format_options(found["options"]), ""])
    return rows


def list_front(records: Records) -> results.Rows:
    """Return the work and bits per byte of what is in FRONT, the one with the least work first."""
    head, *rows = list_ways(records)
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
    better, worse = (collect(records, way, text) for way in (first, second))
    return results.compare_blocks(label, better, worse, UNIT, MARGIN)


def compare_part(records: Records, text: str, pair: tuple[str, str], part: slice) -> Contrast:
    """Return a contrast of a part of a text."""
    better, worse = (collect_part(records, way, text, part) for way in pair)
    return results.compare_blocks(" against ".join(pair), better, worse, UNIT, MARGIN)


def draw(records: Records, folder: Path) -> None:
    """Draw bits per byte by work, a picture for each text; compressors are gray lines."""
    for text, title in TEXTS.items():
        points = collect_points(records, text)
        counts = [len(bits) for ways in points.values() for _, bits in ways.values()]
        if counts:
            title = f"{title}: bits per byte by the work of a token"
            title = f"{title}\n({results.format_seeds(*counts)})"
            labels = {"xlabel": "work of a token (static is 1)", "ylabel": UNIT}
            with results.draw_figure(folder / f"{text}.png", title, 8, 5, **labels) as axes:
                plot_ways(axes, points)
                plot_compressors(axes, list_compressed(records), text)


def plot_ways(axes: Any, points: Points) -> None:
    for family, ways in points.items():
        results.plot_seeds(axes, dict(ways.values()), label=family, linestyle="none")
        named = [name for name in ways if family in NAMED and name != "static"]
        for name in named:
            work, bits = ways[name]
            label = name.split(maxsplit=2)[2].removeprefix("the ")
            place = {"xytext": (6, 4), "textcoords": "offset points", "fontsize": "small"}
            axes.annotate(label, (work, fmean(bits.values())), **place)


def plot_compressors(axes: Any, compressed: dict[str, dict[str, Any]], text: str) -> None:
    styles = ("--", ":", "-.", "-")
    for style, (name, found) in zip(styles, compressed.items(), strict=False):
        if text in found["bits_per_byte"]:
            axes.axhline(found["bits_per_byte"][text], color="gray", linestyle=style, label=name)


def collect_points(records: Records, text: str) -> Points:
    """Return the work and the bits per byte of a text of each way, by family."""
    operations = {name: record["operations"] for name, record in list_chosen(records).items()}
    points: dict[str, dict[str, tuple[float, results.BySeed]]] = {}
    for name, work in operations.items():
        [family] = [each for each, starts in FAMILIES.items() if name.startswith(starts)]
        if bits := collect(records, name, text).whole:
            points.setdefault(family, {})[name] = (work / operations["static"], bits)
    return points
