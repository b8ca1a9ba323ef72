"""compare: settings, results and curves of several runs."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..analysis.page import render_page
from ..analysis.plots import PALETTE, Draw, draw_memory_gain, draw_runs, use_log_axis
from ..files import check_file_writable, write_text
from ..runs.listing import find_runs, load_run, shorten_paths
from ..runs.metrics_table import RunMetrics, collect_by_key, find_differences
from ..tables import align_columns


def compare_command(runs: tuple[str, ...], out: str | None = None) -> None:
    """Compare runs on one page: settings that differ, results and curves; print all but the curves.

    Args:
        runs: Folders of runs, or folders with several runs.
        out: HTML file to write; left out, compare.html in the folder that contains all the runs.
    """
    folders = list(dict.fromkeys(folder for path in runs for folder in find_runs(path, "runs")))
    root = Path(os.path.commonpath([folder.absolute() for folder in folders]))
    path = Path(out or root / "compare.html")
    check_file_writable("out", path)
    loaded, names = [load_run(folder) for folder in folders], shorten_paths(folders)
    settings = find_differences([run.settings for run in loaded])
    facts = collect_by_key([run.facts for run in loaded])
    results = {key: [cell or "-" for cell in cells] for key, cells in facts.items()}
    table = [["", *names, ""], *([key, *row, ""] for key, row in (settings | results).items())]
    print(align_columns(table))
    metrics = [run.metrics for run in loaded]
    values = {"names": names, "palette": PALETTE, "settings": settings, "results": results}
    values["title"] = f"{len(names)} runs in {root.name}"
    write_text(render_page("compare.html.j2", metrics, choose_charts(metrics), **values), path)
    print(f"written to {path}")


def choose_charts(runs: Sequence[RunMetrics]) -> dict[str, Draw]:
    """Return the large charts by title: metrics that any run has, in a unit that all have."""
    units = {metrics.bits for metrics in runs if metrics.rows}
    bits = units.pop() if len(units) == 1 else "nats"
    charts = {
        f"val/{bits}": ("Validation loss", partial(draw_loss, name=f"val/{bits}")),
        f"train/{bits}": ("Training loss", partial(draw_loss, name=f"train/{bits}")),
        "val/memory_gain": ("Memory gain", partial(draw_memory_gain, unit="token")),
    }
    return {
        title: partial(draw, runs=runs)
        for name, (title, draw) in charts.items()
        if any(metrics.curve(name) for metrics in runs)
    }


def draw_loss(axes: Any, runs: Sequence[RunMetrics], name: str) -> None:
    draw_runs(axes, runs, name, name.partition("/")[2].replace("_", " "))
    use_log_axis(axes)
