"""A run's figures: as files, and as parts of a page."""

import math
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

from ...analysis.plots import draw_attention
from .history import History, Point
from .memory_gain import SAVED
from .validation_probe import ValidationProbe

Drawing = Callable[[Any], None]
WIDE, NARROW, SMALL = (8.4, 3.6), (4.2, 3.2), (3.6, 2.1)
"""Inches of a figure; which one a page shows depends on its window."""


def learning(history: History) -> Drawing:
    """Bits over tokens read, of training and of validation."""

    def draw(axes: Any) -> None:
        name = history.bits
        line(axes, history.training(name), label="training", linewidth=1)
        line(axes, history.validation(name), label="validation", marker="o", markersize=4)
        axes.set(xlabel="tokens read", ylabel=name.replace("_", " "))
        if axes.lines:
            axes.legend(frameon=False)
        else:
            axes.text(0.5, 0.5, "no finite loss", transform=axes.transAxes, ha="center")

    return draw


def single(points: list[Point]) -> Drawing:
    """One number, from 0, over tokens read."""

    def draw(axes: Any) -> None:
        from matplotlib.ticker import EngFormatter

        line(axes, points, linewidth=1)
        axes.set(xlabel="tokens read")
        axes.set_ylim(bottom=0)
        if axes.get_ylim()[1] > 1000:
            axes.yaxis.set_major_formatter(EngFormatter(sep=""))

    return draw


def errors(nats: list[Point], unit: str) -> Drawing:
    """Loss at each place of a segment."""

    def draw(axes: Any) -> None:
        axes.plot(*zip(*nats, strict=True), linewidth=1.5)
        axes.set(xlabel=f"{unit}s of the segment already read", ylabel=f"nats per {unit}")

    return draw


def saved(history: History, unit: str) -> Drawing:
    """What memory saves, over tokens read."""

    def draw(axes: Any) -> None:
        axes.axhline(0, color="black", linewidth=0.8)
        line(axes, history.validation(SAVED), marker="o", markersize=4)
        axes.set(xlabel="tokens read", ylabel=f"nats per {unit}")

    return draw


def attention(looks: ValidationProbe, unit: str) -> Drawing:
    """How far back each head looks."""
    return lambda axes: draw_attention(axes, looks.attention, unit)


def line(axes: Any, points: list[Point], **style: Any) -> None:
    """A curve over tokens, if there is one."""
    from matplotlib.ticker import EngFormatter

    if finite := [point for point in points if math.isfinite(point[1])]:
        axes.plot(*zip(*finite, strict=True), **style)
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def drawn(drawing: Drawing, inches: tuple[float, float]) -> Any:
    """The figure."""
    # Slow to import, and of no use to who only evaluates.
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    drawing(axes)
    return figure


def save(drawing: Drawing, path: Path) -> None:
    """Write a picture."""
    drawn(drawing, (7, 4)).savefig(path, dpi=120)


def svg(drawing: Drawing, inches: tuple[float, float]) -> str:
    """An element of a page, whose words stay words."""
    from matplotlib import rc_context

    file = StringIO()
    with rc_context({"svg.fonttype": "none"}):
        drawn(drawing, inches).savefig(file, format="svg", transparent=True)
    return file.getvalue()[file.getvalue().index("<svg") :]
