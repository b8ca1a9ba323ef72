"""HTML pages without scripts or external resources."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ..evaluation.run_metrics import RunMetrics
from .plots import draw_from_zero, to_svg

LARGE, SMALL = (4.6, 2.8), (2.1, 1.5)
"""Width and height of figures in inches."""
FROM_ZERO = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/mfu": "model FLOPs utilization",
    "train/mem_filled": "cached hidden states",
    "train/peak_memory_bytes": "peak memory (bytes)",
}
"""Metrics with a small chart, unless all their values are 0."""


def draw_small(runs: Sequence[RunMetrics]) -> dict[str, str]:
    """Return a small SVG chart by title, for each metric that any of the runs has."""
    return {
        title: to_svg(partial(draw_from_zero, runs=runs, name=name), SMALL)
        for name, title in FROM_ZERO.items()
        if any(value for metrics in runs for _, value in metrics.curve(name))
    }


def render_page(template: str, **values: Any) -> str:
    # jinja2 is slow to import, and needed only to write a page.
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    return templates.get_template(template).render(**values)
