"""report.html: a run on one page, from metrics.csv and the validation probe; its figures as PNG."""

import math
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn

from ...errors import require
from ...evaluation.environment import describe_environment
from ...files import write_text
from .plots import FROM_ZERO, make_figure, make_plots, plot_from_zero, to_svg
from .run_metrics import RunMetrics, format_columns, is_fitting, read_metrics, run_folder
from .validation_probe import ValidationProbe
from .weight_averaging import WeightAverage

SECONDS = 60.0
"""At least, between two pages while training goes on."""
LARGE, SMALL = (4.6, 2.8), (3.6, 2.1)
"""Inches of figures."""
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
        require(self.sample_len >= 0, "report.sample_len", self.sample_len, "0 or more")


class Report(Callback):
    """Write report.html after the first validation, now and then, and when training ends.

    Nothing that fails here stops a run: it is a warning. The probe's notes are kept beside it.
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

    def on_exception(self, trainer: Trainer, pl_module: Any, exception: BaseException) -> None:
        stopped = isinstance(exception, SystemExit | KeyboardInterrupt)
        state = "stopped" if stopped else f"ended by: {exception}"
        if self.folder != Path():
            self.attempt(trainer, self.write_page, trainer, state)

    def attempt(self, trainer: Trainer, action: Any, *args: Any) -> None:
        if not trainer.is_global_zero or trainer.fast_dev_run:
            return
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            action(*args)
        # Whatever it is: what is saved and said after it matters more.
        except Exception as error:
            rank_zero_warn(f"{self.folder}: {error!r}; no report is written")

    def save_plots(self, trainer: Trainer) -> None:
        if self.plotted_step == trainer.global_step:
            return
        self.plotted_step = trainer.global_step
        metrics = read_metrics(self.folder, trainer.loggers)
        unit = trainer.lightning_module.unit
        for name, plot in make_plots(metrics, self.probe, unit).items():
            if name in ("curve", "attention"):
                make_figure(plot, (7, 4)).savefig(self.folder / f"{name}.png", dpi=120)
        self.probe.save(self.folder / "probe.json")

    def write_page(self, trainer: Trainer, state: str) -> None:
        metrics = read_metrics(self.folder, trainer.loggers)
        values = describe_page(trainer, metrics, self.probe)
        config = self.folder / "config.yaml"
        values |= {"config": config.read_text() if config.is_file() else "", "state": state}
        write_text(render_page(values | {"title": self.folder}), self.folder / "report.html")
        self.written_at = time.monotonic()


def render_page(values: dict[str, Any]) -> str:
    # It takes a while to import, and only fit needs it.
    from jinja2 import Environment, FileSystemLoader

    templates = FileSystemLoader(Path(__file__).parent)
    template = Environment(loader=templates, autoescape=True).get_template("report.html.j2")
    return template.render(values)


def describe_page(trainer: Trainer, metrics: RunMetrics, probe: ValidationProbe) -> dict[str, Any]:
    module, rows, cut = trainer.lightning_module, metrics.validations, probe.prompt_len
    run = describe_environment(trainer.strategy.root_device)
    run |= {**run.pop("machine"), "devices": trainer.world_size, "precision": trainer.precision}
    if any(isinstance(each, WeightAverage) for each in trainer.callbacks):
        run["validated"] = "the average of the weights (WeightAverage), not themselves"
    plots = make_plots(metrics, probe, module.unit)
    small = {
        title: to_svg(partial(plot_from_zero, metrics=metrics, name=name), SMALL)
        for name, title in FROM_ZERO.items()
        if any(value for _, value in metrics.curve(name))
    }
    texts = [(step, text.translate(CONTROLS)) for step, text in reversed(probe.samples)]
    return {
        "step": f"{trainer.global_step:,}",
        "max_steps": f"{trainer.max_steps:,}" if trainer.max_steps > 0 else "",
        "facts": headline_facts(metrics, module.net),
        "plots": {name: to_svg(plot, LARGE) for name, plot in plots.items()} | {"small": small},
        "table": format_columns(rows),
        "best_row": rows.index(metrics.best) if metrics.best else None,
        "mem_len": module.net.config.mem_len,
        "samples": [{"step": n, "prompt": t[:cut], "continuation": t[cut:]} for n, t in texts],
        "run": run,
    }


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
