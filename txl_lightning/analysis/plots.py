"""Figures of tables and curves: draw_* draws in axes, plot_* writes a file."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import IO, Any

from ..runs.metrics_table import ERROR, RunMetrics
from ..tables import Rows

Draw = Callable[[Any], None]  # a function that draws in matplotlib's axes
PALETTE = (
    "#2f7fd6", "#d1620a", "#2a9152", "#d6406a", "#8e6bd8", "#0f8f9e", "#94741b", "#7d8590",
)  # fmt: skip
"""Line colors: contrast of at least 3.7 with a white page and with a dark one."""
GRAY = PALETTE[-1]
ATTENTION_TITLE = "Attention distance of heads (dot: mean, dash: median, bar: 10-90 %)"
LOG_RATIO = 2.0  # smallest ratio of largest to smallest value for a logarithmic axis
TICKS = {5: (1, 1.5, 2, 2.5, 3, 4, 5, 6, 7, 8), 20: (1, 1.5, 2, 3, 5, 7), 1000: (1, 2, 5)}
"""Ticks in each power of 10, by the largest ratio for which they fit; for larger ratios, one."""
SMOOTHING = 32  # length of a segment divided by half the width of its moving average
LAYER_WIDTH = 0.7  # fraction of the distance between layers over which heads are spread
SMALLEST_GAIN = 0.01  # smallest gain on a logarithmic axis, in percent


def plot_loss_by_position(rows: Rows, path: Path, unit: str) -> None:
    with open_figure(path) as (axes,):
        for mem_len, curve in group_by(rows, "mem_len").items():
            columns = select_columns(curve, "position", "nats", "standard_error")
            label = f"memory of {mem_len:,}" if mem_len else "no memory"
            axes.errorbar(*columns, label=label, elinewidth=0.5)
        axes.set(xlabel=f"position in the segment ({unit}s)", ylabel=f"nats per {unit}")
        axes.set_title("Loss by position in the segment (bar: one standard error)")
        axes.legend(frameon=False, loc="upper right")


def plot_loss_by_memory(rows: Rows, path: Path, unit: str, trained: int) -> None:
    mem_lens = [row["mem_len"] for row in rows]
    labels = [f"{n:,}\nas trained" if n == trained else f"{n:,}" for n in mem_lens]
    title = f"Loss by length of memory (bar: standard error of the gain over {mem_lens[0]:,})"
    names = {"xlabel": f"mem_len ({unit}s)", "ylabel": f"nats per {unit}", "title": title}
    plot_curves(rows, path, labels, {"loss": ("nats", "saved_standard_error")}, **names)


def plot_curves(
    rows: Rows, path: Path, labels: list[str], curves: dict[str, Sequence[str]], **settings: str
) -> None:
    """Plot columns as curves over evenly spaced rows, with error bars by the second column."""
    ticks = range(len(rows))
    with open_figure(path) as (axes,):
        for label, columns in curves.items():
            style = {"fmt": "o-", "markersize": 4, "capsize": 3, "label": label}
            axes.errorbar(ticks, *select_columns(rows, *columns), **style)
        axes.set(**settings)
        axes.set_xticks(ticks, labels)
        if len(curves) > 1:
            axes.legend(frameon=False, loc="best")
            use_log_axis(axes)


def plot_attention(rows: Rows, path: Path, unit: str) -> None:
    with open_figure(path) as (axes,):
        draw_attention(axes, rows, unit)
        axes.set_title(ATTENTION_TITLE)


def draw_attention(axes: Any, rows: Rows, unit: str) -> None:
    """Draw a bar for each head, layer by layer: the 10-90 % range of its attention distance."""
    from matplotlib.colors import LinearSegmentedColormap

    layers = group_by(rows, "layer")
    for layer, heads in layers.items():
        heads = sorted(heads, key=lambda row: row["mean"])
        x = [layer + LAYER_WIDTH * ((n + 0.5) / len(heads) - 0.5) for n in range(len(heads))]
        near, median, far = select_columns(heads, "nearest_tenth", "median", "farthest_tenth")
        axes.vlines(x, near, far, color=GRAY, linewidth=4, alpha=0.5)
        axes.plot(x, median, "_", color="black", markersize=7)
        mean, on_memory = select_columns(heads, "mean", "on_memory")
        colors = LinearSegmentedColormap.from_list("share", PALETTE[:2])
        points = axes.scatter(x, mean, c=on_memory, cmap=colors, vmin=0, vmax=1, s=24, zorder=3)
    if any(row["on_memory"] for row in rows):
        axes.figure.colorbar(points, label="share of attention on memory")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.2)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(list(layers))
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="layer, its heads from near to far", ylabel=f"distance ({unit}s)")


def plot_gains(steps: Rows, recls: Rows, path: Path, unit: str, threshold: float) -> None:
    """Plot the gain of each model from more context, in one panel per share r.

    The dotted line is the threshold: RECL is where the gain falls below it.
    """
    shares = group_by(steps, "r")
    recl = {(row["model"], row["r"]): row for row in recls}
    lines = {}
    with open_figure(path, len(shares)) as panels:
        for axes, (r, rows) in zip(panels, shares.items(), strict=True):
            for model, curve in group_by(rows, "model").items():
                context, gain = select_columns(curve, "context", "gain")
                percent = [max(100 * each, SMALLEST_GAIN) for each in gain]
                style = {"markersize": 3, "linewidth": 1, "label": label_recl(recl[model, r])}
                (lines[model],) = axes.plot(context, percent, "o-", **style)
            axes.axhline(100 * threshold, color=GRAY, linestyle=":")
            positions = "all positions" if r == 1 else f"hardest {100 * r:g} % of positions"
            use_log_axis(axes)
            axes.set(xlabel=f"context c ({unit}s)", title=positions)
            axes.legend(frameon=False, title="RECL", fontsize="small", loc="best")
        step = steps[0]["longer"] - steps[0]["context"]
        panels[0].set_ylabel(f"gain in perplexity of {step:,} more (%)")
        # One legend below all panels, because names are as long as paths.
        style = {"loc": "outside lower center", "frameon": False}
        panels[0].figure.legend(lines.values(), lines, **style)


def label_recl(row: dict[str, Any]) -> str:
    """Return RECL as text, "at least" if even the last gain is above the threshold."""
    return f"{'' if row['found'] else 'at least '}{row['recl']:,}"


def draw_curve(axes: Any, metrics: RunMetrics, name: str, **style: Any) -> None:
    """Draw the finite values of a metric over training tokens, with standard errors as bars."""
    from matplotlib.ticker import EngFormatter

    errors = dict(metrics.curve(name + ERROR))
    if finite := [point for point in metrics.curve(name) if math.isfinite(point[1])]:
        # At most 500 points, including the last one: a figure has few more pixels.
        finite = finite[:: -math.ceil(len(finite) / 500)][::-1]
        tokens, values = zip(*finite, strict=True)
        bars = [errors.get(n, 0.0) for n in tokens] if errors else None
        axes.errorbar(tokens, values, bars, **{"linewidth": 1.2, "markersize": 4} | style)
    axes.set(xlabel="training tokens")
    # 2M in place of 2000000.
    axes.xaxis.set_major_formatter(EngFormatter(sep=""))


def draw_learning_curves(axes: Any, metrics: RunMetrics) -> None:
    for stage, label, marker in (("train", "training", ""), ("val", "validation", "o")):
        draw_curve(axes, metrics, f"{stage}/{metrics.bits}", label=label, marker=marker)
    axes.set(ylabel=metrics.bits.replace("_", " "))
    use_log_axis(axes)
    if axes.lines:
        # With many points, the search for the best location takes seconds.
        axes.legend(frameon=False, loc="upper right")


def draw_memory_gain(axes: Any, metrics: RunMetrics, unit: str) -> None:
    axes.axhline(0, color="black", linewidth=0.8)
    draw_curve(axes, metrics, "val/memory_gain", color="C0", marker="o")
    axes.set(ylabel=f"nats per {unit}")


def draw_validations(axes: Any, runs: Mapping[str, RunMetrics]) -> None:
    """Draw the validation loss of several runs by name, in a unit that all of them have."""
    units = {metrics.bits for metrics in runs.values() if metrics.rows}
    unit = units.pop() if len(units) == 1 else "nats"
    for name, metrics in runs.items():
        draw_curve(axes, metrics, f"val/{unit}", label=name, marker="o")
    axes.set(ylabel=unit.replace("_", " "), title="Validation loss")
    use_log_axis(axes)
    if axes.lines:
        # By itself, matplotlib leaves out names that begin with "_".
        names = [curve.get_label() for curve in axes.containers]
        # With many points, the search for the best location takes seconds.
        axes.legend(axes.containers, names, frameon=False, loc="upper right")


def draw_loss_by_position(axes: Any, nats_by_position: list[list[float]], unit: str) -> None:
    """Draw the loss at each position, and a moving average."""
    position, nats = zip(*nats_by_position, strict=True)
    width = len(nats) // SMOOTHING
    windows = [nats[max(0, n - width) : n + width + 1] for n in range(len(nats))]
    axes.plot(position, nats, linewidth=0.8, alpha=0.5)
    axes.plot(position, [sum(each) / len(each) for each in windows], color="C0", linewidth=2)
    axes.set(xlabel=f"position in the segment ({unit}s)", ylabel=f"nats per {unit}")


def draw_from_zero(axes: Any, metrics: RunMetrics, name: str) -> None:
    draw_curve(axes, metrics, name, color="C0", marker="")
    axes.set_ylim(0, 1.05 * axes.get_ylim()[1])
    if axes.get_ylim()[1] > 1000:
        axes.yaxis.set_major_formatter(axes.xaxis.get_major_formatter())


def use_log_axis(axes: Any) -> None:
    """Make the y-axis logarithmic, with plain numbers at ticks, if values differ by LOG_RATIO."""
    from matplotlib.ticker import LogLocator, NullLocator

    values = [y for line in axes.lines for y in line.get_ydata() if math.isfinite(y)]
    if values and 0 < LOG_RATIO * min(values) <= max(values):
        ratio = max(values) / min(values)
        subs = next((subs for most, subs in TICKS.items() if ratio <= most), (1,))
        axes.set_yscale("log")
        axes.yaxis.set_major_locator(LogLocator(subs=subs))
        axes.yaxis.set_major_formatter("{x:,g}")
        axes.yaxis.set_minor_locator(NullLocator())


@contextmanager
def open_figure(
    file: Path | IO[str], count: int = 1, inches: tuple[float, float] | None = None, **options: Any
) -> Iterator[list[Any]]:
    """Yield the axes of panels, side by side with one scale; write the figure at the end."""
    # matplotlib is slow to import, and needed only for figures.
    from cycler import cycler
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    # Keep text in SVG as text.
    style = {"axes.prop_cycle": cycler(color=PALETTE), "svg.fonttype": "none"}
    with rc_context(style | {"axes.spines.top": False, "axes.spines.right": False}):
        figure = Figure(inches or (3.6 * count + 3.4 * (count == 1), 4), layout="constrained")
        panels = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
        for axes in panels:
            axes.grid(color=GRAY, alpha=0.25)
        yield panels
        for text in list_names(figure):
            # "$" in a name begins no mathematics.
            text.set_parse_math(False)
        figure.savefig(file, dpi=120, **options)


def list_names(figure: Any) -> Iterator[Any]:
    """Yield the texts that may have names of the user's: titles, and labels of axes and legends."""
    for axes in figure.axes:
        yield from (axes.title, axes.xaxis.label, axes.yaxis.label)
    for legend in (*figure.legends, *filter(None, (axes.get_legend() for axes in figure.axes))):
        yield from legend.get_texts()


def to_svg(draw: Draw, inches: tuple[float, float]) -> str:
    """Return a figure as SVG for a page, with black replaced by the page's text color."""
    file = StringIO()
    with open_figure(file, 1, inches, format="svg", transparent=True) as (axes,):
        draw(axes)
    return file.getvalue()[file.getvalue().index("<svg") :].replace("#000000", "currentColor")


def group_by(rows: Rows, name: str) -> dict[Any, list[dict[str, Any]]]:
    values = dict.fromkeys(row[name] for row in rows)
    return {value: [row for row in rows if row[name] == value] for value in values}


def select_columns(rows: Rows, *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
