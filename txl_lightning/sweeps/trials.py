"""Run the trials of a sweep, each in a process of its own, and list their results."""

import itertools
import math
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from optuna import Trial, TrialPruned
from optuna.trial import FrozenTrial, TrialState

from .. import __version__
from ..command_line import format_value
from ..errors import flatten_settings, invalid
from ..imports import ALLOWED
from ..machine import find_commit, find_cpu_name
from ..process import EXIT, SAVE, PendingSignals, handle_signals
from ..runs.folder import list_versions, lock_folder
from ..runs.metrics_table import collect_by_key, read_metrics
from ..tables import write_table
from .gpus import SharedGpus, group_gpus, list_gpus, require_share
from .search import open_study, suggest_parameters

POLL = 1.0  # seconds between reads of a trial's metrics
MAX_FIRST_FAILURES = 3


class Sweep:
    """The trials of a sweep file, in a folder that is locked until their processes have ended."""

    def __init__(self, config: Mapping[str, Any], folder: Path, seed: int) -> None:
        self.config = config
        self.folder = folder
        self.metric = config["metric"]["name"]
        self.is_maximized = config["metric"].get("goal") == "maximize"
        self.lock = lock_folder(folder)
        self.study = open_study(config, folder, seed)
        self.gpus = SharedGpus([])  # a single trial sees all of them
        self.n_gpu = 0  # that a trial sees
        self.turn = threading.Lock()  # for what trials that run at once do one by one
        self.signals = PendingSignals()
        self.signals.kill = lambda: self.send(signal.SIGKILL)
        self.processes: list[subprocess.Popen] = []

    def run(self, limit: int, jobs: int, advance: Callable[[int], object]) -> None:
        """Run trials, `jobs` at once, until there are `limit`, those of earlier calls included.

        `advance` is called with numbers of trials that have ended, first with the earlier ones.
        """
        groups = group_gpus(list_gpus(), jobs)
        self.gpus = SharedGpus(groups if jobs > 1 else [])
        self.n_gpu = groups[0].count(",") + 1 if groups else 0
        require_share([*map(str, self.config["command"])], self.n_gpu)
        n_ended = sum(trial.state.is_finished() for trial in self.study.trials)
        advance(n_ended)
        options = {"n_jobs": jobs, "catch": ValueError}
        options["callbacks"] = [self.end_trial, lambda *_: advance(1)]
        with handle_signals(self.signals.handlers() | {SAVE: lambda *_: self.send(SAVE)}):
            try:
                self.study.optimize(self.run_trial, limit - n_ended, **options)
            finally:
                self.write_results()
                os.close(self.lock)
        if self.signals.exit_code:
            raise SystemExit(self.signals.exit_code)

    def send(self, signum: int) -> None:
        for process in self.processes:
            process.send_signal(signum)

    def end_trial(self, *_: object) -> None:
        """Write the results; end the sweep after a signal, or if its first trials have failed."""
        self.write_results()
        states = [trial.state for trial in self.study.trials if trial.state.is_finished()]
        has_failed = len(states) >= MAX_FIRST_FAILURES and {*states} == {TrialState.FAIL}
        if self.signals.exit_code or has_failed:
            self.study.stop()

    def run_trial(self, trial: Trial) -> float:
        """Run a trial; return its best value, or raise what it has ended with."""
        folder = self.folder / f"{trial.number:03}"
        folder.mkdir(exist_ok=True)
        with self.turn:
            parameters = suggest_parameters(self.study, trial, self.config)
        trial.set_user_attr("parameters", parameters)
        settings = ", ".join(f"{key} {format_value(each)}" for key, each in parameters.items())
        begins = "continues" if list_versions(folder) else "starts"
        tell_user(trial, f" {begins}: {settings}")
        try:
            command = make_command(self.config["command"], parameters, folder)
            require_share(command, self.n_gpu)
            with self.gpus.borrow() as gpu:
                self.run_process(trial, folder, command, gpu)
            best = self.report_values(trial, folder, has_ended=True)
        except ValueError as error:
            trial.set_user_attr("reason", str(error))
            tell_user(trial, f": failed ({error})")
            raise
        tell_user(trial, f": {self.metric} {best:.4f}")
        return best

    def run_process(
        self, trial: Trial, folder: Path, command: Sequence[str], gpu: Mapping[str, str]
    ) -> None:
        """Run a process until it is done; if it ends otherwise, raise what it has ended with.

        It saves and exits after a signal to the sweep or if it is pruned. It has its own session:
        Ctrl-C reaches only the sweep, which forwards it.
        """
        group = {"WANDB_RUN_GROUP": self.config["name"]}
        options = {"env": {"WANDB_MODE": "offline", **os.environ, **group, **gpu}}
        options |= {"stdin": subprocess.DEVNULL, "start_new_session": True}
        is_pruned = False
        with (folder / "log.txt").open("ab") as log:
            options |= {"stdout": log, "stderr": log, "pass_fds": [self.lock]}
            process = subprocess.Popen(command, **options)
        self.processes.append(process)
        try:
            while process.poll() is None and not is_pruned and not self.signals.exit_code:
                time.sleep(POLL)
                self.report_values(trial, folder)
                is_pruned = trial.should_prune()
        finally:
            process.terminate()
            code = process.wait()
            self.processes.remove(process)
        if code == -SAVE:
            # It came before the process could handle it: there is nothing to save yet.
            return self.run_process(trial, folder, command, gpu)
        stop = self.signals.exit_code or EXIT.get(-code, code if code in EXIT.values() else 0)
        if code and is_pruned:
            tell_user(trial, ": pruned")
            raise TrialPruned
        if code and stop:
            tell_user(trial, ": interrupted; the same command continues")
            raise SystemExit(stop)
        if code:
            cause = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
            *_, last = ["", *(folder / "log.txt").read_text(errors="replace").split("\n")[:-1]]
            raise ValueError(f"{cause}: {last}".removesuffix(": "))

    def report_values(self, trial: Trial, folder: Path, has_ended: bool = False) -> float:
        """Report the best value after each new validation; return the last one."""
        values, columns = read_metric(folder, self.metric)
        if has_ended and not values:
            is_logged = self.metric in columns
            expected = f"one that is logged: {', '.join(columns)}"
            raise invalid("metric.name", self.metric, "a finite value" if is_logged else expected)
        best = [*itertools.accumulate(values, max if self.is_maximized else min)]
        for step in range(len(self.study.trials[trial.number].intermediate_values), len(best)):
            trial.report(best[step], step + 1)
        return best[-1] if best else math.nan

    def make_rows(self) -> list[dict[str, Any]]:
        """Return a row for each trial, best first; failed and running ones are last."""
        trials = self.study.trials
        settings = [flatten_parameters(trial) for trial in trials]
        names = dict.fromkeys(itertools.chain(*settings))
        rows = []
        for trial, own in zip(trials, settings, strict=True):
            value = trial.intermediate_values.get(trial.last_step)
            row = {"trial": trial.number, "state": trial.state.name.lower(), "value": value}
            row |= dict.fromkeys(names) | own | {"validations": len(trial.intermediate_values)}
            row["seconds"] = trial.duration and round(trial.duration.total_seconds(), 1)
            rows.append(row | {"reason": trial.user_attrs.get("reason")})
        compared = [row for row in rows if row["state"] in ("complete", "pruned")]
        compared.sort(key=lambda row: row["value"], reverse=self.is_maximized)
        return compared + [row for row in rows if row not in compared]

    def write_results(self) -> None:
        origin = {"release": __version__, "commit": find_commit(), "cpu": find_cpu_name()}
        origin |= self.study.user_attrs["search"]
        with self.turn:
            write_table(self.make_rows(), self.folder / "results", origin)


