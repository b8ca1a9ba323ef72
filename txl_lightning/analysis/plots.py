"""Tables of analysis as pictures: draw_* draws in axes, plot_* writes a file."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from .recl import THRESHOLD

Rows = Sequence[dict[str, Any]]
# Share of the way to the next layer that a layer's heads take.
LAYER_WIDTH = 0.7
# The smallest gain, in percent, that a logarithmic axis shows.
SMALLEST_GAIN = 0.01


def plot_loss_by_position(rows: Rows, path: Path, unit: str) -> None:
    with open_figure(path) as (axes,):
        for mem_len, curve in group_by(rows, "mem_len").items():
            place, nats, error = select_columns(curve, "position", "nats", "standard_error")
            label = f"memory of {mem_len:,}" if mem_len else "no memory"
            axes.errorbar(place, nats, yerr=error, label=label, elinewidth=0.5)
        axes.set(xlabel=f"{unit}s of the segment already read", ylabel=f"nats per {unit}")
        axes.set_title("Loss by position in the segment (bar: one standard error)")
        axes.legend(frameon=False)


def plot_loss_by_memory(rows: Rows, path: Path, unit: str, trained: int) -> None:
    mem_lens = [row["mem_len"] for row in rows]
    labels = [f"{n:,}" + "\nas trained" * (n == trained) for n in mem_lens]
    title = f"Loss by length of memory (bar: standard error of the gain over {mem_lens[0]:,})"
    names = {"xlabel": f"mem_len ({unit}s)", "ylabel": f"nats per {unit}", "title": title}
    plot_curves(rows, path, labels, {"loss": ("nats", "saved_standard_error")}, **names)


def plot_speed(rows: Rows, path: Path) -> None:
    labels = [f"{row['attention_len']:,}\n{row['speedup']:,.0f} times" for row in rows]
    counts = f"fastest of {rows[0]['segments']} segments, {rows[0]['window_positions']} windows"
    names = {"xlabel": "attention length, and speedup", "ylabel": "ms per token", "yscale": "log"}
    names["title"] = f"Time to evaluate a token ({counts})"
    curves = {"sliding window": ["window_ms_per_token"], "memory": ["memory_ms_per_token"]}
    plot_curves(rows, path, labels, curves, **names)


def plot_latency(rows: Rows, path: Path) -> None:
    labels = [f"{row['batch_size']:,}\n{row['tokens_per_second']:,.0f}/s" for row in rows]
    names = {"xlabel": "batch size, and tokens per second", "ylabel": "ms per token"}
    names["title"] = f"Generation token by token, mem_len {rows[0]['mem_len']:,}"
    plot_curves(rows, path, labels, {"p50": ["p50_ms"], "p99": ["p99_ms"]}, **names)


def plot_curves(
    rows: Rows, path: Path, labels: list[str], curves: dict[str, Sequence[str]], **settings: str
) -> None:
    """Plot curves, each a column and perhaps one of errors; each row has a place of its own."""
    place = range(len(rows))
    with open_figure(path) as (axes,):
        for label, columns in curves.items():
            style = {"fmt": "o-", "markersize": 4, "capsize": 3, "label": label}
            axes.errorbar(place, *select_columns(rows, *columns), **style)
        axes.set(**settings)
        axes.set_xticks(place, labels)
        axes.legend(frameon=False)


def plot_attention(rows: Rows, path: Path, unit: str) -> None:
    with open_figure(path) as (axes,):
        draw_attention(axes, rows, unit)
        axes.set_title("Attention distance of heads (dot: mean, dash: median, stroke: 10-90 %)")


def draw_attention(axes: Any, rows: Rows, unit: str) -> None:
    """Draw a stroke for each head, layer by layer: where four fifths of its attention lie."""
    layers = group_by(rows, "layer")
    for layer, heads in layers.items():
        heads = sorted(heads, key=lambda row: row["mean"])
        place = [layer + LAYER_WIDTH * ((n + 0.5) / len(heads) - 0.5) for n in range(len(heads))]
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
    """Plot, in a panel for each share r, the gain of each model's next step of context."""
    shares, recl = group_by(steps, "r"), {(row["model"], row["r"]): row for row in found}
    lines = {}
    with open_figure(path, len(shares)) as panels:
        for axes, (r, rows) in zip(panels, shares.items(), strict=True):
            for model, curve in group_by(rows, "model").items():
                context, gain = select_columns(curve, "context", "gain")
                percent = [max(100 * share, SMALLEST_GAIN) for share in gain]
                style = {"markersize": 3, "linewidth": 1, "label": label_recl(recl[model, r])}
                (lines[model],) = axes.plot(context, percent, "o-", **style)
            axes.axhline(100 * THRESHOLD, color="gray", linestyle=":")
            which = "all positions" if r == 1 else f"hardest {100 * r:g} % of positions"
            axes.set(yscale="log", xlabel=f"context c ({unit}s)", title=which)
            axes.legend(frameon=False, title="RECL", fontsize="small")
        step = steps[0]["longer"] - steps[0]["context"]
        panels[0].set_ylabel(f"gain in perplexity of {step:,} more (%)")
        # One under all panels: names are as long as paths.
        where = {"loc": "outside lower center", "frameon": False}
        panels[0].figure.legend(lines.values(), lines, **where)


def label_recl(row: dict[str, Any]) -> str:
    """Return RECL in words: a lower bound, where even the last gain is above the threshold."""
    return f"{'' if row['found'] else 'at least '}{row['recl']:,}"


@contextmanager
def open_figure(
    file: Path | IO[str], count: int = 1, inches: tuple[float, float] | None = None, **options: Any
) -> Iterator[list[Any]]:
    """Yield the axes of panels, side by side and on one scale; write the picture at the end."""
    # Slow to import, and of no use to who only measures.
    from matplotlib.figure import Figure

    figure = Figure(inches or (3.6 * count + 3.4 * (count == 1), 4), layout="constrained")
    panels = list(figure.subplots(1, count, sharey=True, squeeze=False)[0])
    for axes in panels:
        axes.grid(alpha=0.3)
    yield panels
    figure.savefig(file, dpi=120, **options)


def group_by(rows: Rows, name: str) -> dict[Any, list[dict[str, Any]]]:
    values = dict.fromkeys(row[name] for row in rows)
    return {value: [row for row in rows if row[name] == value] for value in values}


def select_columns(rows: Rows, *names: str) -> list[list[Any]]:
    return [[row[name] for row in rows] for name in names]
