"""Tables and figures of the paper's ablations, from results.json alone."""

from pathlib import Path
from statistics import fmean
from typing import Any

from experiments import results
from experiments.contrasts import Contrast
from experiments.results import Records
from experiments.the_paper.rows import KINDS

READINGS = {"best": "best length", "segments": "in segments"}
SHUFFLED = {"shuffled memory": (25.2,), "shuffled alone": (27.1,)}
"""The paper's perplexities of Table 7."""
AGAINST_NONE, POSITIONS = "recurrence against none", "the paper's positions against Shaw's"
COMPARISONS = {
    AGAINST_NONE: ("memory", "alone"),
    f"{AGAINST_NONE} with Shaw's positions": ("shaw memory", "shaw alone"),
    f"{POSITIONS} with recurrence": ("memory", "shaw memory"),
    f"{POSITIONS} without recurrence": ("alone", "shaw alone"),
    f"{AGAINST_NONE} on shuffled lines": ("shuffled memory", "shuffled alone"),
    "recurrence against segments of 88 at equal tokens": ("memory", "long, equal tokens"),
    "recurrence against segments of 88 at equal updates": ("memory", "long, equal updates"),
}
SHAW, HALF = "Shaw's positions", "none, half loss"
EARLY = {
    AGAINST_NONE: ("recurrence", "none"),
    f"{AGAINST_NONE} with half loss": ("recurrence, half loss", HALF),
    f"{AGAINST_NONE} with Shaw's positions": (f"recurrence, {SHAW}", f"none, {SHAW}"),
    f"{POSITIONS} with recurrence": ("recurrence", f"recurrence, {SHAW}"),
    f"{POSITIONS} without recurrence": ("none", f"none, {SHAW}"),
    "the paper's positions against absolute sinusoids": (HALF, f"{HALF}, absolute sinusoids"),
    "the paper's positions against learned absolute ones": (HALF, f"{HALF}, learned absolute"),
    "full loss against half with recurrence": ("recurrence", "recurrence, half loss"),
    "full loss against half without recurrence": ("none", HALF),
}
NAMES = {
    "memory": "recurrence",
    "alone": "none",
    "long, equal tokens": "none with longer segments (equal tokens)",
    "long, equal updates": "none with longer segments (equal updates)",
    "shaw memory": "recurrence with Shaw's positions",
    "shaw alone": "none with Shaw's positions",
    "shuffled memory": "recurrence on shuffled lines",
    "shuffled alone": "none on shuffled lines",
}
"""Of kinds; those of early ones are rows' names."""
DRAWN = {
    AGAINST_NONE: "recurrence\nagainst none",
    f"{POSITIONS} with recurrence": "positions\nagainst Shaw's",
    f"{AGAINST_NONE} on shuffled lines": "recurrence on\nshuffled lines",
    "recurrence against segments of 88 at equal updates": "recurrence against\nlonger segments",
}
MARGIN, SAME_NATS = 1.0, 0.005  # percent of perplexity; nats of a token
TRAINED, LONGEST = "64", "1024"


def list_tables(records: Records) -> list[results.Rows]:
    memories = list_memories(records)
    return [list_kinds(records), *([memories] if memories else [])]


def list_kinds(records: Records) -> list[list[Any]]:
    head = ["network", "rate", "tokens", "perplexity in segments", "with the best length"]
    rows = [[*head, "paper: as trained, best", "nats saved on a copy, by seed"]]
    for kind, how in KINDS.items():
        if found := results.select(records, kind=kind):
            cells = [name_kind(kind), f"{found[0]['rate']:g}", f"{found[0]['tokens']:,}"]
            for way in ("segments", "best"):
                values = [record[way] for record in found if way in record]
                cells.append(results.format_spread(values, 2) if values else "")
            paper = SHUFFLED.get(kind, how.row.published)
            copies = [f"{r['saved_on_copy']:.2f}" for r in found if "saved_on_copy" in r]
            rows.append([*cells, ", ".join(map(str, paper)), ", ".join(copies)])
    return rows


def name_kind(kind: str) -> str:
    """Return the name of a kind without commas."""
    return NAMES.get(kind, kind.replace(", ", " with ", 1).replace(", ", " and "))


def list_memories(records: Records) -> list[list[Any]]:
    """Return rows of the nats of early networks by length of memory."""
    read = {kind: results.collect(records, "nats_by_memory", kind=kind) for kind in KINDS}
    read = {kind: found for kind, found in read.items() if found}
    if not read:
        return []
    first = next(iter(read.values()))
    lengths = sorted(next(iter(first.values())), key=int)
    rows = [["nats per subword, by length of memory", *lengths]]
    for kind, found in read.items():
        cells = (results.format_spread([nats[n] for nats in found.values()]) for n in lengths)
        rows.append([name_kind(kind), *cells])
    return rows


def compare(records: Records, pair: tuple[str, str], way: str) -> list[float]:
    """Return by how many percent the first kind's perplexity is less, by seed."""
    return results.percent_less(*(results.collect(records, way, kind=kind) for kind in pair))


def draw(records: Records, folder: Path) -> None:
    effects = {DRAWN[name]: compare(records, COMPARISONS[name], "best") for name in DRAWN}
    effects = {name: values for name, values in effects.items() if values}
    if not effects:
        return
    seeds = results.count_seeds(*map(len, effects.values()))
    title = f"The paper's ablations, each with its best attention length ({seeds})"
    label = "less perplexity (%; right of 0: as in the paper)"
    with results.draw_figure(folder / "the_paper.png", title, 8, 3.6, xlabel=label) as axes:
        for place, values in enumerate(effects.values()):
            dots = {"color": results.COLOURS[0], "label": "" if place else "a seed"}
            axes.plot(values, [place] * len(values), "o", alpha=0.6, **dots)
            mean = {"color": "black", "label": "" if place else "mean"}
            axes.plot(fmean(values), place, "|", markersize=18, **mean)
        axes.axvline(0, color="black", linewidth=0.8)
        axes.set_yticks(range(len(effects)), effects)
        axes.margins(y=0.15)
        axes.invert_yaxis()


def list_contrasts(records: Records) -> list[Contrast]:
    unit, rows = "% less perplexity", []
    for name, pair in COMPARISONS.items():
        for way, shown in READINGS.items():
            rows.append(Contrast(f"{name} ({shown})", compare(records, pair, way), unit, MARGIN))
    for name, pair in EARLY.items():
        kinds = tuple(f"early: {row}" for row in pair)
        rows.append(Contrast(f"early: {name}", compare(records, kinds, "best"), unit, MARGIN))
    return [*rows, *contrast_memories(records)]


def contrast_memories(records: Records) -> list[Contrast]:
    """Return what the longest memory saves of the nats with that of training, by positions."""
    rows = []
    for kind in KINDS:
        trained, longest = (
            results.collect(records, "nats_by_memory", n, kind=kind) for n in (TRAINED, LONGEST)
        )
        name = f"{name_kind(kind)}: memory of 1,024 against the 64 of training"
        rows.append(results.compare(name, longest, trained, "nats per token", SAME_NATS))
    return rows
