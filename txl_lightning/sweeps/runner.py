"""Trials, one process each; several sweep processes of one machine may share a folder.

A trial's folder has two locks, which the kernel releases when their holders end: the sweep holds
owner.lock; the sweep and its fit hold process.lock, so that a fit whose sweep was killed is found.
"""

import fcntl
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from filelock import AcquireReturnProxy, FileLock, Timeout
from optuna import Study, Trial
from optuna.trial import TrialState

from ..errors import UNKNOWN_KEY, require
from ..signals import EXIT, SAVE, PendingSignals, handle_signals
from .engine import SweepFile, ask_trial, open_study, suggest_parameters
from .results import find_error, read_metric, write_results

POLL = 1.0
"""Seconds between two readings of a trial's metrics."""
LOG = "log.txt"
MAX_FIRST_FAILURES = 3


@dataclass(frozen=True)
class ProcessResult:
    exit_code: int
    stop_code: int
    """Exit code of the sweep, if a signal has asked it to stop."""
    is_pruned: bool


def run_sweep(file: SweepFile, folder: Path, seed: int, limit: int | None) -> Study:
    """Run trials until there are `limit` in all, the target is reached, or the grid ends."""
    lock = FileLock(folder / "sweep.lock")
    with lock:
        study = open_study(file, folder, seed)
    runner = SweepRunner(file, folder, seed, limit, study, lock)
    while claimed := runner.claim_trial():
        trial, owner = claimed
        with owner:
            try:
                runner.run_trial(trial)
            finally:
                with lock:
                    write_results(study, file, folder)
    return study


@dataclass(frozen=True)
class SweepRunner:
    file: SweepFile
    folder: Path
    seed: int
    limit: int | None
    study: Study
    lock: FileLock

    def claim_trial(self) -> tuple[Trial, AcquireReturnProxy] | None:
        """Return a trial whose owner has ended, or else a new one, and the lock of its owner."""
        with self.lock:
            for trial in self.study.get_trials(states=(TrialState.RUNNING,)):
                if owner := self.lock_owner(trial.number):
                    # Optuna has no public way to take up a trial.
                    return Trial(self.study, trial._trial_id), owner
            new = None if self.is_done() else ask_trial(self.study, self.file, self.seed)
            return None if new is None else (new, self.lock_owner(new.number))

    def lock_owner(self, number: int) -> AcquireReturnProxy | None:
        (self.folder / f"{number:03}").mkdir(exist_ok=True)
        with suppress(Timeout):
            return FileLock(self.folder / f"{number:03}" / "owner.lock").acquire(blocking=False)
        return None

    def is_done(self) -> bool:
        trials = [each for each in self.study.trials if each.state != TrialState.WAITING]
        values = [value for trial in trials for value in trial.intermediate_values.values()]
        target = self.file.config["metric"].get("target")
        is_reached = target is not None and self.file.best([*values, target]) in values
        return is_reached or (self.limit is not None and len(trials) >= self.limit)

    def run_trial(self, trial: Trial) -> None:
        """Run a trial until it ends, is pruned, or a signal stops the sweep."""
        folder = self.folder / f"{trial.number:03}"
        parameters = suggest_parameters(trial, self.file)
        trial.set_user_attr("parameters", parameters)
        verb = "continues" if (folder / LOG).exists() else "starts"
        words = ", ".join(f"{key} {value}" for key, value in parameters.items())
        print(f"trial {trial.number} {verb}: {words}", flush=True)

        def should_prune() -> bool:
            return self.report_values(trial, folder) and trial.should_prune()

        command = make_command(self.file.config, parameters, folder)
        try:
            result = run_process(command, folder, self.file.name, should_prune)
            self.report_values(trial, folder, has_finished=result.exit_code == 0)
        except ValueError as error:
            self.fail_trial(trial, str(error))
            raise
        self.finish_trial(trial, result, find_error(folder / LOG))

    def report_values(self, trial: Trial, folder: Path, has_finished: bool = False) -> bool:
        """Report the best value after each new validation; return whether there is one."""
        metric, (values, columns) = self.file.metric, read_metric(folder, self.file.metric)
        has_validated = any(column.startswith("val/") for column in columns)
        # What is logged of training may come after the first validation.
        is_due = has_finished or (has_validated and not metric.startswith("train/"))
        is_logged = values if has_finished else metric in columns
        known = f"one that is logged: {', '.join(columns)}"
        require(is_logged or not is_due, "metric.name", metric, known)
        n_known = len(self.study.trials[trial.number].intermediate_values)
        for count in range(n_known + 1, len(values) + 1):
            trial.report(self.file.best(values[:count]), count)
        return len(values) > n_known

    def finish_trial(self, trial: Trial, result: ProcessResult, error: str) -> None:
        """Tell the study and the user how a trial has ended, and whether the sweep continues."""
        code, number = result.exit_code, trial.number
        stop_code = result.stop_code or EXIT.get(-code, code if code in EXIT.values() else 0)
        best = self.file.best(self.study.trials[number].intermediate_values.values())
        if code == 0:
            self.study.tell(trial, best)
            print(f"trial {number}: {self.file.metric} {best:.4f}", flush=True)
        elif result.is_pruned:
            self.study.tell(trial, state=TrialState.PRUNED)
            print(f"trial {number}: pruned, {self.file.metric} {best:.4f}", flush=True)
        elif stop_code:
            print(f"trial {number}: interrupted; the same command continues", flush=True)
            raise SystemExit(stop_code)
        else:
            ended = f"exit code {code}" if code > 0 else f"killed by signal {-code}"
            self.fail_trial(trial, f"{ended}: {error}".removesuffix(": "))
        if result.stop_code:
            raise SystemExit(result.stop_code)

    def fail_trial(self, trial: Trial, reason: str) -> None:
        """Note a failure; end the sweep if a key is misspelt, or the first trials have failed."""
        trial.set_user_attr("reason", reason)
        self.study.tell(trial, state=TrialState.FAIL)
        print(f"trial {trial.number}: failed ({reason})", flush=True)
        ended = [each.state for each in self.study.trials if each.state.is_finished()]
        enough = 1 if UNKNOWN_KEY in reason else MAX_FIRST_FAILURES
        if len(ended) >= enough and all(state == TrialState.FAIL for state in ended):
            raise ValueError(f"the first trials failed; the last: {reason}")


