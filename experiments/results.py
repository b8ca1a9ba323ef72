"""Results of experiments: records, tables, figures and contrasts.

A figures.py needs this file and its results.json, but no torch. It defines

    list_tables(records)      what was measured; the first row of a table is its head
    list_contrasts(records)   what is compared; claims.yaml names those that get a result
    draw(records, folder)     the pictures

and pages.py writes them.
"""

import json
import statistics
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

from txl_lightning.analysis.contrasts import Contrast
from txl_lightning.analysis.plots import open_figure

Records = Mapping[str, dict[str, Any]]
Rows = Sequence[Sequence[Any]]
BySeed = Mapping[int, float]
Lines = Mapping[str, Mapping[Any, BySeed]]
"""Values by name, by place on the x axis, and by seed."""
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#555555")
"""For colour-blind readers: Okabe and Ito (2008)."""
AGAIN = ", again"
"""What the name and the kind of a record of --again end in: it belongs to no contrast."""
STYLES = [{"color": c, "marker": m} for c, m in zip(COLOURS, "osD^vP*", strict=True)]


def load_records(path: Path) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text())["records"] if path.is_file() else {}


def select(records: Records, **values: Any) -> list[dict[str, Any]]:
    return [r for r in records.values() if all(r.get(k) == v for k, v in values.items())]


def collect(records: Records, *keys: str, **values: Any) -> dict[int, Any]:
    """Return, by seed, the value under nested keys of records that have it, and these values."""
    chosen = select(records, **values)
    found = {record["seed"]: record for record in chosen}
    assert len(found) == len(chosen), f"several records of one seed have {values}"
    for key in keys:
        found = {seed: each[key] for seed, each in found.items() if key in each}
    return found


def subtract(first: BySeed, second: BySeed) -> list[float]:
    """Return the differences of the seeds that both have."""
    return [first[seed] - second[seed] for seed in sorted(first.keys() & second.keys())]


def compare(name: str, better: BySeed, worse: BySeed, unit: str, margin: float) -> Contrast:
    """Return a contrast of values of which fewer are better, paired by seed."""
    return Contrast(name, subtract(worse, better), unit, margin)


class Scores(NamedTuple):
    """Values of a text by seed, and of its blocks."""

    whole: BySeed
    blocks: Mapping[int, Sequence[float]]


def compare_blocks(name: str, better: Scores, worse: Scores, unit: str, margin: float) -> Contrast:
    """Return a contrast as `compare` does, paired by the blocks of the text, too."""
    blocks = [
        [b - a for a, b in zip(better.blocks[seed], worse.blocks[seed], strict=True)]
        for seed in sorted(better.whole.keys() & worse.whole.keys())
    ]
    return Contrast(name, subtract(worse.whole, better.whole), unit, margin, blocks)


def spread(values: Collection[float]) -> tuple[float, float]:
    """Return mean and standard deviation (0 for one value)."""
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def format_spread(values: Collection[float], digits: int = 3) -> str:
    """Return "mean ± standard deviation (number of seeds)"."""
    mean, deviation = spread(values)
    around = f" ± {deviation:.{digits}f}" if len(values) > 1 else ""
    return f"{mean:.{digits}f}{around} ({len(values)})"


def format_training_seconds(found: Collection[Mapping[str, Any]]) -> str:
    """Return the seconds of training of records, if they were recorded of each."""
    seconds = [each.get("training_seconds") for each in found]
    return format_spread(seconds, 0) if all(seconds) else ""


def count_seeds(*counts: int) -> str:
    """Return the numbers of seeds of a figure's parts."""
    least = min(counts)
    most = max(counts)
    number = str(most) if least == most else f"{least} to {most}"
    return f"{number} seeds" if most > 1 else "1 seed"


def format_seeds(*counts: int) -> str:
    """Return the numbers of seeds of a figure's curves, for its title."""
    around = "mean ± standard deviation, " if max(counts) > 1 else ""
    return f"{around}{count_seeds(*counts)}"


def format_table(rows: Rows) -> str:
    """Return a Markdown table; the first row is its head."""
    head, *rest = [[str(cell) for cell in row] for row in rows]
    lines = [head, ["---"] * len(head), *rest]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


