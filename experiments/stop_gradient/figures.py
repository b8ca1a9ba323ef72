"""Tables and figure of what the stop-gradient costs, from results.json alone."""

from pathlib import Path

from experiments import results
from experiments.results import AGAIN, Records
from experiments.stop_gradient.arms import (
    ARMS,
    BUDGETS,
    PACE_OF,
    REFERENCE,
    is_equal,
    match_steps,
)
from txl_lightning.analysis.contrasts import Contrast

UNIT = "bits per byte"
MARGIN = 0.01
TEXTS = {
    "python_source": "Python source",
    "enwik8_prefix": "enwik8's prefix",
    "novels": "novels",
    "sqlite": "SQLite's source",
}
WAYS = {"span": "by a window of 128 from kept keys", "segments": "in segments"}
NAMES = {
    "memory 2x512": "2 rows, gradient over 512 (sliding window)",
    "memory 2x128": "2 rows, gradient over 128",
    "memory 2x64": "2 rows, gradient over 64 (Transformer-XL)",
    "memory 8x128": "8 rows, gradient over 128",
    "memory 8x64": "8 rows, gradient over 64",
    "memory 16x64": "16 rows, gradient over 64 (Transformer-XL)",
    "alone 2x512": "2 rows, segments of 512 without memory",
    "alone 8x128": "8 rows, segments of 128 without memory",
    "alone 16x64": "16 rows, segments of 64 without memory",
}
CONTRASTS = {
    "the window against Transformer-XL, 2 rows": ("memory 2x512", "memory 2x64", "span"),
    "gradient into the previous segment, 8 rows": ("memory 8x128", "memory 8x64", "span"),
    "memory against segments of 128 read by a window": ("memory 8x128", "alone 8x128", "span"),
    "memory against segments of 128 read in segments": ("memory 8x128", "alone 8x128", "segments"),
    "memory against segments of 64 read by a window, 16 rows": (
        "memory 16x64",
        "alone 16x64",
        "span",
    ),
    "memory against segments of 64 read in segments, 16 rows": (
        "memory 16x64",
        "alone 16x64",
        "segments",
    ),
    "segments of 64, 16 rows, read by a window against the window of 2": (
        "alone 16x64",
        "memory 2x512",
        "span",
    ),
    "Transformer-XL of 16 rows against 2": ("memory 16x64", "memory 2x64", "span"),
    "Transformer-XL of 16 rows against 8": ("memory 16x64", "memory 8x64", "span"),
    "Transformer-XL of 16 rows against the window of 2": ("memory 16x64", "memory 2x512", "span"),
    "Transformer-XL of 16 rows against segments of 128 read by a window": (
        "memory 16x64",
        "alone 8x128",
        "span",
    ),
}
"""What is compared: first the arm that shall need less, then the other and how it is read."""


FRONT = (
    "the window against Transformer-XL, 2 rows",
    "memory against segments of 128 read by a window",
    "memory against segments of 64 read by a window, 16 rows",
    "Transformer-XL of 16 rows against the window of 2",
    "Transformer-XL of 16 rows against segments of 128 read by a window",
)
"""Contrasts on the page of the study."""


def collect(records: Records, key: str, text: str, kind: str, way: str) -> dict[int, object]:
    return results.collect(records, key, way, kind=f"{text}, {kind}")


N_SHOWN = 3
"""Tables on the page."""


def list_tables(records: Records) -> list[results.Rows]:
    """Return effects by what is equal, bits per byte by text, and those of repeated trainings."""
    return [list_effects(records), list_bits(records), list_repeats(records)]


def list_front(records: Records) -> results.Rows:
    """Return the rows of FRONT, of each text that has them."""
    head, *rows = list_effects(records)
    return [head, *(row for row in rows if row[0].split(": ")[1] in FRONT)]


def list_effects(records: Records) -> results.Rows:
    """Return a row for each contrast, with its effects at equal tokens, operations and seconds."""
    found = {each.name: each for each in list_contrasts(records) if len(each.effects)}
    rows = [["compared (above 0: what is named first needs less)", "equal tokens"]]
    rows[0] += [f"equal {budget}" for budget in BUDGETS]
    for title in TEXTS.values():
        for name in CONTRASTS:
            label = f"{title}: {name}"
            names = [label, *(f"{label}, equal {budget}" for budget in BUDGETS)]
            if label in found:
                rows.append([label, *(format_effect(found.get(each)) for each in names)])
    return rows


def format_effect(contrast: Contrast | None) -> str:
    """Return the mean effect and its interval, and how many seeds there are."""
    if contrast is None:
        return "not trained"
    interval = contrast.format_interval()
    return f"{contrast.format(contrast.mean)} ({interval}), {contrast.count_seeds()}"


def list_bits(records: Records) -> results.Rows:
    """Return the bits per byte of each arm and reading, by text."""
    rows = [["arm and reading", *TEXTS.values()]]
    for name, arm in ARMS.items():
        for way in arm.readings:
            found = [collect(records, "bits_per_byte", text, name, way) for text in TEXTS]
            cells = [results.format_spread(each.values()) if each else "" for each in found]
            if any(found):
                rows.append([f"{NAMES[name]}, read {WAYS[way]}", *cells])
    return rows


def list_repeats(records: Records) -> results.Rows:
    pairs = {}
    for text, title in TEXTS.items():
        for name, arm in ARMS.items():
            for way in arm.readings:
                kinds = (name, f"{name}{AGAIN}")
                before, again = (collect(records, "bits_per_byte", text, k, way) for k in kinds)
                pairs[f"{title}: {NAMES[name]}, read {WAYS[way]}"] = (before, again)
    return results.list_repeats(pairs)


def choose_kind(records: Records, text: str, name: str, budget: str) -> str:
    """Return the kind of an arm's records for a budget: that of equal tokens if it has as much.

    An arm that was not timed beside the reference has no such records.
    """
    if name == REFERENCE:
        return name
    pace = records.get(f"{text}, {PACE_OF[name]}") if name in PACE_OF else None
    is_same = pace and is_equal(match_steps(name, pace[f"step_{budget}"]))
    return name if is_same else f"{name}, equal {budget}"


def list_contrasts(records: Records) -> list[Contrast]:
    """Return the contrasts of each text at equal tokens, operations and seconds."""
    found = []
    for text, title in TEXTS.items():
        for name, (first, second, way) in CONTRASTS.items():
            found.append(compare(records, f"{title}: {name}", text, first, second, way))
            for budget in BUDGETS:
                pair = [choose_kind(records, text, each, budget) for each in (first, second)]
                label = f"{title}: {name}, equal {budget}"
                found.append(compare(records, label, text, *pair, way))
    return found


def compare(records: Records, label: str, text: str, first: str, second: str, way: str) -> Contrast:
    """Return a contrast that is paired by seed, and by the blocks of the test text."""
    better, worse = (
        results.Scores(*(collect(records, key, text, *kind) for key in ("bits_per_byte", "blocks")))
        for kind in ((first, "span"), (second, way))
    )
    return results.compare_blocks(label, better, worse, UNIT, MARGIN)


def draw(records: Records, folder: Path) -> None:
    """Draw the bits per byte of each seed, a panel for each text."""
    panels = {
        title: {
            f"{NAMES[name]}\n{WAYS[way]}": collect(records, "bits_per_byte", text, name, way)
            for name, arm in ARMS.items()
            for way in arm.readings
        }
        for text, title in TEXTS.items()
    }
    references = {title: {} for title in panels}
    results.draw_panels(folder / "stop_gradient.png", UNIT, panels, references)