def make_command(
    config: Mapping[str, Any], parameters: Mapping[str, Any], folder: Path
) -> list[str]:
    """Return the command that W&B's agent would run, by this Python and in the trial's folder."""
    macros = {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": [sys.executable],
        "${args}": [f"--{key}={value}" for key, value in parameters.items()],
    }
    words = [each for word in map(str, config["command"]) for each in macros.get(word, [word])]
    return [*words, f"--trainer.default_root_dir={folder}", "--resume=auto"]


def run_process(
    command: Sequence[str], folder: Path, group: str, should_prune: Callable[[], bool]
) -> ProcessResult:
    """Run a trial's process until it ends; a signal or pruning asks it to save and to end.

    It leads a session of its own, so that Ctrl-C reaches only the sweep, which passes it on.
    """
    lock, pending, is_pruned, is_told = lock_process(folder), PendingSignals(), False, False
    environment = {"WANDB_MODE": "offline", **os.environ, "WANDB_RUN_GROUP": group}
    with lock, (folder / LOG).open("ab") as log, handle_signals(pending.handlers()):
        streams = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log}
        options = {"env": environment, "start_new_session": True, "pass_fds": [lock.fileno()]}
        process = subprocess.Popen(command, **streams, **options)
        print(process.pid, file=lock, flush=True)
        pending.kill = partial(os.killpg, process.pid, signal.SIGKILL)
        try:
            while process.poll() is None:
                time.sleep(POLL)
                stop_code, save = pending.take()
                if save:
                    process.send_signal(SAVE)
                is_pruned = is_pruned or (not is_told and should_prune())
                if (stop_code or is_pruned) and not is_told:
                    process.terminate()
                    is_told = True
        finally:
            # An error here must not lose what the trial has learnt.
            if process.poll() is None:
                process.terminate()
                process.wait()
    return ProcessResult(process.returncode, pending.exit_code, is_pruned)


def lock_process(folder: Path) -> TextIO:
    """Take the lock of a trial's process; one that a killed sweep has left is stopped first."""
    lock = (folder / "process.lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.seek(0)
        pid = lock.read().strip()
        print(f"waiting for process {pid} of a killed sweep, which saves and ends", flush=True)
        # Without a number, its sweep was killed before it could write it.
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(pid), signal.SIGTERM)
        fcntl.flock(lock, fcntl.LOCK_EX)
    lock.truncate(0)
    return lock
