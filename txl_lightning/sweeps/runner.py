"""TrialRunner: run each trial in a process; several sweeps on a machine may share a folder.

A trial's folder has two locks, which the kernel releases when their holders end: owner.lock of the
sweep, and process.lock of the sweep and its fit, which is all that a fit of a killed sweep holds.
The same machine so continues a trial at once. In a database each trial also records heartbeats; if
they stop, another machine runs it again from its beginning, under a new number.
"""

import fcntl
import math
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from filelock import FileLock, Timeout
from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import fail_stale_trials
from optuna.trial import TrialState

from ..errors import UNKNOWN_KEY, UNKNOWN_OPTION, require
from ..imports import ALLOWED
from ..option_values import format_value
from ..signals import EXIT, SAVE, PendingSignals, handle_signals
from . import engine
from .engine import Sweep
from .trial_results import find_error, read_metric, write_results

POLL = 1.0  # seconds between reads of a trial's metrics
MAX_FIRST_FAILURES = 3


def run_trials(sweep: Sweep, limit: int | None, advance: Callable[[int], object]) -> None:
    """Run trials until there are `limit` in total, the target is reached, or the grid ends.

    `advance` is called with numbers of trials that have ended, first with those of earlier calls.
    """
    advance(sum(trial.state.is_finished() for trial in sweep.study.trials))
    while runner := claim_trial(sweep, limit):
        with runner.owner:
            try:
                runner.run()
            except UpdateFinishedTrialError:
                runner.tell_user(f": no heartbeat for {engine.GRACE} s; another machine runs it")
            finally:
                with sweep.lock:
                    write_results(sweep)
        advance(1)


def claim_trial(sweep: Sweep, limit: int | None) -> "TrialRunner | None":
    """Return a trial whose sweep was stopped or killed, otherwise a new one."""
    with sweep.lock:
        # Without a heartbeat for GRACE seconds: they fail, and each is queued again.
        fail_stale_trials(sweep.study)
        for trial in sweep.study.get_trials(states=(TrialState.RUNNING,)):
            # The locks of another machine are not seen here.
            if trial.user_attrs.get("place", place := describe_place(sweep)) == place:
                with suppress(Timeout):
                    # Private: Optuna cannot resume a trial otherwise.
                    return TrialRunner(sweep, Trial(sweep.study, trial._trial_id))
        trial = None if is_target_reached(sweep) else sweep.ask_trial(limit)
        return None if trial is None else TrialRunner(sweep, trial)


def describe_place(sweep: Sweep) -> str:
    return f"{platform.node()}:{sweep.folder.resolve()}"


def is_target_reached(sweep: Sweep) -> bool:
    values = [v for trial in sweep.study.trials for v in trial.intermediate_values.values()]
    target = sweep.config["metric"].get("target")
    return target is not None and sweep.best([*values, target]) in values


