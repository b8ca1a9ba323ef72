"""A sweep as a picture: which values led where, and which of them mattered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..analysis.plots import make_figure
from .file import SweepFile

Rows = Sequence[Mapping[str, Any]]
ENOUGH = 3
"""Trials below which nothing can be said of importance."""


@dataclass(frozen=True)
class Axis:
    """A parameter that differs between trials."""

    name: str
    is_range: bool
    """Drawn from a range, rather than taken from a list."""
    is_log: bool

    def places(self, values: Sequence[Any]) -> list[float]:
        """Numbers that are as far apart as the values; those of a list are evenly spread."""
        if self.is_range:
            return [math.log(value) if self.is_log else value for value in values]
        order = {str(value): place for place, value in enumerate(self.kinds(values))}
        return [float(order[str(value)]) for value in values]

    def kinds(self, values: Sequence[Any]) -> list[Any]:
        """The values of a list, each once: numbers by size, before words."""
        unique = {str(value): value for value in values}.values()
        is_number = {str(v): isinstance(v, int | float) for v in unique}
        return sorted(unique, key=lambda v: (not is_number[str(v)], v if is_number[str(v)] else 0))

    def ticks(self, values: Sequence[Any]) -> list[Any]:
        """What is written beside it."""
        if not self.is_range:
            return self.kinds(values)
        low, high = min(values), max(values)
        return (around_log if self.is_log else around)(low, high)


def around(low: float, high: float) -> list[float]:
    """Round numbers between two."""
    from matplotlib.ticker import MaxNLocator

    found = MaxNLocator(5).tick_values(low, high)
    return [float(tick) for tick in found if low <= tick <= high]


def around_log(low: float, high: float) -> list[float]:
    """Round numbers between two, some of each power of ten."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    steps = (1, 2, 5) if len(powers) < 5 else (1,)
    found = [step * 10.0**power for power in powers for step in steps]
    return [tick for tick in found if low <= tick <= high] or [low, high]


def short(names: Sequence[str]) -> dict[str, str]:
    """Each key by its last word, or whole where two share it."""
    last = {name: name.rsplit(".", 1)[-1] for name in names}
    words = list(last.values())
    return {name: word if words.count(word) == 1 else name for name, word in last.items()}


def draw(rows: Rows, compared: Rows, axes: Sequence[Axis], file: SweepFile, path: Path) -> None:
    """Parallel coordinates of what can be compared, and how much each parameter mattered."""
    figure, (left, right) = make_figure(2, sharey=False)
    width = 2.4 * len(axes) + 1.5
    figure.set_size_inches(max(width, 4) + 4, 4.4)
    left.get_gridspec().set_width_ratios([max(width, 4), 2.6])
    draw_parallel(left, compared, axes, file)
    draw_importance(right, compared, axes)
    figure.suptitle(f"{file.name}: {counted(rows)}", size="medium")
    figure.savefig(path, dpi=120)


def counted(rows: Rows) -> str:
    """How many trials there are of each kind."""
    states = [row["state"] for row in rows]
    drawn = {"finished": "", "stopped": " (dashed)", "failed": " (not drawn)"}
    return ", ".join(
        f"{states.count(state)} {state}{drawn.get(state, '')}" for state in dict.fromkeys(states)
    )


def draw_parallel(panel: Any, rows: Rows, axes: Sequence[Axis], file: SweepFile) -> None:
    """A line for each trial, through its values to its result; the best one is wide."""
    panel.grid(visible=False)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set(xlim=(-0.1, len(axes) + 0.35), ylim=(-0.04, 1.06))
    names = [*short([axis.name for axis in axes]).values(), file.metric]
    panel.set_xticks(range(len(names)), names)
    panel.tick_params(axis="x", length=0)
    panel.set_title("dark: good; wide: the best", size="small")
    if not rows:
        return
    columns = [[row[axis.name] for row in rows] for axis in axes]
    heights = [scaled(panel, *each) for each in zip(range(len(axes)), axes, columns, strict=True)]
    # What was stopped is off the others' scale, and would press them together.
    whole = [row["value"] for row in rows if row["state"] != "stopped"]
    values = [row["value"] for row in rows]
    heights.append(scaled(panel, len(axes), Axis("value", True, False), values, whole or values))
    lines = list(zip(*heights, strict=True))
    draw_lines(panel, rows, lines, sorted(values, key=lambda value: file.sign * value))


