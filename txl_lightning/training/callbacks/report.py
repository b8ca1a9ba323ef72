"""report.html: a run on one page, from metrics.csv and the validation probe; its figures as PNG."""

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from io import StringIO
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...analysis.plots import draw_attention, open_figure
from ...errors import require
from ...evaluation.environment import describe_environment
from ...files import write_text
from .run_metrics import RunMetrics, format_columns, is_fitting, read_metrics, run_folder
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

# A plot draws in matplotlib's axes.
Plot = Callable[[Any], None]
SECONDS = 60.0
"""At least, between two pages while training goes on."""
LARGE, SMALL = (4.6, 2.8), (3.6, 2.1)
"""Inches of figures."""
FROM_ZERO = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/mfu": "model FLOP utilisation",
    "train/mem_filled": "states remembered",
    "train/peak_memory_bytes": "peak memory, bytes",
}
"""Metrics that are drawn small, unless they are 0 throughout."""
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
CONTROLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
"""Characters that a page must not hold, or that reverse its text, and the signs shown for them."""


@dataclass(frozen=True)
class ReportConfig:
    """Settings of the report of a run."""

    html: bool = True
    """Write report.html, curve.png and attention.png in the run's folder."""
    sample_len: int = 200
    """Tokens that the model writes after each validation; 0: none."""

    def __post_init__(self) -> None:
        require(self.sample_len >= 0, "sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write report.html after the first validation, now and then, and when training ends.

    Nothing that fails here stops a run: it is a warning.
    """

    def __init__(self, probe: ValidationProbe) -> None:
        self.probe, self.folder = probe, Path()
        self.written_at = -math.inf

    def setup(self, trainer: Trainer, pl_module: Any, stage: str) -> None:
        # On every rank: the ranks agree on the folder together.
        self.folder = run_folder(trainer)

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer):
            self.attempt(self.save_plots, trainer)
            if time.monotonic() - self.written_at > SECONDS:
                self.attempt(self.write_page, trainer, "training")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        self.attempt(self.save_plots, trainer)
        self.attempt(self.write_page, trainer, "finished")

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
        state = "stopped" if stopped else f"ended by: {exception}"
        if self.folder != Path():
            self.attempt(self.write_page, trainer, state)

    def attempt(self, action: Callable[..., None], trainer: Trainer, *args: Any) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            action(trainer, *args)
        # Whatever it is: what is saved and said after it matters more.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")

    def save_plots(self, trainer: Trainer) -> None:
        metrics = read_metrics(self.folder, trainer.loggers)
        plots = make_plots(metrics, self.probe, trainer.lightning_module.unit)
        for name in ("curve", "attention"):
            if name in plots:
                with open_figure(self.folder / f"{name}.png") as (axes,):
                    plots[name](axes)

    def write_page(self, trainer: Trainer, state: str) -> None:
        metrics, config = read_metrics(self.folder, trainer.loggers), self.folder / "config.yaml"
        values = {"title": self.folder, "state": state}
        values["config"] = config.read_text() if config.is_file() else ""
        page = render_page(trainer, metrics, self.probe, **values)
        write_text(page, self.folder / "report.html")
        self.written_at = time.monotonic()


def render_page(
    trainer: Trainer, metrics: RunMetrics, probe: ValidationProbe, **values: Any
) -> str:
    # It takes a while to import, and only fit needs it.
    from jinja2 import Environment, FileSystemLoader

    templates = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    module, rows = trainer.lightning_module, metrics.validations
    plots = make_plots(metrics, probe, module.unit)
    small = {
        title: to_svg(partial(plot_from_zero, metrics=metrics, name=name), SMALL)
        for name, title in FROM_ZERO.items()
        if any(value for _, value in metrics.curve(name))
    }
    return templates.get_template("report.html.j2").render(
        trainer=trainer,
        facts=headline_facts(metrics, module.net),
        plots={name: to_svg(plot, LARGE) for name, plot in plots.items()} | {"small": small},
        table=format_columns(rows),
        best_row=rows.index(metrics.best) if metrics.best else None,
        mem_len=module.net.config.mem_len,
        samples=[(step, text.translate(CONTROLS)) for step, text in reversed(probe.samples)],
        prompt_len=probe.prompt_len,
        run=describe_run(trainer),
        **values,
    )


def describe_run(trainer: Trainer) -> dict[str, Any]:
    run = describe_environment(trainer.strategy.root_device)
    run |= {**run.pop("machine"), "devices": trainer.world_size, "precision": trainer.precision}
    if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
        run["validated"] = "the average of the weights (WeightAverage), not themselves"
    return run


def headline_facts(metrics: RunMetrics, net: Any) -> dict[str, str]:
    facts = {}
    if best := metrics.best:
        name = metrics.bits if metrics.bits in best else "nats"
        facts[f"best validation, {name.replace('_', ' ')}"] = f"{best[name]:,.3f}"
        facts["at step"] = f"{best['step']:,}"
        facts["right answers"] = f"{best.get('answer_accuracy', math.nan):.1%}"
        facts["memory gain, nats"] = f"{best.get('memory_gain', math.nan):z.3f}"
    rates = [rate for _, rate in metrics.curve("train/tokens_per_second")] or [math.nan]
    facts |= {
        "tokens read": f"{metrics.last('train/tokens_seen'):,.0f}",
        "time": str(timedelta(seconds=int(metrics.last("train/seconds")))),
        "tokens per second, median": f"{median(rates):,.0f}",
        "parameters": f"{sum(p.numel() for p in net.parameters()):,}",
        "memory, states a row": f"{net.config.mem_len:,}",
    }
    return {name: text for name, text in facts.items() if "nan" not in text}


def make_plots(metrics: RunMetrics, probe: ValidationProbe, unit: str) -> dict[str, Plot]:
    """Return the large figures of a run by name, as far as there is something to draw."""
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


def to_svg(plot: Plot, inches: tuple[float, float]) -> str:
    from matplotlib import rc_context

    file, options = StringIO(), {"format": "svg", "transparent": True}
    # Text stays text.
    style = {"svg.fonttype": "none", "axes.spines.top": False, "axes.spines.right": False}
    with rc_context(style), open_figure(file, 1, inches, **options) as (axes,):
        plot(axes)
    return file.getvalue()[file.getvalue().index("<svg") :]
