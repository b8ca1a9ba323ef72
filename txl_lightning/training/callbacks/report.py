"""report.html: a run on one page, from metrics.csv and the validation probe; its figures as PNG."""

import math
import time
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...analysis.plots import draw_attention
from ...errors import require
from ...evaluation.environment import describe_environment
from ...files import write_text
from . import summary
from .plots import (
    Plot,
    plot_from_zero,
    plot_learning_curves,
    plot_loss_by_position,
    plot_memory_gain,
    save_png,
    to_svg,
)
from .run_metrics import RunMetrics, is_fitting, read_metrics, run_folder
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

SECONDS = 60.0
"""At least, between two pages while training goes on."""
SMALL = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/model_flops_per_second": "model FLOP per second",
    "train/mem_filled": "states remembered",
    "train/peak_memory_bytes": "peak memory, bytes",
}
"""Metrics that are drawn small, unless they are 0 throughout."""
WIDE, NARROW, SMALL_SIZE = (8.4, 3.6), (4.2, 3.2), (3.6, 2.1)
"""Inches of a figure; which one the page shows depends on its window."""
CONTROLS = {code: 0x2400 + code for code in range(32) if code not in (9, 10)} | {0x7F: 0x2421}
CONTROLS |= dict.fromkeys([*range(0x202A, 0x202F), *range(0x2066, 0x206A)], 0xFFFD)
"""Characters that a page must not hold, or that reverse its text, and the signs shown for them."""


@dataclass(frozen=True)
class ReportConfig:
    """What a run reports of itself."""

    html: bool = True
    """Write report.html, curve.png and attention.png in the run's folder."""
    sample_len: int = 200
    """Tokens that the model writes after each validation; 0: none."""

    def __post_init__(self) -> None:
        require(self.sample_len >= 0, "report.sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write report.html after the first validation, now and then, and when training ends.

    Nothing that fails here stops a run: it is a warning.

    Args:
        probe: what was measured in validations; its notes are kept in the run's folder.
    """

    def __init__(self, probe: ValidationProbe) -> None:
        self.probe, self.folder = probe, Path()
        self.written_at, self.plotted_step = -math.inf, -1

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        # On every rank: the ranks agree on the folder together.
        self.folder = run_folder(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.attempt(trainer, self.probe.load, self.folder / "probe.json", trainer.global_step)

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if is_fitting(trainer):
            self.attempt(trainer, self.save_plots, trainer)
            if time.monotonic() - self.written_at > SECONDS:
                self.attempt(trainer, self.write_page, trainer, "training")

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.attempt(trainer, self.save_plots, trainer)
        self.attempt(trainer, self.write_page, trainer, "finished")

    def on_exception(
        self, trainer: Trainer, pl_module: LightningModule, exception: BaseException
    ) -> None:
        if self.folder != Path():
            stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
            state = "stopped" if stopped else f"ended by: {exception}"
            self.attempt(trainer, self.write_page, trainer, state)

    def attempt(self, trainer: Trainer, action: Any, *args: Any) -> None:
        """Do something on rank 0; a failure is a warning."""
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            action(*args)
        # Whatever it is: what is saved and said after it matters more.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")

    def save_plots(self, trainer: Trainer) -> None:
        """Write curve.png, attention.png and the probe's notes, if they are new."""
        if self.plotted_step == trainer.global_step:
            return
        self.plotted_step = trainer.global_step
        for logger in trainer.loggers:
            logger.save()
        metrics, unit = read_metrics(self.folder), trainer.lightning_module.unit
        if metrics.rows:
            save_png(partial(plot_learning_curves, metrics=metrics), self.folder / "curve.png")
        if rows := self.probe.attention:
            plot = partial(draw_attention, rows=rows, unit=unit)
            save_png(plot, self.folder / "attention.png")
        self.probe.save(self.folder / "probe.json")

    def write_page(self, trainer: Trainer, state: str) -> None:
        """Write report.html, whole or not at all."""
        for logger in trainer.loggers:
            logger.save()
        config = self.folder / "config.yaml"
        context = describe_page(trainer, read_metrics(self.folder), self.probe)
        context |= {"title": str(self.folder), "status": f"{state}, {context['status']}"}
        context["config"] = config.read_text() if config.is_file() else ""
        write_text(render_page(context), self.folder / "report.html")
        self.written_at = time.monotonic()


def render_page(context: dict[str, Any]) -> str:
    """The page as HTML."""
    # It takes a while to import, and only fit needs it.
    from jinja2 import Environment, FileSystemLoader

    templates = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=templates, autoescape=True).get_template("report.html.j2")
    return template.render(context)