def tell_user(trial: Trial, text: str) -> None:
    print(f"trial {trial.number}{text}", flush=True)


def make_command(words: Sequence[Any], parameters: Mapping[str, Any], folder: Path) -> list[str]:
    """Return the command that W&B's agent would run, with this Python and the trial's folder."""
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": [sys.executable],
        "${args}": [f"--{key}={format_value(value)}" for key, value in parameters.items()],
    }
    command = [each for word in map(str, words) for each in macros.get(word, [word])]
    allowed = [f"--allow_imports={package}" for package in ALLOWED]
    return [*command, f"--trainer.default_root_dir={folder}", "--resume=auto", *allowed]


def read_metric(folder: Path, metric: str) -> tuple[list[float], list[str]]:
    """Return a trial's finite values of a metric, in the order of steps, and the logged columns."""
    rows = [row for run in list_versions(folder)[:1] for row in read_metrics(run).rows]
    # Non-finite values cannot be compared.
    values = [row[metric] for row in rows if math.isfinite(row.get(metric, math.nan))]
    return values, list(collect_by_key(rows))


def flatten_parameters(trial: FrozenTrial) -> dict[str, Any]:
    """Return a trial's values by dotted key; a `config`, which is YAML, is flattened."""
    flat: dict[str, Any] = {}
    for key, value in trial.user_attrs.get("parameters", {}).items():
        settings = yaml.safe_load(value) if key == "config" else None
        flat |= flatten_settings(settings) if isinstance(settings, dict) else {key: value}
    return flat
