"""Results of a sweep: metrics of its trials, as a table and as figures."""

import math
import shlex
import warnings
from pathlib import Path
from typing import Any

import yaml
from optuna.trial import FrozenTrial, TrialState

from .. import __version__
from ..analysis.plots import GRAY, PALETTE, open_figure, use_log_axis
from ..command_line import PROGRAM
from ..errors import flatten_settings
from ..machine import commit, cpu_name
from ..runs.folder import CHECKPOINTS, METRICS
from ..runs.metrics_table import collect_by_key, read_metrics
from ..tables import align_columns, write_table
from .engine import Sweep

COMPARED = ("complete", "pruned")


def read_metric(folder: Path, metric: str) -> tuple[list[float], list[str]]:
    """Return a trial's finite values of a metric in the order of steps, and the logged columns.

    Of a repeated step, the later value counts.
    """
    paths = sorted(folder.glob(f"version_*/{METRICS}"), key=lambda path: path.stat().st_mtime)
    rows = [row for path in paths for row in read_metrics(path.parent).rows]
    # Non-finite values cannot be compared.
    values = {r["step"]: r[metric] for r in rows if math.isfinite(r.get(metric, math.nan))}
    return [values[step] for step in sorted(values)], list(collect_by_key(rows))


def find_error(log: Path) -> str:
    """Return the last error in a log, or else its last line."""
    lines = log.read_text(errors="replace").split("\n")
    errors = [line for line in lines if line.startswith("error: ")]
    return (errors or [line for line in lines if line.strip()] or [""])[-1]


def make_rows(sweep: Sweep) -> list[dict[str, Any]]:
    """Return a row for each trial, best first; failed and running ones are last."""
    trials = [(trial, flatten_parameters(trial)) for trial in sweep.study.trials]
    names = dict.fromkeys(name for _, settings in trials for name in settings)
    rows = []
    for trial, settings in trials:
        values = trial.intermediate_values.values()
        row = {"trial": trial.number, "state": trial.state.name.lower()}
        row |= {"value": sweep.best(values), **dict.fromkeys(names), **settings}
        row["validations"] = len(values)
        row["seconds"] = trial.duration and round(trial.duration.total_seconds(), 1)
        rows.append(row | {"reason": trial.user_attrs.get("reason")})
    compared = [row for row in rows if row["state"] in COMPARED and row["value"] is not None]
    compared.sort(key=lambda row: row["value"], reverse=sweep.is_maximized)
    return compared + [row for row in rows if row not in compared]


def flatten_parameters(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial's values by dotted key; a `config`, which is YAML, is flattened."""
    flat: dict[str, Any] = {}
    for key, value in trial.user_attrs.get("parameters", {}).items():
        settings = yaml.safe_load(value) if key == "config" else None
        flat |= flatten_settings(settings) if isinstance(settings, dict) else {key: value}
    return flat


def write_results(sweep: Sweep) -> None:
    origin = {"release": __version__, "commit": commit(), "cpu": cpu_name()}
    origin |= sweep.study.user_attrs["search"]
    write_table(make_rows(sweep), sweep.folder / "results", origin)


def draw_figures(sweep: Sweep) -> None:
    """Draw curves.png; where trials differ, results.png (parallel coordinates) and importances.png
    (PED-ANOVA)."""
    draw_curves(sweep)
    complete = sweep.study.get_trials(states=(TrialState.COMPLETE,))
    keys = sweep.config["parameters"]
    names = [key for key in keys if len({str(trial.params[key]) for trial in complete}) > 1]
    if not names:
        return
    # These imports take a second.
    from matplotlib import pyplot
    from matplotlib.colors import LinearSegmentedColormap
    from optuna.visualization import matplotlib as figures

    draws = {"results": figures.plot_parallel_coordinate}
    draws["importances"] = figures.plot_param_importances
    for name, draw in draws.items():
        # Optuna warns that its figures are experimental, and of few trials.
        with pyplot.style.context("default"), warnings.catch_warnings(action="ignore"):
            figure = draw(sweep.study, params=names, target_name=sweep.metric).figure
            for lines in figure.axes[0].collections:
                # Optuna's blues end in white.
                colors = LinearSegmentedColormap.from_list("value", PALETTE[:2])
                lines.set(cmap=colors, clip_on=False)
            figure.set_size_inches(2.5 * len(names) + 4, 4.5)
            figure.savefig(sweep.folder / f"{name}.png", dpi=120, bbox_inches="tight")
            pyplot.close(figure)


def draw_curves(sweep: Sweep) -> None:
    values = {trial.number: trial.intermediate_values for trial in sweep.study.trials}
    numbers = [row["trial"] for row in make_rows(sweep) if values[row["trial"]]]
    if not numbers:
        return
    with open_figure(sweep.folder / "curves.png") as (axes,):
        for number in reversed(numbers):
            best = {"label": f"trial {number}, the best", "color": PALETTE[0], "linewidth": 2}
            style = best if number == numbers[0] else {"color": GRAY, "linewidth": 1}
            axes.plot(*zip(*values[number].items(), strict=True), marker=".", **style)
        use_log_axis(axes)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.set(xlabel="validation", ylabel=f"best {sweep.metric} so far")
        axes.set_title(f"{sweep.config['name']}, trials: {len(numbers)}")
        axes.legend(frameon=False, loc="best")


def print_results(sweep: Sweep) -> None:
    rows = make_rows(sweep)
    best, keys = rows[0], [key for key in rows[0] if key != "reason"]
    lines = [[key.rsplit(".", 1)[-1] for key in keys]]
    for row in rows:
        cells = ("-" if row[key] is None else row[key] for key in keys)
        lines.append([f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells])
    print(f"\n{sweep.metric}, best first")
    print(align_columns([[*line, ""] for line in lines]))
    if best["state"] not in COMPARED or best["value"] is None:
        raise ValueError(f"no trial has a value; the last: {rows[-1]['reason']}")
    print(f"\nwritten to {sweep.folder}; evaluate the best with")
    # "best.ckpt" comes before "last.ckpt".
    runs = f"{best['trial']:03}/version_*"
    paths = sorted(sweep.folder.glob(f"{runs}/{CHECKPOINTS}/*.ckpt"))
    for path in paths[:1]:
        print(f"  {PROGRAM} evaluate {shlex.quote(str(path))} --split val")
    if not paths and (place := sweep.study.trials[best["trial"]].user_attrs.get("place")):
        print(f"  its checkpoint in {place}")
    print(f"compare its trials with\n  {PROGRAM} compare {shlex.quote(str(sweep.folder))}")