def describe_page(trainer: Trainer, metrics: RunMetrics, probe: ValidationProbe) -> dict[str, Any]:
    """The values of the page's template."""
    module, total = trainer.lightning_module, trainer.max_steps
    steps = f"step {trainer.global_step:,}" + (f" of {total:,}" if total > 0 else "")
    run = describe_run(trainer)
    rows, cut = metrics.validations, probe.prompt_len
    texts = [(step, text.translate(CONTROLS)) for step, text in reversed(probe.samples)]
    return {
        "status": f"{steps}; {run['date']}",
        "facts": headline_facts(trainer, metrics),
        "plots": make_plots(metrics, probe, module.unit),
        "table": summary.format_columns(rows),
        "best_row": rows.index(metrics.best) if metrics.best else None,
        "mem_len": module.net.config.mem_len,
        "samples": [{"step": n, "prompt": t[:cut], "continuation": t[cut:]} for n, t in texts],
        "run": run,
    }


def headline_facts(trainer: Trainer, metrics: RunMetrics) -> dict[str, str]:
    """The numbers that are looked for first, by what they are called."""
    number, facts = summary.format_number, {}
    if best := metrics.best:
        name = metrics.bits if metrics.bits in best else "nats"
        facts[f"best validation, {name.replace('_', ' ')}"] = number(best[name])
        facts["at step"] = number(best["step"])
        if "answer_accuracy" in best:
            facts["right answers"] = f"{best['answer_accuracy']:.1%}"
        if "memory_gain" in best:
            facts["memory gain, nats"] = number(best["memory_gain"])
    facts["tokens read"] = number(int(metrics.last("train/tokens_seen")))
    facts["time"] = summary.format_duration(metrics.last("train/seconds"))
    if rates := [rate for _, rate in metrics.curve("train/tokens_per_second")]:
        facts["tokens per second, median"] = f"{median(rates):,.0f}"
    net = trainer.lightning_module.net
    facts["parameters"] = number(sum(summary.count_parameters(net).values()))
    facts["memory, states a row"] = number(net.config.mem_len)
    return facts


def make_plots(metrics: RunMetrics, probe: ValidationProbe, unit: str) -> dict[str, Any]:
    """SVG of each figure by name: wide and narrow, or small, by its title; "" where none is."""
    plots: dict[str, Plot] = {}
    if metrics.rows:
        plots["learning_curves"] = partial(plot_learning_curves, metrics=metrics)
    if metrics.curve("val/memory_gain"):
        plots["memory_gain"] = partial(plot_memory_gain, metrics=metrics, unit=unit)
    if len(nats := probe.nats_by_position) > 1:
        plots["position"] = partial(plot_loss_by_position, nats_by_position=nats, unit=unit)
    if rows := probe.attention:
        plots["attention"] = partial(draw_attention, rows=rows, unit=unit)
    figures = {
        name: [to_svg(plot, size) for size in (WIDE, NARROW)] for name, plot in plots.items()
    }
    curves = {title: metrics.curve(name) for name, title in SMALL.items()}
    small = {
        title: to_svg(partial(plot_from_zero, points=points), SMALL_SIZE)
        for title, points in curves.items()
        if any(value for _, value in points)
    }
    return figures | {"small": small}


def describe_run(trainer: Trainer) -> dict[str, Any]:
    """Where and how a run was trained, and the sizes of its parts, in words."""
    module = trainer.lightning_module
    counts = summary.count_parameters(module.net)
    facts: dict[str, Any] = {part: f"{count:,} parameters" for part, count in counts.items()}
    if module.corpus:
        size = summary.full_memory_bytes(trainer, module)
        facts["full memory"] = f"{size:,} bytes on each device"
    facts |= {"devices": trainer.world_size, "precision": trainer.precision}
    if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
        facts["validated"] = "the average of the weights (WeightAverage), not themselves"
    environment = describe_environment(trainer.strategy.root_device)
    machine = environment.pop("machine")
    return facts | environment | machine
