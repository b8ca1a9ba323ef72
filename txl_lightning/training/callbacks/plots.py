"""Figures of a run: SVG in its report, PNG beside it. A plot is a function of matplotlib's axes."""

import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from .run_metrics import Point, RunMetrics

Plot = Callable[[Any], None]


def plot_learning_curves(axes: Any, metrics: RunMetrics) -> None:
    """Bits of training and of validation over tokens read."""
    for stage, style in (("train", {"linewidth": 1}), ("val", {"marker": "o", "markersize": 4})):
        plot_curve(axes, metrics.curve(f"{stage}/{metrics.bits}"), label=stage, **style)
    axes.set(ylabel=metrics.bits.replace("_", " "))
    if axes.lines:
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "no finite loss", transform=axes.transAxes, ha="center")


def plot_from_zero(axes: Any, points: list[Point]) -> None:
    """A metric that is 0 or more, over tokens read."""
    plot_curve(axes, points, linewidth=1)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] > 1000:
        abbreviate_numbers(axes.yaxis)


def plot_memory_gain(axes: Any, metrics: RunMetrics, unit: str) -> None:
    """Nats of a token that memory saves in validation, over tokens read."""
    axes.axhline(0, color="black", linewidth=0.8)
    plot_curve(axes, metrics.curve("val/memory_gain"), marker="o", markersize=4)
    axes.set(ylabel=f"nats per {unit}")


def plot_loss_by_position(axes: Any, nats_by_position: list[list[float]], unit: str) -> None:
    """Mean nats at each position of a segment."""
    axes.plot(*zip(*nats_by_position, strict=True), linewidth=1.5)
    axes.set(xlabel=f"{unit}s of the segment already read", ylabel=f"nats per {unit}")


def plot_curve(axes: Any, points: list[Point], **style: Any) -> None:
    """The finite points of a curve over tokens read."""
    if finite := [point for point in points if math.isfinite(point[1])]:
        axes.plot(*zip(*finite, strict=True), **style)
    axes.set(xlabel="tokens read")
    abbreviate_numbers(axes.xaxis)


def abbreviate_numbers(axis: Any) -> None:
    """Label an axis with 2M in place of 2000000."""
    from matplotlib.ticker import EngFormatter

    axis.set_major_formatter(EngFormatter(sep=""))


def make_figure(plot: Plot, inches: tuple[float, float]) -> Any:
    """A matplotlib figure of one plot."""
    # Slow to import, and of no use to those who only evaluate.
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    plot(axes)
    return figure


def save_png(plot: Plot, path: Path) -> None:
    """Write a figure as a PNG file."""
    make_figure(plot, (7, 4)).savefig(path, dpi=120)


def to_svg(plot: Plot, inches: tuple[float, float]) -> str:
    """A figure as an SVG element whose text stays text."""
    from matplotlib import rc_context

    file = StringIO()
    with rc_context({"svg.fonttype": "none"}):
        make_figure(plot, inches).savefig(file, format="svg", transparent=True)
    return file.getvalue()[file.getvalue().index("<svg") :]