def draw_lines(panel: Any, rows: Rows, lines: Sequence[Sequence[float]], order: list) -> None:
    """A line for each trial, the best one on top."""
    from matplotlib import colormaps

    for row, line in zip(rows, lines, strict=True):
        # By rank: one that went wrong would leave one colour to all others.
        rank = order.index(row["value"])
        colour = colormaps["viridis"](0.92 * rank / max(len(rows) - 1, 1))
        style = "--" if row["state"] == "stopped" else "-"
        panel.plot(line, style, color=colour, linewidth=1.3 if rank else 3.2, zorder=3 - (rank > 0))


def scaled(
    panel: Any, at: int, axis: Axis, values: Sequence[Any], within: Sequence[Any] | None = None
) -> list[float]:
    """Draw a scale of the values, or of those within; how high on it each value is."""
    within = values if within is None else within
    places, seen = axis.places(values), axis.places(within)
    low, high = min(seen), max(seen)
    ticks = axis.ticks(within)

    def height(place: float) -> float:
        return min(max((place - low) / (high - low), 0), 1) if high > low else 0.5

    panel.plot([at, at], [0, 1], color="black", linewidth=0.8)
    for tick, place in zip(ticks, axis.places(ticks), strict=True):
        label = f"{tick:.4g}" if isinstance(tick, float) else str(tick)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        panel.text(at + 0.03, height(place), label, size="small", va="center", bbox=box, zorder=5)
    return [height(place) for place in places]


def draw_importance(panel: Any, rows: Rows, axes: Sequence[Axis]) -> None:
    """Bars, the most important parameter on top."""
    if len(rows) < ENOUGH or not axes:
        panel.axis("off")
        panel.text(0.5, 0.5, f"importance: from {ENOUGH} trials on", ha="center", color="gray")
        return
    found = sorted(importance(rows, axes), key=lambda each: each[1])
    names, shares, ranks = zip(*found, strict=True)
    place = range(len(names))
    labels = short([axis.name for axis in axes])
    panel.barh([at + 0.18 for at in place], shares, 0.34, label="importance (random forest)")
    panel.barh([at - 0.18 for at in place], ranks, 0.34, label="rank correlation", alpha=0.6)
    panel.set_yticks(list(place), [labels[name] for name in names])
    panel.axvline(0, color="black", linewidth=0.8)
    top = len(names) - 0.5
    panel.set(xlim=(-1.05, 1.05), xticks=[-1, -0.5, 0, 0.5, 1], ylim=(min(top - 3, -0.5), top))
    panel.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.4, -0.08), fontsize="small")


def importance(rows: Rows, axes: Sequence[Axis]) -> list[tuple[str, float, float]]:
    """Of each parameter its share in a random forest, and its rank correlation with the value."""
    import numpy as np
    from scipy.stats import spearmanr
    from sklearn.ensemble import RandomForestRegressor

    y = np.array([row["value"] for row in rows])
    x = np.array([axis.places([row[axis.name] for row in rows]) for axis in axes]).T
    forest = RandomForestRegressor(random_state=0).fit(x, y)
    varied = [len(set(column)) > 1 and len(set(y)) > 1 for column in x.T]
    ranks = [float(spearmanr(c, y)[0]) if v else 0.0 for c, v in zip(x.T, varied, strict=True)]
    names = [axis.name for axis in axes]
    return list(zip(names, forest.feature_importances_.tolist(), ranks, strict=True))