class TrialRunner:
    """Run a trial that this process owns; Timeout if another process owns it."""

    def __init__(self, sweep: Sweep, trial: Trial) -> None:
        self.sweep, self.trial, self.signals = sweep, trial, PendingSignals()
        self.folder = sweep.folder / f"{trial.number:03}"
        self.folder.mkdir(exist_ok=True)
        self.log = self.folder / "log.txt"
        self.owner = FileLock(self.folder / "owner.lock").acquire(blocking=False)
        trial.set_user_attr("place", describe_place(sweep))

    def run(self) -> None:
        parameters = self.sweep.suggest_parameters(self.trial)
        self.trial.set_user_attr("parameters", parameters)
        settings = ", ".join(f"{key} {format_value(each)}" for key, each in parameters.items())
        self.tell_user(f" {'continues' if self.log.exists() else 'starts'}: {settings}")
        command = make_command(self.sweep.config["command"], parameters, self.folder)
        try:
            exit_code, is_pruned = self.run_process(command)
            self.report_values(has_finished=exit_code == 0)
        except ValueError as error:
            self.fail(str(error))
            raise
        self.sweep.keep_alive(self.trial)
        self.finish(exit_code, is_pruned)

    def run_process(self, command: Sequence[str]) -> tuple[int, bool]:
        """Run a process until it ends; return its exit code, and True if the trial was pruned.

        It saves and exits after a signal to the sweep or if it is pruned. It has its own session:
        Ctrl-C reaches only the sweep, which forwards it.
        """
        lock, is_pruned, is_stopping = lock_process(self.folder), False, False
        group = {"WANDB_RUN_GROUP": self.sweep.config["name"]}
        environment = {"WANDB_MODE": "offline", **os.environ, **group}
        with lock, self.log.open("ab") as log, handle_signals(self.signals.handlers()):
            streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
            options = {"env": environment, "start_new_session": True, "pass_fds": [lock.fileno()]}
            process = subprocess.Popen(command, **streams, **options)
            print(process.pid, file=lock, flush=True)
            self.signals.kill = partial(os.killpg, process.pid, signal.SIGKILL)
            try:
                beat_at = -math.inf
                while process.poll() is None:
                    time.sleep(POLL)
                    if time.monotonic() - beat_at > engine.HEARTBEAT:
                        self.sweep.keep_alive(self.trial)
                        beat_at = time.monotonic()
                    stop_code, save = self.signals.take()
                    if save:
                        process.send_signal(SAVE)
                    if not is_stopping:
                        is_pruned = self.report_values() and self.trial.should_prune()
                    if (stop_code or is_pruned) and not is_stopping:
                        process.terminate()
                        is_stopping = True
            finally:
                # After an error above, the process saves before the trial ends.
                process.terminate()
                process.wait()
        return process.returncode, is_pruned

    def report_values(self, has_finished: bool = False) -> bool:
        """Report the best value after each new validation; return True if there are any."""
        metric, (values, columns) = self.sweep.metric, read_metric(self.folder, self.sweep.metric)
        has_validated = any(column.startswith("val/") for column in columns)
        # Training may be logged for the first time after the first validation.
        is_due = has_finished or (has_validated and not metric.startswith("train/"))
        is_logged = values if has_finished else metric in columns
        expected = f"one that is logged: {', '.join(columns)}"
        require(is_logged or not is_due, "metric.name", metric, expected)
        n_reported = len(self.sweep.study.trials[self.trial.number].intermediate_values)
        for count in range(n_reported + 1, len(values) + 1):
            self.trial.report(self.sweep.best(values[:count]), count)
        return len(values) > n_reported

    def finish(self, code: int, is_pruned: bool) -> None:
        stop_code, study = self.signals.exit_code, self.sweep.study
        interrupted = stop_code or EXIT.get(-code, code if code in EXIT.values() else 0)
        if code == 0 or is_pruned:
            best = self.sweep.best(study.trials[self.trial.number].intermediate_values.values())
            state = TrialState.PRUNED if code else TrialState.COMPLETE
            study.tell(self.trial, None if code else best, state)
            self.tell_user(f":{' pruned,' if code else ''} {self.sweep.metric} {best:.4f}")
        elif interrupted:
            self.tell_user(": interrupted; the same command continues")
            raise SystemExit(interrupted)
        else:
            cause = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
            self.fail(f"{cause}: {find_error(self.log)}".removesuffix(": "))
        if stop_code:
            raise SystemExit(stop_code)

    def fail(self, reason: str) -> None:
        """Record a failure; end the sweep if a key is unknown, or the first trials have failed."""
        self.trial.set_user_attr("reason", reason)
        self.sweep.study.tell(self.trial, state=TrialState.FAIL)
        self.tell_user(f": failed ({reason})")
        ended = [each.state for each in self.sweep.study.trials if each.state.is_finished()]
        is_unknown = UNKNOWN_KEY in reason or UNKNOWN_OPTION in reason
        limit = 1 if is_unknown else MAX_FIRST_FAILURES
        if len(ended) >= limit and all(state == TrialState.FAIL for state in ended):
            raise ValueError(f"the first trials failed; the last: {reason}")

    def tell_user(self, text: str) -> None:
        print(f"trial {self.trial.number}{text}", flush=True)


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


def lock_process(folder: Path) -> TextIO:
    """Lock the process of a trial; first stop the process that a killed sweep has left."""
    lock = (folder / "process.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip()
        print(f"waiting for process {pid} of a killed sweep, which saves and ends", flush=True)
        # There is no process id if the sweep was killed before writing it.
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(pid), signal.SIGTERM)
        fcntl.flock(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    return lock
