"""compare: several runs laid over each other."""

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..analysis.page import LARGE, draw_small, render_page
from ..analysis.plots import PALETTE, draw_memory_gain, draw_runs, to_svg, use_log_axis
from ..evaluation.run_metrics import RunMetrics, collect_by_key, find_differences
from ..evaluation.tables import align_columns
from ..files import check_file_writable, write_text
from .runs import find_runs, load_run_folder, shorten_paths


def compare_command(runs: tuple[str, ...], out: str | None = None) -> None:
    """Compare runs: the settings that differ, the results and the curves, on one page.

    Args:
        runs: Folders of runs, or folders with several.
        out: The page to write; left out, compare.html in the folder that holds all of the runs.
    """
    folders = list(dict.fromkeys(folder for root in runs for folder in find_runs(root, "runs")))
    place = os.path.commonpath([folder.absolute() for folder in folders])
    path = Path(out or Path(place, "compare.html"))
    check_file_writable("out", path)
    loaded, names = [load_run_folder(folder) for folder in folders], shorten_paths(folders)
    settings = find_differences([run.settings for run in loaded])
    facts = collect_by_key([run.facts for run in loaded])
    results = {key: [cell or "-" for cell in cells] for key, cells in facts.items()}
    table = [["", *names, ""], *([key, *row, ""] for key, row in (settings | results).items())]
    print(align_columns(table))
    metrics = [run.metrics for run in loaded]
    page = render_page(
        "compare.html.j2",
        title=f"{len(names)} runs in {Path(place).name}",
        names=names,
        palette=PALETTE,
        settings=settings,
        results=results,
        plots=draw_plots(metrics),
        small=draw_small(metrics),
    )
    write_text(page, path)
    print(f"written to {path}")


def draw_plots(runs: Sequence[RunMetrics]) -> dict[str, str]:
    """Return the large charts as SVG by their titles, in a unit that all of the runs have.

    A metric that no run has is left out.
    """
    units = {metrics.bits for metrics in runs if metrics.rows}
    bits = units.pop() if len(units) == 1 else "nats"
    draws = {
        f"val/{bits}": ("Validation loss", partial(draw_loss, name=f"val/{bits}")),
        f"train/{bits}": ("Training loss", partial(draw_loss, name=f"train/{bits}")),
        "val/memory_gain": ("Memory gain", partial(draw_memory_gain, unit="token")),
    }
    return {
        title: to_svg(partial(draw, runs=runs), LARGE)
        for name, (title, draw) in draws.items()
        if any(metrics.curve(name) for metrics in runs)
    }


def draw_loss(axes: Any, runs: Sequence[RunMetrics], name: str) -> None:
    draw_runs(axes, runs, name, name.partition("/")[2].replace("_", " "))
    use_log_axis(axes)
