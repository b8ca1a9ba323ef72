"""Tables and figure of networks that read with more memory than in training, from results.json."""

from collections.abc import Iterable
from pathlib import Path
from statistics import correlation
from typing import Any, NamedTuple

from experiments import results
from experiments.copying.figures import find_step
from experiments.longer_memory.kinds import AFTER, BEFORE, BROKEN, LENGTHS
from experiments.results import BySeed, Records
from txl_lightning.analysis.contrasts import Contrast
from txl_lightning.analysis.plots import open_figure


class Reading(NamedTuple):
    """A kind of network, and a way of reading a text with it, as the records name them."""

    kind: str
    way: str


UNIT = "% less perplexity"
MARGIN = 1
READINGS = {
    Reading("sinusoidal", "as is"): "the paper's positions",
    Reading("sinusoidal", "clamped"): "the paper's positions, clamped",
    Reading("shaw", "as is"): "Shaw's positions",
    Reading("random memory", "as is"): "random memory",
    Reading("random memory", "clamped"): "random memory, clamped",
}
PAPER, CLAMPED, *OTHERS = READINGS

N_SHOWN = 4
"""Tables on the page."""


def list_tables(records: Records) -> list[results.Rows]:
    """Return perplexities by length of memory, who breaks, what predicts it, and repetitions."""
    lists = (list_perplexities, list_growths, list_predictors, list_repeats)
    return [each(records) for each in lists]


def collect(records: Records, reading: Reading, length: int) -> BySeed:
    return results.collect(records, "perplexity", reading.way, str(length), kind=reading.kind)


def find_growths(records: Records, reading: Reading) -> BySeed:
    """Return, by seed, the perplexity with a memory of AFTER as a multiple of that with BEFORE."""
    before = collect(records, reading, BEFORE)
    return {seed: after / before[seed] for seed, after in collect(records, reading, AFTER).items()}


def list_perplexities(records: Records) -> results.Rows:
    rows = [["perplexity of the test text", *(f"memory of {length}" for length in LENGTHS)]]
    for reading, name in READINGS.items():
        found = [collect(records, reading, length).values() for length in LENGTHS]
        if all(found):
            rows.append([name, *(results.format_spread(values, 2) for values in found)])
    return rows


def list_growths(records: Records) -> results.Rows:
    """Return a row for each way: the seeds that break, and the growth of each."""
    rows = [["way", "seeds that break", f"perplexity from {BEFORE} to {AFTER}, by seed"]]
    for reading, name in READINGS.items():
        if growths := find_growths(records, reading).values():
            n_broken = sum(growth > BROKEN for growth in growths)
            each = ", ".join(f"{growth:.2f}" for growth in growths)
            rows.append([name, f"{n_broken} of {len(growths)}", each])
    return rows


list_front = list_growths


def list_predictors(records: Records) -> results.Rows:
    """Return how what is known of a network goes with its growth, over the seeds that have it."""
    rows = [["the paper's positions", "rank correlation with growth", "by seed"]]
    growths = find_growths(records, PAPER)
    for name, values in find_predictors(records).items():
        known = sorted(growths.keys() & values.keys())
        if len({values[seed] for seed in known}) > 2:
            found = correlate_ranks(*([by[seed] for seed in known] for by in (growths, values)))
            each = (f"{values[seed]:.4g}" if seed in values else "never" for seed in growths)
            rows.append([name, f"{found:+.2f}", ", ".join(each)])
    return rows


def list_repeats(records: Records) -> results.Rows:
    """Return the perplexities of each training that was repeated, before and again."""
    pairs = {}
    for reading, name in READINGS.items():
        again = Reading(reading.kind + results.AGAIN, reading.way)
        for length in (BEFORE, AFTER):
            both = (collect(records, each, length) for each in (reading, again))
            pairs[f"{name}, memory of {length}"] = tuple(both)
    return results.list_repeats(pairs)


def find_predictors(records: Records) -> dict[str, BySeed]:
    """Return what may predict growth, by name and seed; a network may never learn to copy."""
    found = {record["seed"]: record for record in results.select(records, kind=PAPER.kind)}
    steps = {seed: find_step(record) for seed, record in found.items()}
    attention = {
        key: results.collect(records, "attention", key, kind=PAPER.kind)
        for key in ("beyond", "distance")
    }
    return {
        f"share of attention beyond the distances of training, memory of {AFTER}": attention[
            "beyond"
        ],
        "mean attention distance, as trained": attention["distance"],
        "updates until it copies": {seed: step for seed, step in steps.items() if step},
        f"perplexity with a memory of {BEFORE}": collect(records, PAPER, BEFORE),
    }


def correlate_ranks(first: Iterable[float], second: Iterable[float]) -> float:
    """Return Spearman's rank correlation; equal values share their mean rank."""
    return correlation(rank_values(first), rank_values(second))


def rank_values(values: Iterable[float]) -> list[float]:
    values = list(values)
    return [
        sum(v < value for v in values) + sum(v == value for v in values) / 2 for value in values
    ]


def list_contrasts(records: Records) -> list[Contrast]:
    """Return each reading against the paper's positions, and clamped ones against less memory."""
    pairs = [((reading, AFTER), (PAPER, AFTER)) for reading in (CLAMPED, *OTHERS)]
    pairs += [((CLAMPED, length), (PAPER, BEFORE)) for length in LENGTHS if length > BEFORE]
    return [compare(records, *pair) for pair in pairs]


def compare(records: Records, first: tuple[Reading, int], second: tuple[Reading, int]) -> Contrast:
    """Return by how many percent the first reading, with its memory, has less perplexity."""
    less = collect(records, *first)
    more = collect(records, *second)
    effects = [100 * (1 - less[seed] / more[seed]) for seed in sorted(less.keys() & more.keys())]
    names = (f"{READINGS[reading]}, memory of {length}" for reading, length in (first, second))
    return Contrast(" against ".join(names), effects, UNIT, MARGIN)


def draw(records: Records, folder: Path) -> None:
    """Draw perplexity by length of memory: a panel for each training, a line for each seed."""
    panels: dict[str, list[Reading]] = {}
    for reading in READINGS:
        if collect(records, reading, BEFORE):
            panels.setdefault(reading.kind, []).append(reading)
    if not panels:
        return
    with open_figure(folder / "longer_memory.png", len(panels), (3 * len(panels) + 2, 4)) as every:
        for axes, readings in zip(every, panels.values(), strict=True):
            for reading, style in zip(readings, results.STYLES, strict=False):
                draw_seeds(axes, records, reading, style)
            seeds = results.count_seeds(len(collect(records, readings[0], BEFORE)))
            above = {"loc": "lower center", "bbox_to_anchor": (0.5, 1)}
            axes.legend(title=seeds, frameon=False, fontsize="small", **above)
        every[0].set_ylabel("perplexity of the test text")
        every[0].figure.supxlabel("states in memory (a line is a seed)", fontsize=10)


def draw_seeds(axes: Any, records: Records, reading: Reading, style: dict[str, str]) -> None:
    by_length = {length: collect(records, reading, length) for length in LENGTHS}
    for n, seed in enumerate(by_length[BEFORE]):
        values = [found[seed] for found in by_length.values()]
        label = READINGS[reading] if n == 0 else None
        axes.plot(LENGTHS, values, markersize=3, label=label, **style)