@contextmanager
def draw_figure(path: Path, title: str, *inches: float, **settings: Any) -> Iterator[Any]:
    """Yield axes, and write them with a title, settings as xlabel, and a legend below the panel.

    The curves have STYLES in turn, first with solid and then with dashed lines.
    """
    with open_figure(path, inches=inches or None) as (axes,):
        cycle = [style | {"linestyle": line} for line in ("-", "--") for style in STYLES]
        axes.set_prop_cycle(**{key: [style[key] for style in cycle] for key in cycle[0]})
        yield axes
        axes.set(**settings)
        axes.figure.suptitle(title, fontsize=11)
        if axes.get_legend_handles_labels()[1]:
            where = {"loc": "outside lower center", "ncols": 3}
            axes.figure.legend(**where, frameon=False, fontsize="small")


def plot_seeds(axes: Any, line: Mapping[Any, BySeed], **style: Any) -> None:
    """Plot the mean of the seeds at each place, and the standard deviation as bars."""
    means, deviations = zip(*(spread(found.values()) for found in line.values()), strict=True)
    bars = deviations if any(deviations) else None
    axes.errorbar([*line], means, yerr=bars, **{"markersize": 4, "capsize": 3} | style)


def list_repeats(pairs: Mapping[str, tuple[BySeed, BySeed]]) -> Rows:
    """Return a row for each training that was repeated: its means before and again, by its seeds.

    The difference is that of the seed which changed most.
    """
    rows = [["trained once more", "seeds", "before", "again", "largest difference"]]
    for name, (before, again) in pairs.items():
        if again:
            seeds = ", ".join(str(seed) for seed in again)
            means = (statistics.fmean(each[seed] for seed in again) for each in (before, again))
            changed = max((again[seed] - before[seed] for seed in again), key=abs)
            rows.append([name, seeds, *(f"{mean:.4f}" for mean in means), f"{changed:+.4f}"])
    return rows


def draw_lines(path: Path, title: str, lines: Lines, *inches: float, **settings: Any) -> None:
    """Draw lines, if there are any; the title gets the number of seeds."""
    counts = [len(found) for line in lines.values() for found in line.values() if found]
    if not counts:
        return
    with draw_figure(path, f"{title} ({format_seeds(*counts)})", *inches, **settings) as axes:
        for name, line in lines.items():
            if measured := {place: found for place, found in line.items() if found}:
                plot_seeds(axes, measured, label=name)


def draw_curves(
    path: Path,
    title: str,
    runs: Mapping[str, Sequence[dict[str, Any]]],
    column: str,
    count: Callable[[dict[str, Any]], float],
    **labels: str,
) -> None:
    """Draw the curves of networks by name; `count` is what a step adds on the x axis."""
    lines: dict[str, dict[float, dict[int, float]]] = {}
    for name, found in runs.items():
        for run in found:
            for step, value in zip(run["curve"]["steps"], run["curve"][column], strict=True):
                place = (step + 1) * count(run)
                lines.setdefault(name, {}).setdefault(place, {})[run["seed"]] = value
    draw_lines(path, title, lines, **labels)


def draw_panels(
    path: Path,
    unit: str,
    panels: Mapping[str, Mapping[str, BySeed]],
    references: Mapping[str, Mapping[str, float]],
) -> None:
    """Draw the values of each seed, a panel for each text; references beside them are gray."""
    panels = {title: rows for title, rows in panels.items() if any(rows.values())}
    if not panels:
        return
    names = {name for title, rows in panels.items() for name in (*rows, *references[title])}
    n_line = len("\n".join(names).splitlines())
    inches = max(8, 2.3 * len(panels) + 2), 0.28 * n_line + 1.2
    with open_figure(path, len(panels), inches) as every:
        for axes, (title, rows) in zip(every, panels.items(), strict=True):
            for name, found in rows.items():
                axes.plot([*found.values()], [name] * len(found), "o", color=COLOURS[0])
            for name, value in references[title].items():
                axes.plot(value, name, "D", color=COLOURS[-1])
            seeds = count_seeds(*(len(found) for found in rows.values() if found))
            axes.set_title(f"{title} ({seeds})", fontsize=11)
            axes.margins(x=0.1, y=0.5 / len(names))
            axes.locator_params(axis="x", nbins=5)
        every[0].invert_yaxis()
        label = f"{unit} (fewer is better; a dot is a seed)"
        every[0].figure.supxlabel(label, fontsize=10)
