"""Report: report.html, curve.png and attention.png in the folder of a run."""

import gc
import math
import shlex
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...analysis import plots
from ...command_line import PROGRAM
from ...errors import flatten_settings, show_controls
from ...files import write_text
from ...machine import describe_environment
from ...runs.folder import CONFIG, REPORT, run_folder
from ...runs.metrics_table import RunMetrics, find_differences, format_columns, read_metrics
from ..module import LanguageModel
from .save_run import describe_end
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

MIN_SECONDS_BETWEEN_PAGES = 60.0
PICTURES = {"curve": "Learning curves", "attention": plots.ATTENTION_TITLE}
"""Titles of the charts that are also PNG files, by name."""
LARGE = (4.6, 2.8)  # width and height of a chart in inches
SMALL = (2.1, 1.5)
FROM_ZERO = {
    "train/lr": "learning rate",
    "train/grad_norm": "gradient norm",
    "train/tokens_per_second": "tokens per second",
    "train/mem_filled": "cached hidden states",
    "train/peak_memory_bytes": "peak memory (bytes)",
}
"""Metrics with a small chart, unless all their values are 0."""
NEXT_COMMANDS = (
    "generate {} --prompt 'Once upon a time'",
    "evaluate {} --split test",
    "inspect {}",
    "compare {} ANOTHER_RUN",
)
"""Commands that the page suggests; {} is the run's folder."""


class Report(Callback):
    """Write report.html after validations and at the end.

    After the first validation, a page is written only if the last one is old. A failure is a
    warning and does not stop the run. The page shows the settings that differ from `defaults`, by
    dotted key.
    """

    def __init__(self, probe: ValidationProbe, defaults: Mapping[str, Any] | None = None) -> None:
        self.probe = probe
        self.defaults = defaults or {}
        self.folder = Path()
        self.last_write = -math.inf

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        self.folder = run_folder(trainer)

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting:
            self.attempt(self.save_pictures, trainer)
            if time.monotonic() - self.last_write > MIN_SECONDS_BETWEEN_PAGES:
                self.attempt(self.write_page, trainer, "training")

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        self.attempt(self.save_pictures, trainer)
        self.attempt(self.write_page, trainer, "finished")

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        if self.folder != Path():
            self.attempt(self.write_page, trainer, describe_end(exception))

    def attempt(self, action: Callable[..., None], trainer: Trainer, *args: Any) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            action(trainer, *args)
        # Any error: a failed report must stop neither a checkpoint nor the report of an error.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")
        # Figures are cycles of references; those of a page have reached the oldest generation.
        gc.collect(2 if action == self.write_page else 1)

    def read_metrics(self, trainer: Trainer) -> RunMetrics:
        module = trainer.lightning_module
        return read_metrics(self.folder, trainer.loggers, module.tokens_seen, module.seconds)

    def save_pictures(self, trainer: Trainer) -> None:
        metrics = self.read_metrics(trainer)
        charts = choose_charts(metrics, self.probe, trainer.lightning_module.unit)
        for name in PICTURES.keys() & charts.keys():
            with plots.open_figure(self.folder / f"{name}.png") as (axes,):
                charts[name](axes)
                axes.set_title(PICTURES[name])

    def write_page(self, trainer: Trainer, state: str) -> None:
        page = self.render(trainer, self.read_metrics(trainer), state)
        write_text(page, self.folder / REPORT)
        self.last_write = time.monotonic()

    def render(self, trainer: Trainer, metrics: RunMetrics, state: str) -> str:
        # Slow to import, and needed only to write a page.
        from jinja2 import Template

        module = trainer.lightning_module
        rows = metrics.validations
        probe = self.probe
        n_prompt = probe.prompt_len
        path = self.folder / CONFIG
        quoted = shlex.quote(str(self.folder))
        show = partial(show_controls, kept="\t\n")
        config = path.read_text() if path.is_file() else ""
        n_parameter = sum(each.numel() for each in module.net.parameters())
        mem_len = module.net.config.mem_len
        facts = {"parameters": f"{n_parameter:,}", "memory length": f"{mem_len:,} tokens"}
        settings = [self.defaults, flatten_settings(yaml.safe_load(config) or {})]
        template = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
        return Template(template, autoescape=True).render(
            plots={
                name: plots.to_svg(draw, LARGE)
                for name, draw in choose_charts(metrics, probe, module.unit).items()
            },
            small=draw_small_charts(metrics),
            title="/".join(self.folder.absolute().parts[-2:]),
            folder=self.folder.absolute(),
            trainer=trainer,
            state=state,
            facts=metrics.headlines | facts,
            table=format_columns(rows),
            best_row=rows.index(metrics.best) if metrics.best else None,
            mem_len=mem_len,
            samples=[
                (step, show(text[:n_prompt]), show(text[n_prompt:]))
                for step, text in probe.samples[::-1]
            ],
            run=describe_run(trainer),
            differences=find_differences(settings),
            config=config,
            commands=[f"{PROGRAM} {command.format(quoted)}" for command in NEXT_COMMANDS],
        )


def describe_run(trainer: Trainer) -> dict[str, Any]:
    """Return versions, machine and devices, and whose weights are validated."""
    run = describe_environment(trainer.strategy.root_device)
    run |= {**run.pop("machine"), "devices": trainer.world_size, "precision": trainer.precision}
    if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
        run["validated"] = "the average of the weights (WeightAverage), not themselves"
    return run


def draw_small_charts(metrics: RunMetrics) -> dict[str, str]:
    """Return the small charts by title, as SVG; those without values are left out."""
    return {
        title: plots.to_svg(partial(plots.draw_from_zero, metrics=metrics, name=name), SMALL)
        for name, title in FROM_ZERO.items()
        if any(value for _, value in metrics.curve(name))
    }


def choose_charts(metrics: RunMetrics, probe: ValidationProbe, unit: str) -> dict[str, plots.Draw]:
    """Return the large charts by name; those without data are left out."""
    charts: dict[str, plots.Draw] = {}
    if metrics.rows:
        charts["curve"] = partial(plots.draw_learning_curves, metrics=metrics)
    if metrics.curve("val/memory_gain"):
        charts["memory_gain"] = partial(plots.draw_memory_gain, metrics=metrics, unit=unit)
    if len(nats := probe.nats_by_position) > 1:
        charts["position"] = partial(plots.draw_loss_by_position, nats_by_position=nats, unit=unit)
    if rows := probe.attention:
        charts["attention"] = partial(plots.draw_attention, rows=rows, unit=unit)
    return charts
