"""Tables and figure of copying and recurrence, from results.json alone."""

from pathlib import Path
from typing import Any

from experiments import results
from experiments.copying.rows import ROWS
from experiments.results import Records
from txl_lightning.analysis.contrasts import Contrast

NAMES = {kind: row.name for kind, row in ROWS.items()}
READINGS = {"best": "best length", "segments": "in segments"}
UNIT = "% less perplexity"
MARGIN = 1.0  # percent of perplexity
METRIC = "val/saved_on_copy"
LEARNED = 0.3  # nats per token of a passage after 64 tokens


def list_tables(records: Records) -> list[results.Rows]:
    rows = [["network", "perplexity in segments", "with the best length", "copies after updates"]]
    for kind, name in NAMES.items():
        if found := results.select(records, kind=kind):
            steps = [find_step(record) for record in found]
            cells = [[record[way] for record in found] for way in ("segments", "best")]
            spreads = (results.format_spread(each, 2) for each in cells)
            rows.append([name, *spreads, ", ".join(f"{step or 'never'}" for step in steps)])
    head = "perplexity of validation text with a memory of 384, as a multiple of that with 128"
    growth = [[f"{head}, by seed"]]
    growth.append([", ".join(f"{value:.2f}" for value in list_growth(records))])
    return [rows, growth]


def list_growth(records: Records) -> list[float]:
    """Return by how much the longest memory multiplies the perplexity of one of a third of it."""
    growth = []
    for record in results.select(records, kind="memory"):
        by_len = {int(name): value for name, value in record["val"].items()}
        longest = max(by_len)
        third = max(n for n in by_len if 3 * n <= longest)
        growth.append(by_len[longest] / by_len[third])
    return growth


def find_step(record: dict[str, Any]) -> int | None:
    """Return the updates until a network saves LEARNED nats, or None."""
    curve = record["curve"]
    pairs = zip(curve["steps"], curve[METRIC], strict=True)
    return next((step + 1 for step, saved in pairs if saved >= LEARNED), None)


def draw(records: Records, folder: Path) -> None:
    """Draw how many seeds' networks have learned to copy, by updates."""
    labels = {"xlabel": "updates", "ylabel": "seeds that have learned to copy"}
    runs = {NAMES[kind]: results.select(records, kind=kind) for kind in ("memory", "long")}
    title = f"When a network learns to copy ({results.count_seeds(*map(len, runs.values()))})"
    with results.draw_figure(folder / "copying.png", title, 7, 4, **labels) as axes:
        for name, found in runs.items():
            learned = sorted(step for record in found if (step := find_step(record)))
            places = [0, *learned, *(record["curve"]["steps"][-1] + 1 for record in found[:1])]
            counts = [*range(len(learned) + 1), len(learned)][: len(places)]
            axes.step(places, counts, where="post", marker="", label=name)


def list_contrasts(records: Records) -> list[Contrast]:
    names = {"alone": "none", "long": "none in segments of 128 at equal updates"}
    return [
        Contrast(f"recurrence against {name} ({shown})", compare(records, kind, way), UNIT, MARGIN)
        for kind, name in names.items()
        for way, shown in READINGS.items()
    ]


def compare(records: Records, kind: str, way: str) -> list[float]:
    """Return by how many percent the perplexity is less with recurrence, by seed."""
    less = results.collect(records, way, kind="memory")
    more = results.collect(records, way, kind=kind)
    return [100 * (1 - less[seed] / more[seed]) for seed in sorted(less.keys() & more.keys())]
