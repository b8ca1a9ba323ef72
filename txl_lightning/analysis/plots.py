"""Tables as pictures."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .recl import THRESHOLD

Rows = Sequence[dict[str, Any]]
ROOM = 0.7
"""What a layer's heads take of the way to the next layer."""
LEAST = 0.01
"""The least gain, in percent, that a picture tells from none."""


def plot_loss_by_position(rows: Rows, path: Path, unit: str) -> None:
    """A curve for each length of memory, in a band of one standard error."""
    figure, (axes,) = make_figure(1)
    for mem_len, curve in group_by(rows, "mem_len").items():
        place, nats, error = select_columns(curve, "position", "nats", "standard_error")
        label = f"memory of {mem_len:,}" if mem_len else "no memory"
        (line,) = axes.plot(place, nats, label=label, linewidth=1.5)
        ends = [(mean - away, mean + away) for mean, away in zip(nats, error, strict=True)]
        low, high = zip(*ends, strict=True)
        axes.fill_between(place, low, high, color=line.get_color(), alpha=0.2, linewidth=0)
    axes.set(xlabel=f"{unit}s of the segment already read", ylabel=f"nats per {unit}")
    axes.set_title("Loss by position in the segment (band: one standard error)", size="medium")
    axes.legend(frameon=False)
    figure.savefig(path, dpi=120)


def plot_loss_by_memory(rows: Rows, path: Path, unit: str, trained: int) -> None:
    """Loss over the length of memory; bars are errors of what each saves."""
    figure, (axes,) = make_figure(1)
    mem_lens, nats, error = select_columns(rows, "mem_len", "nats", "saved_standard_error")
    # Lengths double, and one may be 0: each has a place of its own.
    axes.errorbar(range(len(mem_lens)), nats, yerr=error, fmt="o-", markersize=4, capsize=3)
    axes.set_xticks(range(len(mem_lens)), [f"{mem_len:,}" for mem_len in mem_lens])
    if trained in mem_lens:
        axes.axvline(mem_lens.index(trained), color="gray", linestyle=":", label="as trained")
        axes.legend(frameon=False)
    axes.set(xlabel=f"memory when measured ({unit}s)", ylabel=f"nats per {unit}")
    bars = f"bar: one standard error of the difference from {mem_lens[0]:,}"
    axes.set_title(f"Loss by length of memory ({bars})", size="medium")
    figure.savefig(path, dpi=120)


def plot_speed(rows: Rows, path: Path) -> None:
    """What a token takes, over the attention length."""
    figure, (axes,) = make_figure(1)
    length, memory, window, speedup = select_columns(
        rows, "attention_len", "memory_ms_per_token", "window_ms_per_token", "speedup"
    )
    axes.plot(length, window, "o-", markersize=4, label="sliding window")
    axes.plot(length, memory, "o-", markersize=4, label="memory")
    for at, low, high, times in zip(length, memory, window, speedup, strict=True):
        middle = (low * high) ** 0.5
        axes.annotate(f"{times:,.0f} times", (at, middle), ha="center", size="small")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(length, [f"{at:,}" for at in length])
    axes.margins(x=0.1)
    axes.set(xlabel="tokens that are seen", ylabel="ms per token")
    counts = f"fastest of {rows[0]['segments']} segments, {rows[0]['window_positions']} windows"
    axes.set_title(f"Time to evaluate a token ({counts})", size="medium")
    axes.legend(frameon=False, loc="center left")
    figure.savefig(path, dpi=120)


def plot_latency(rows: Rows, path: Path) -> None:
    """What a token takes when it is written, and how many there are in a second, over rows."""
    figure, axes = make_figure(2, sharey=False)
    batch, half, most, rate = select_columns(
        rows, "batch_size", "p50_ms", "p99_ms", "tokens_per_second"
    )
    axes[0].plot(batch, half, "o-", markersize=4, label="half of them")
    axes[0].plot(batch, most, "o--", markersize=4, label="99 %")
    axes[0].set(ylabel="ms per token, at most")
    axes[0].legend(frameon=False)
    axes[1].plot(batch, rate, "o-", markersize=4)
    axes[1].set(ylabel="tokens per second")
    for each in axes:
        each.set_xscale("log", base=2)
        each.set_xticks(batch, [f"{rows:,}" for rows in batch])
        each.set(xlabel="texts written at once")
        each.set_ylim(bottom=0)
        each.yaxis.set_major_formatter("{x:,g}")
    figure.suptitle(f"Writing token by token, {rows[0]['mem_len']:,} remembered", size="medium")
    figure.savefig(path, dpi=120)


