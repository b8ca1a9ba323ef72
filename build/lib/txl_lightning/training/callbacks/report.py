"""Report: run.json, report.html, curve.png and attention.png in the folder of a run."""

import gc
import math
import os
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import yaml
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...analysis import plots
from ...command_line import PROGRAM
from ...errors import convert_fields, flatten_settings, require, show_controls
from ...files import host_name, write_json, write_text
from ...machine import describe_environment
from ...runs.folder import CONFIG, STATE, run_folder
from ...runs.metrics_table import RunMetrics, find_differences, format_columns, read_metrics
from . import LanguageModel
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

MIN_SECONDS_BETWEEN_PAGES = 60.0
PICTURES = {"curve": "Learning curves", "attention": plots.ATTENTION_TITLE}
"""Titles of the charts that are also PNG files, by name."""
LARGE, SMALL = (4.6, 2.8), (2.1, 1.5)  # width and height of charts in inches
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


@dataclass(frozen=True)
class ReportConfig:
    """Settings of the report of a run."""

    html: bool = True
    """Write report.html, curve.png and attention.png in the run's folder."""
    sample_len: int = 200
    """Tokens that the model writes after each validation; 0: none."""

    def __post_init__(self) -> None:
        convert_fields(self)
        require(self.sample_len >= 0, "sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write run.json, the state of a run, and report.html after validations and at the end.

    After the first validation, a page is written only if the last one is old. A failure is a
    warning and does not stop the run. The page shows the settings that differ from `defaults`, by
    dotted key.
    """

    def __init__(
        self, probe: ValidationProbe, html: bool = True, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.probe, self.html, self.defaults = probe, html, defaults or {}
        self.folder, self.last_write = Path(), -math.inf

    def on_fit_start(self, trainer: Trainer, *_: Any) -> None:
        self.folder = run_folder(trainer)

    def on_train_start(self, trainer: Trainer, *_: Any) -> None:
        self.attempt(self.write_state, trainer, "training")

    def on_validation_end(self, trainer: Trainer, module: LanguageModel) -> None:
        if module.is_fitting and self.html:
            self.attempt(self.save_pictures, trainer)
            if time.monotonic() - self.last_write > MIN_SECONDS_BETWEEN_PAGES:
                self.attempt(self.write_page, trainer, "training")

    def on_train_end(self, trainer: Trainer, *_: Any) -> None:
        if self.html:
            self.attempt(self.save_pictures, trainer)
        self.end(trainer, "finished")

    def on_exception(self, trainer: Trainer, module: Any, exception: BaseException) -> None:
        is_stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
        if self.folder != Path():
            self.end(trainer, "stopped" if is_stopped else f"ended by: {exception}")

    def end(self, trainer: Trainer, state: str) -> None:
        self.attempt(self.write_state, trainer, state)
        if self.html:
            self.attempt(self.write_page, trainer, state)

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

    def write_state(self, trainer: Trainer, state: str) -> None:
        run = {"state": state, "step": trainer.global_step, "max_steps": trainer.max_steps}
        run |= {"parameters": count_parameters(trainer), "host": host_name(), "pid": os.getpid()}
        write_json(run | self.describe_results(trainer), self.folder / STATE)

    def describe_results(self, trainer: Trainer) -> dict[str, Any]:
        """Return results of a run that do not depend on its loggers, for run.json."""
        rows = [] if trainer.loggers else self.probe.validations
        validations = {
            str(row["val/tokens_seen"]): {name: float(row[name]) for name in row} for row in rows
        }
        module = trainer.lightning_module
        totals = {"tokens": module.tokens_seen, "seconds": module.seconds}
        return totals | {"validations": validations}

    def read_metrics(self, trainer: Trainer) -> RunMetrics:
        return read_metrics(self.folder, trainer.loggers, self.describe_results(trainer))

    def save_pictures(self, trainer: Trainer) -> None:
        metrics = self.read_metrics(trainer)
        charts = choose_charts(metrics, self.probe, trainer.lightning_module.unit)
        for name in PICTURES.keys() & charts.keys():
            with plots.open_figure(self.folder / f"{name}.png") as (axes,):
                charts[name](axes)
                axes.set_title(PICTURES[name])

    def write_page(self, trainer: Trainer, state: str) -> None:
        page = self.render(trainer, self.read_metrics(trainer), state)
        write_text(page, self.folder / "report.html")
        self.last_write = time.monotonic()

    def render(self, trainer: Trainer, metrics: RunMetrics, state: str) -> str:
        module, rows, probe = trainer.lightning_module, metrics.validations, self.probe
        n, path = probe.prompt_len, self.folder / CONFIG
        quoted = shlex.quote(str(self.folder))
        show = partial(show_controls, kept="\t\n")
        config = path.read_text() if path.is_file() else ""
        n_parameter, mem_len = count_parameters(trainer), module.net.config.mem_len
        facts = {"parameters": f"{n_parameter:,}", "memory length": f"{mem_len:,} tokens"}
        settings = [self.defaults, flatten_settings(yaml.safe_load(config) or {})]
        run = describe_environment(trainer.strategy.root_device)
        run |= {**run.pop("machine"), "devices": trainer.world_size, "precision": trainer.precision}
        if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
            run["validated"] = "the average of the weights (WeightAverage), not themselves"
        return read_template().render(
            plots={
                name: plots.to_svg(draw, LARGE)
                for name, draw in choose_charts(metrics, probe, module.unit).items()
            },
            small={
                title: plots.to_svg(
                    partial(plots.draw_from_zero, metrics=metrics, name=name), SMALL
                )
                for name, title in FROM_ZERO.items()
                if any(value for _, value in metrics.curve(name))
            },
            title="/".join(self.folder.absolute().parts[-2:]),
            folder=self.folder.absolute(),
            trainer=trainer,
            state=state,
            facts=metrics.headlines | facts,
            table=format_columns(rows),
            best_row=rows.index(metrics.best) if metrics.best else None,
            mem_len=mem_len,
            samples=[(step, show(text[:n]), show(text[n:])) for step, text in probe.samples[::-1]],
            run=run,
            differences=find_differences(settings),
            config=config,
            commands=[f"{PROGRAM} {command.format(quoted)}" for command in NEXT_COMMANDS],
        )


def read_template() -> Any:
    # jinja2 is slow to import, and needed only to write a page.
    from jinja2 import Template

    text = Path(__file__).with_name("report.html.j2").read_text(encoding="utf-8")
    return Template(text, autoescape=True)


def count_parameters(trainer: Trainer) -> int:
    return sum(p.numel() for p in trainer.lightning_module.net.parameters())


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
