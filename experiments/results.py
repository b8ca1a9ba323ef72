"""Results of experiments: records, tables, figures, and rows of the table "ours, theirs".

A figures.py needs this file and its results.json, but no torch. It defines

    list_rows(records)      the rows of table.md; the first row is the head
    draw(records, folder)   the pictures
    list_claims(records)    its rows of the table "ours, theirs", which claims.py writes

    python -m experiments.NAME.figures [FILE]     FILE: results.json; the output is beside it
"""

import json
import statistics
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from operator import getitem
from pathlib import Path
from typing import Any

from txl_lightning.analysis.plots import open_figure
from txl_lightning.files import write_text

Records = Mapping[str, dict[str, Any]]
Rows = Sequence[Sequence[Any]]
BySeed = Mapping[int, float]
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""For colour-blind readers: Okabe and Ito (2008)."""
STYLES = [{"color": c, "marker": m} for c, m in zip(COLOURS, "osD^vP*", strict=True)]


@dataclass(frozen=True)
class Claim:
    """A row of the table "ours, theirs", and what its verdict is derived from (verdicts.py)."""

    claim: str
    source: str
    theirs: str
    ours: str
    """Mean ± standard deviation (number of seeds), by format_spread."""
    scale: str
    gains: Sequence[float]
    """Of each seed: above 0 if the claim holds."""
    margin: float
    """A mean gain of at most this is no difference."""
    doubt: str = ""
    """Why nothing is decided, whatever the gains are."""
    is_same: bool = False
    """The claim is that there is no difference."""


def publish(
    script: str, list_rows: Callable[[Records], Rows], draw: Callable[[Records, Path], None]
) -> None:
    """Write table.md and the pictures of the results.json named on the command line."""
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(script).parent / "results.json"
    records = load_records(path)
    write_text(format_table(list_rows(records)), path.with_name("table.md"))
    draw(records, path.parent)


def load_records(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())["records"] if path.is_file() else {}


def select(records: Records, **values: Any) -> list[dict[str, Any]]:
    """Return the records with these values."""
    return [r for r in records.values() if all(r.get(k) == v for k, v in values.items())]


def collect(records: Records, *keys: str, **values: Any) -> dict[int, Any]:
    """Return, by seed, the value under nested keys of the records with these values."""
    return {record["seed"]: reduce(getitem, keys, record) for record in select(records, **values)}


def subtract(first: BySeed, second: BySeed) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def percent_less(better: BySeed, worse: BySeed) -> list[float]:
    """Return by how many percent values are less than others, of the seeds that both have."""
    return [100 * (1 - better[seed] / worse[seed]) for seed in sorted(better.keys() & worse.keys())]


def spread(values: Collection[float]) -> tuple[float, float]:
    """Return mean and standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def format_spread(values: Collection[float], digits: int = 3) -> str:
    """Return "mean ± standard deviation (number of seeds)"."""
    mean, deviation = spread(values)
    around = f" ± {deviation:.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{around} ({len(values)})"


def format_seeds(*counts: int) -> str:
    """Return the numbers of seeds of a figure's curves, for its title."""
    least, most = min(counts), max(counts)
    numbers = str(most) if least == most else f"{least} to {most}"
    return f"mean ± standard deviation, {numbers} seeds" if most > 1 else "1 seed"


def format_table(rows: Rows) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *rest = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@contextmanager
def draw_figure(path: Path, title: str, *inches: float, **settings: Any) -> Iterator[Any]:
    """Yield axes, and write them with a title, settings as xlabel, and a legend below the panel.

    The curves have STYLES in turn.
    """
    with open_figure(path, inches=inches or None) as (axes,):
        axes.set_prop_cycle(color=COLOURS, marker=[style["marker"] for style in STYLES])
        yield axes
        axes.set(**settings)
        axes.figure.suptitle(title, fontsize=11)
        if axes.get_legend_handles_labels()[1]:
            where = {"loc": "outside lower center", "ncols": 3}
            axes.figure.legend(**where, frameon=False, fontsize="small")


def plot_seeds(axes: Any, places: Sequence[Any], rows: Rows, **style: Any) -> None:
    """Plot the mean of one row of values per seed, and the standard deviation as bars."""
    means, deviations = zip(*map(spread, zip(*rows, strict=True)), strict=True)
    bars = deviations if len(rows) > 1 else None
    axes.errorbar(places, means, yerr=bars, **{"markersize": 4, "capsize": 3} | style)


def draw_bits(path: Path, title: str, bits: Mapping[str, Collection[float]]) -> None:
    """Draw bits per byte of the test text by name, as bars; those of xz are gray."""
    means, errors = zip(*map(spread, bits.values()), strict=True)
    xlabel = "bits per byte of the test text (fewer is better)"
    with draw_figure(path, title, 8, 3.4, xlabel=xlabel) as axes:
        colours = [COLOURS[-1 if name.startswith("xz") else 0] for name in bits]
        bars = axes.barh(list(bits), means, xerr=errors, color=colours)
        axes.bar_label(bars, [f"{mean:.3f}" for mean in means], padding=3)
        axes.set_xlim(0, 1.15 * max(means))
        axes.invert_yaxis()
