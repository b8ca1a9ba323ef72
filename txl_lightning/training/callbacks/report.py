"""report.html: a run on one page, from metrics.csv and the validation probe; its figures as PNG."""

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
from ...analysis.page import LARGE, draw_small, render_page
from ...errors import flatten_settings, require, require_types
from ...evaluation.environment import describe_environment
from ...evaluation.run_metrics import RunMetrics, find_differences, format_columns, read_metrics
from ...files import host_name, write_json, write_text
from ...help import PROGRAM
from .run_folder import is_fitting, run_folder
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

# A plot draws in matplotlib's axes.
Plot = Callable[[Any], None]
SECONDS = 60.0
"""At least, between two pages while training goes on."""
TITLES = {"curve": "Learning curves", "attention": plots.ATTENTION_TITLE}
"""Figures that are pictures of their own too."""
NEXT = {
    "generate": "{} --prompt 'Once upon a time'",
    "evaluate": "{} --split test",
    "inspect": "{}",
    "compare": "{} ANOTHER_RUN",
}
"""Commands to type when a run has ended, with its folder."""
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
        require_types(self)
        require(self.sample_len >= 0, "sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write run.json, the state of a run, and report.html after the first validation, now and then,
    and when training ends.

    `defaults` are the settings, by dotted key, that a page does not show unless they were changed.
    Nothing that fails here stops a run: it is a warning.
    """

    def __init__(
        self, probe: ValidationProbe, html: bool = True, defaults: Mapping[str, Any] | None = None
    ) -> None:
        self.probe, self.html, self.defaults = probe, html, defaults or {}
        self.folder, self.written_at = Path(), -math.inf

    def on_fit_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.folder = run_folder(trainer)

    def on_train_start(self, trainer: Trainer, pl_module: Any) -> None:
        self.attempt(self.write_state, trainer, "training")

    def on_validation_end(self, trainer: Trainer, pl_module: Any) -> None:
        if is_fitting(trainer) and self.html:
            self.attempt(self.save_plots, trainer)
            if time.monotonic() - self.written_at > SECONDS:
                self.attempt(self.write_page, trainer, "training")

    def on_train_end(self, trainer: Trainer, pl_module: Any) -> None:
        if self.html:
            self.attempt(self.save_plots, trainer)
        self.end(trainer, "finished")

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
        if self.folder != Path():
            self.end(trainer, "stopped" if stopped else f"ended by: {exception}")

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
        # Whatever it is: what is saved and said after it matters more.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")
        # Parts of figures refer to each other; those of a page are old before it is written.
        gc.collect(2 if action == self.write_page else 1)

    def write_state(self, trainer: Trainer, state: str) -> None:
        about = {"state": state, "step": trainer.global_step, "max_steps": trainer.max_steps}
        about |= {"parameters": count_parameters(trainer), "host": host_name(), "pid": os.getpid()}
        write_json(about, self.folder / "run.json")

    def save_plots(self, trainer: Trainer) -> None:
        metrics = read_metrics(self.folder, trainer.loggers)
        figures = make_plots(metrics, self.probe, trainer.lightning_module.unit)
        for name in TITLES.keys() & figures.keys():
            with plots.open_figure(self.folder / f"{name}.png") as (axes,):
                figures[name](axes)
                axes.set_title(TITLES[name])

    def write_page(self, trainer: Trainer, state: str) -> None:
        page = self.render(trainer, read_metrics(self.folder, trainer.loggers), state)
        write_text(page, self.folder / "report.html")
        self.written_at = time.monotonic()

    def render(self, trainer: Trainer, metrics: RunMetrics, state: str) -> str:
        module, rows, probe = trainer.lightning_module, metrics.validations, self.probe
        path, quoted = self.folder / "config.yaml", shlex.quote(str(self.folder))
        config = path.read_text() if path.is_file() else ""
        n_parameter, mem_len = count_parameters(trainer), module.net.config.mem_len
        facts = {"parameters": f"{n_parameter:,}", "memory length": f"{mem_len:,} tokens"}
        figures = make_plots(metrics, probe, module.unit)
        settings = [self.defaults, flatten_settings(yaml.safe_load(config) or {})]
        return render_page(
            "report.html.j2",
            # The folder of runs and the run's in it, as short as it is clear.
            title="/".join(self.folder.absolute().parts[-2:]),
            folder=self.folder.absolute(),
            trainer=trainer,
            state=state,
            facts=metrics.headlines | facts,
            plots={name: plots.to_svg(draw, LARGE) for name, draw in figures.items()},
            small=draw_small([metrics]),
            table=format_columns(rows),
            best_row=rows.index(metrics.best) if metrics.best else None,
            mem_len=mem_len,
            samples=[(step, text.translate(CONTROLS)) for step, text in reversed(probe.samples)],
            prompt_len=probe.prompt_len,
            run=describe_run(trainer),
            differences=find_differences(settings),
            config=config,
            commands=[f"{PROGRAM} {command} {NEXT[command].format(quoted)}" for command in NEXT],
        )


def count_parameters(trainer: Trainer) -> int:
    return sum(p.numel() for p in trainer.lightning_module.net.parameters())


def describe_run(trainer: Trainer) -> dict[str, Any]:
    run = describe_environment(trainer.strategy.root_device)
    run |= {**run.pop("machine"), "devices": trainer.world_size, "precision": trainer.precision}
    if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
        run["validated"] = "the average of the weights (WeightAverage), not themselves"
    return run


def make_plots(metrics: RunMetrics, probe: ValidationProbe, unit: str) -> dict[str, Plot]:
    """Return the large figures of a run by name, as far as there is something to draw."""
    found: dict[str, Plot] = {}
    if metrics.rows:
        found["curve"] = partial(plots.draw_learning_curves, metrics=metrics)
    if metrics.curve("val/memory_gain"):
        found["memory_gain"] = partial(plots.draw_memory_gain, runs=[metrics], unit=unit)
    if len(nats := probe.nats_by_position) > 1:
        found["position"] = partial(plots.draw_loss_by_position, nats_by_position=nats, unit=unit)
    if rows := probe.attention:
        found["attention"] = partial(plots.draw_attention, rows=rows, unit=unit)
    return found