def plot_attention(rows: Rows, path: Path, unit: str) -> None:
    """How far back each head looks."""
    figure, (axes,) = make_figure(1)
    draw_attention(axes, rows, unit)
    marks = "dot: mean, dash: median, stroke: 10-90 %"
    axes.set_title(f"How far back each head looks ({marks})", size="medium")
    figure.savefig(path, dpi=120)


def draw_attention(axes: Any, rows: Rows, unit: str) -> None:
    """A stroke for each head, layer by layer: where four fifths of its attention lie."""
    layers = group_by(rows, "layer")
    for layer, heads in layers.items():
        heads = sorted(heads, key=lambda row: row["mean"])
        place = [layer + ROOM * ((nth + 0.5) / len(heads) - 0.5) for nth in range(len(heads))]
        near, median, far = select_columns(heads, "nearest_tenth", "median", "farthest_tenth")
        axes.vlines(place, near, far, color="lightgray", linewidth=4)
        axes.plot(place, median, "_", color="black", markersize=7)
        mean, share = select_columns(heads, "mean", "on_memory")
        points = axes.scatter(place, mean, c=share, vmin=0, vmax=1, s=24, zorder=3)
    if any(row["on_memory"] for row in rows):
        axes.figure.colorbar(points, label="share of attention on memory")
    axes.set_yscale("symlog", linthresh=1)
    axes.set_ylim(bottom=-0.2)
    axes.yaxis.set_major_formatter("{x:,g}")
    axes.set_xticks(list(layers))
    axes.grid(visible=False, axis="x")
    axes.set(xlabel="layer, its heads from near to far", ylabel=f"distance ({unit}s)")


def plot_gains(steps: Rows, found: Rows, path: Path, unit: str) -> None:
    """A panel for each share r: what a longer context gains each model, and where that ends."""
    shares = group_by(steps, "r")
    figure, all_axes = make_figure(len(shares))
    step, lines = steps[0]["longer"] - steps[0]["context"], {}
    for axes, (r, rows) in zip(all_axes, shares.items(), strict=True):
        recl = {row["model"]: row for row in found if row["r"] == r}
        for model, curve in group_by(rows, "model").items():
            context, gain = select_columns(curve, "context", "gain")
            percent = [max(100 * share, LEAST) for share in gain]
            least = "" if recl[model]["found"] else "at least "
            label = f"{least}{recl[model]['recl']:,}"
            lines[model] = axes.plot(
                context, percent, "o-", markersize=3, linewidth=1, label=label
            )[0]
        axes.axhline(100 * THRESHOLD, color="gray", linestyle=":")
        axes.annotate(
            f"{100 * THRESHOLD:g} %",
            (0.01, 100 * THRESHOLD),
            size="small",
            xycoords=("axes fraction", "data"),
            va="bottom",
            color="gray",
        )
        axes.set(yscale="log", xlabel=f"context c ({unit}s)")
        which = "all positions" if r == 1 else f"hardest {100 * r:g} % of positions"
        axes.set_title(which, size="medium")
        axes.legend(frameon=False, title="RECL", fontsize="small")
    for formatter in (all_axes[0].yaxis.set_major_formatter, all_axes[0].yaxis.set_minor_formatter):
        formatter("{x:g}")
    all_axes[0].set_ylabel(f"gain in perplexity of {step:,} more (%)")
    # One under all panels: names are as long as paths.
    figure.legend(lines.values(), lines, loc="outside lower center", frameon=False, ncols=1)
    figure.savefig(path, dpi=120)


def make_figure(count: int, sharey: bool = True) -> tuple[Any, list[Any]]:
    """A figure and the axes of its panels, side by side, on one scale or not."""
    # Slow to import, and of no use to who only measures.
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * count + 3.4 * (count == 1), 4), layout="constrained")
    all_axes = list(figure.subplots(1, count, sharey=sharey, squeeze=False)[0])
    for axes in all_axes:
        axes.grid(alpha=0.3)
    return figure, all_axes


def group_by(rows: Rows, name: str) -> dict[Any, list[dict[str, Any]]]:
    """The rows of each value of a column."""
    values = dict.fromkeys(row[name] for row in rows)
    return {value: [row for row in rows if row[name] == value] for value in values}


def select_columns(rows: Rows, *names: str) -> list[list[Any]]:
    """Some columns of a table."""
    return [[row[name] for row in rows] for name in names]
