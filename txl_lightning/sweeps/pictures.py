"""A sweep as a picture: which values led where, and which of them mattered."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..evaluation.figures import panels
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


def draw(rows: Rows, axes: Sequence[Axis], file: SweepFile, path: Path) -> None:
    """Parallel coordinates, and beside them how much each parameter mattered."""
    figure, (left, right) = panels(2, sharey=False)
    figure.set_size_inches(max(2.2 * len(axes) + 6, 8.5), 4.2)
    left.get_gridspec().set_width_ratios([max(2.2 * len(axes), 3), 3.4])
    compared = [row for row in rows if row["value"] is not None and row["state"] != "failed"]
    draw_parallel(left, compared, axes, file)
    draw_importance(right, compared, axes)
    failed = sum(row["state"] == "failed" for row in rows)
    also = f", {failed} that failed not drawn" if failed else ""
    figure.suptitle(f"{file.name}: {len(compared)} trials{also}", size="medium")
    figure.savefig(path, dpi=120)


def draw_parallel(panel: Any, rows: Rows, axes: Sequence[Axis], file: SweepFile) -> None:
    """A line for each trial, through its values to its result; the best one is wide."""
    from matplotlib import colormaps

    panel.grid(visible=False)
    panel.set_yticks([])
    panel.spines[:].set_visible(False)
    panel.set(xlim=(-0.25, len(axes) + 0.45), ylim=(-0.05, 1.05))
    names = [*short([axis.name for axis in axes]).values(), file.metric]
    panel.set_xticks(range(len(names)), names)
    panel.tick_params(axis="x", length=0)
    if not rows:
        return
    scales = [*axes, Axis("value", True, False)]
    heights = [
        scaled(panel, at, axis, [row[axis.name] for row in rows]) for at, axis in enumerate(scales)
    ]
    worst_last = sorted(range(len(rows)), key=lambda nth: file.sign * rows[nth]["value"])
    for rank, nth in reversed(list(enumerate(worst_last))):
        # By rank: one trial that went wrong would leave one colour to all others.
        colour = colormaps["viridis"](rank / max(len(rows) - 1, 1) * 0.92)
        height = [column[nth] for column in heights]
        panel.plot(
            range(len(scales)), height, color=colour, linewidth=3 if rank == 0 else 1.2, alpha=0.9
        )


def scaled(panel: Any, at: int, axis: Axis, values: Sequence[Any]) -> list[float]:
    """Draw a scale; the heights of the values on it."""
    places = axis.places(values)
    low, high = min(places), max(places)

    def height(place: float) -> float:
        return (place - low) / (high - low) if high > low else 0.5

    panel.plot([at, at], [0, 1], color="black", linewidth=0.8)
    ticks = axis.ticks(values)
    for tick, place in zip(ticks, [height(p) for p in tick_places(axis, ticks)], strict=True):
        label = f"{tick:.4g}" if isinstance(tick, float) else str(tick)
        box = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 0.8}
        panel.text(at + 0.04, place, label, size="small", va="center", bbox=box, zorder=5)
    return [height(place) for place in places]


def tick_places(axis: Axis, ticks: Sequence[Any]) -> list[float]:
    """Where ticks are, in the measure of the values."""
    return axis.places(ticks)


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
    panel.barh([at + 0.18 for at in place], shares, 0.34, label="importance")
    panel.barh([at - 0.18 for at in place], ranks, 0.34, label="rank correlation", alpha=0.6)
    panel.set_yticks(list(place), [labels[name] for name in names])
    panel.axvline(0, color="black", linewidth=0.8)
    panel.set(xlim=(-1.05, 1.05))
    panel.legend(frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.08), fontsize="small")


def importance(rows: Rows, axes: Sequence[Axis]) -> list[tuple[str, float, float]]:
    """Of each parameter its share in a random forest, and its rank correlation with the value."""
    import numpy as np
    from scipy.stats import spearmanr
    from sklearn.ensemble import RandomForestRegressor

    y = np.array([row["value"] for row in rows])
    x = np.array([axis.places([row[axis.name] for row in rows]) for axis in axes]).T
    forest = RandomForestRegressor(200, random_state=0).fit(x, y)
    varied = [len(set(column)) > 1 and len(set(y)) > 1 for column in x.T]
    ranks = [float(spearmanr(c, y)[0]) if v else 0.0 for c, v in zip(x.T, varied, strict=True)]
    names = [axis.name for axis in axes]
    return list(zip(names, forest.feature_importances_.tolist(), ranks, strict=True))
