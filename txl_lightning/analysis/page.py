"""HTML pages of runs, without scripts or external resources."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..runs.metrics_table import RunMetrics
from .plots import Draw, draw_from_zero, to_svg

LARGE, SMALL = (4.6, 2.8), (2.1, 1.5)  # width and height of charts in inches
FROM_ZERO = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/mfu": "model FLOPs utilization",
    "train/mem_filled": "cached hidden states",
    "train/peak_memory_bytes": "peak memory (bytes)",
}
"""Metrics with a small chart, unless all their values are 0."""


def render_page(
    template: str, runs: Sequence[RunMetrics], draws: Mapping[str, Draw], **values: Any
) -> str:
    """Return a page with a large chart for each of `draws` and small ones of the runs' metrics."""
    # jinja2 is slow to import, and needed only to write a page.
    from jinja2 import Environment, FileSystemLoader

    plots = {name: to_svg(draw, LARGE) for name, draw in draws.items()}
    small = {
        title: to_svg(partial(draw_from_zero, runs=runs, name=name), SMALL)
        for name, title in FROM_ZERO.items()
        if any(value for metrics in runs for _, value in metrics.curve(name))
    }
    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    return templates.get_template(template).render(plots=plots, small=small, **values)
