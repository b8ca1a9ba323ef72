"""Figures of a run: SVG in its report, PNG beside it. A plot is a function of matplotlib's axes."""

import math
from collections.abc import Callable
from functools import partial
from io import StringIO
from typing import Any

from ...analysis.plots import draw_attention
from .run_metrics import RunMetrics
from .validation_probe import ValidationProbe

Plot = Callable[[Any], None]
FROM_ZERO = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/mfu": "model FLOP utilisation",
    "train/mem_filled": "states remembered",
    "train/peak_memory_bytes": "peak memory, bytes",
}
"""Metrics that are drawn small, unless they are 0 throughout."""


def make_plots(metrics: RunMetrics, probe: ValidationProbe, unit: str) -> dict[str, Plot]:
    """The large figures of a run by name, as far as there is something to draw."""
    plots: dict[str, Plot] = {}
    if metrics.rows:
        plots["curve"] = partial(plot_learning_curves, metrics=metrics)
    if metrics.curve("val/memory_gain"):
        plots["memory_gain"] = partial(plot_memory_gain, metrics=metrics, unit=unit)
    if len(nats := probe.nats_by_position) > 1:
        plots["position"] = partial(plot_loss_by_position, nats_by_position=nats, unit=unit)
    if rows := probe.attention:
        plots["attention"] = partial(draw_attention, rows=rows, unit=unit)
    return plots


def plot_learning_curves(axes: Any, metrics: RunMetrics) -> None:
    for stage, marker in (("train", ""), ("val", "o")):
        plot_curve(axes, metrics, f"{stage}/{metrics.bits}", label=stage, marker=marker)
    axes.set(ylabel=metrics.bits.replace("_", " "))
    if axes.lines:
        axes.legend(frameon=False)
    else:
        axes.text(0.5, 0.5, "no finite loss", transform=axes.transAxes, ha="center")


def plot_memory_gain(axes: Any, metrics: RunMetrics, unit: str) -> None:
    axes.axhline(0, color="black", linewidth=0.8)
    plot_curve(axes, metrics, "val/memory_gain", marker="o")
    axes.set(ylabel=f"nats per {unit}")


def plot_loss_by_position(axes: Any, nats_by_position: list[list[float]], unit: str) -> None:
    axes.plot(*zip(*nats_by_position, strict=True), linewidth=1.5)
    axes.set(xlabel=f"{unit}s of the segment already read", ylabel=f"nats per {unit}")


def plot_from_zero(axes: Any, metrics: RunMetrics, name: str) -> None:
    plot_curve(axes, metrics, name)
    axes.set_ylim(bottom=0)
    if axes.get_ylim()[1] > 1000:
        axes.yaxis.set_major_formatter(axes.xaxis.get_major_formatter())


def plot_curve(axes: Any, metrics: RunMetrics, name: str, **style: Any) -> None:
    from matplotlib.ticker import EngFormatter

    if finite := [point for point in metrics.curve(name) if math.isfinite(point[1])]:
        axes.plot(*zip(*finite, strict=True), linewidth=1, markersize=4, **style)
    axes.set(xlabel="tokens read")
    # 2M in place of 2000000.
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def make_figure(plot: Plot, inches: tuple[float, float]) -> Any:
    # Slow to import, and of no use to those who only evaluate.
    from matplotlib.figure import Figure

    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    plot(axes)
    return figure


def to_svg(plot: Plot, inches: tuple[float, float]) -> str:
    from matplotlib import rc_context

    file = StringIO()
    # So that text stays text.
    with rc_context({"svg.fonttype": "none"}):
        make_figure(plot, inches).savefig(file, format="svg", transparent=True)
    return file.getvalue()[file.getvalue().index("<svg") :]
