"""Figures: contrast of lines, ticks without overlap, and fast legends."""

import itertools
import warnings

import pytest
from matplotlib.figure import Figure

from txl_lightning.analysis.plots import PALETTE, draw_learning_curves, to_svg, use_log_axis
from txl_lightning.runs.metrics_table import RunMetrics

BACKGROUNDS = ("#ffffff", "#14171d")  # of the light page and of the dark one


def luminance(color: str) -> float:
    """Return the relative luminance of WCAG 2."""
    parts = [int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return sum(c * weight for c, weight in zip(linear, (0.2126, 0.7152, 0.0722), strict=True))


@pytest.mark.parametrize("color", PALETTE)
@pytest.mark.parametrize("background", BACKGROUNDS)
def test_lines_have_a_contrast_of_3_with_a_light_and_a_dark_page(color, background):
    dark, light = sorted((luminance(color), luminance(background)))
    assert (light + 0.05) / (dark + 0.05) > 3


@pytest.mark.parametrize(
    "values",
    [(0.9, 22.0), (0.6, 2257.0), (1.9, 6.8), (1.1, 10.9), (1.0, 19.0), (0.5, 499.0), (0.01, 20.0)],
)
def test_ticks_of_a_logarithmic_axis_are_plain_numbers_that_do_not_overlap(values):
    figure = Figure((3.6, 2.8), layout="constrained")
    axes = figure.subplots()
    axes.plot(values)
    use_log_axis(axes)
    figure.draw_without_rendering()
    boxes = [
        label.get_window_extent()
        for label in axes.get_yticklabels(which="both")
        if label.get_text() and axes.get_ylim()[0] <= label.get_position()[1] <= axes.get_ylim()[1]
    ]
    assert axes.get_yscale() == "log"
    assert len(boxes) >= 3
    assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))


@pytest.mark.parametrize("values", [(5.0, 6.0), (0.0, 6.0), (-1.0, 6.0), ()])
def test_an_axis_is_linear_if_values_are_close_or_have_no_logarithm(values):
    axes = Figure().subplots()
    axes.plot(values)
    use_log_axis(axes)
    assert axes.get_yscale() == "linear"


def test_a_legend_is_placed_without_a_search_among_many_points(monkeypatch):
    """Matplotlib warns if its search for the best location is slow."""
    rows = [{"train/tokens_seen": n, "train/nats": 1 + 9 / n} for n in range(1, 100)]
    monkeypatch.setattr("time.perf_counter", itertools.count(step=10.0).__next__)
    with warnings.catch_warnings(action="error"):
        svg = to_svg(lambda axes: draw_learning_curves(axes, RunMetrics(rows)), (4, 3))
    assert "training tokens" in svg
    assert "#000000" not in svg
