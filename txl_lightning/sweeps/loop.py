"""Trial after trial, each kept in the sweep's folder as soon as anything is known of it."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

from ..errors import MISSPELT
from . import engine, logged, results
from .command import command_of
from .file import SweepFile
from .runner import LOG, Ended, alone, from_outside, no_trial, run
from .trials import FILE, Sweep, Trial, check_same, load, save

AT_FIRST = 3
"""So many trials that fail before any has ended well say that something is wrong with all."""


@dataclass
class Loop:
    """A sweep that is at work in its folder."""

    file: SweepFile
    folder: Path
    sweep: Sweep
    lock: TextIO

    def next(self) -> Trial | None:
        """The trial that was broken off, or else a new one; None where there are no more."""
        if self.sweep.open:
            return replace(self.sweep.open, state="running")
        trials = self.sweep.trials
        parameters = engine.propose(self.file.config, self.sweep.seed, trials)
        return parameters and Trial(len(trials) + 1, parameters)

    def make(self, trial: Trial) -> tuple[Trial, Ended]:
        """Run a trial to its end, whatever that is."""
        where = self.folder / trial.folder
        where.mkdir(exist_ok=True)
        command = command_of(self.file.config, trial.parameters, where)
        others = [other for other in self.sweep.trials if other.number != trial.number]
        # One that has come to its end by itself is not to be stopped when it is looked at again.
        seen = len(logged.read(where, self.file.metric).values)

        def is_hopeless() -> bool:
            nonlocal seen
            found = logged.read(where, self.file.metric)
            self.check_columns(trial, found.columns)
            values = found.values
            before, seen = seen, len(values)
            if "early_terminate" not in self.file.config:
                return False
            now = replace(trial, history=values)
            hopeless = seen > before and engine.is_hopeless(self.file.config, others, now)
            if hopeless:
                # Before it ends: so it is known, also if the sweep is killed meanwhile.
                self.keep(replace(now, state="stopping"))
            return hopeless

        ended = run(command, where, self.file.name, self.lock, is_hopeless)
        return self.judged(trial, ended), ended

    def judged(self, trial: Trial, ended: Ended) -> Trial:
        """What became of a trial."""
        was_stopped = self.sweep.trials[trial.number - 1].state == "stopping"
        trial = replace(trial, seconds=trial.seconds + ended.seconds, exit_code=ended.code)
        if ended.code == 0:
            return self.known(trial, "finished")
        if was_stopped:
            return self.known(trial, "stopped")
        if ended.exit_code or from_outside(ended.code):
            return self.known(trial, "interrupted")
        said = logged.complaint(self.folder / trial.folder / LOG)
        what = f"exit code {ended.code}" if ended.code > 0 else f"killed by signal {-ended.code}"
        return replace(self.known(trial, "failed"), reason=f"{what}: {said}" if said else what)

    def known(self, trial: Trial, state: str) -> Trial:
        """A trial with what it has logged."""
        found = logged.read(self.folder / trial.folder, self.file.metric)
        now = {"history": found.values, "steps": found.steps, "tokens": found.tokens}
        return replace(trial, state=state, **now)

    def keep(self, trial: Trial) -> None:
        """Write down what is known of a trial."""
        self.sweep = self.sweep.with_trial(trial)
        save(self.sweep, self.folder)

    def settle(self) -> None:
        """Take up what a killed sweep has left: a trial that was being stopped has ended."""
        trial = self.sweep.open
        if trial is None or trial.state == "interrupted":
            return
        # The sweep was written when the trial began, and the log when it ended.
        log, began = self.folder / trial.folder / LOG, (self.folder / FILE).stat().st_mtime
        alone = max(log.stat().st_mtime - began, 0) if log.exists() else 0
        trial = replace(trial, seconds=trial.seconds + alone)
        self.keep(self.known(trial, "stopped" if trial.state == "stopping" else "interrupted"))

    def check_columns(self, trial: Trial, columns: tuple[str, ...]) -> None:
        """Refuse a metric that a trial's first validation has not logged.

        Raises:
            ValueError: with the columns that there are.
        """
        name = self.file.metric
        has_validated = any(column.startswith("val/") for column in columns)
        # What is logged of training may come later.
        if has_validated and name not in columns and not name.startswith("train/"):
            self.keep(replace(trial, state="failed", reason=f"{name} is not logged"))
            raise self.unlogged(columns)

    def check_metric(self) -> None:
        """Refuse a metric that no trial has logged.

        Raises:
            ValueError: with the columns that there are.
        """
        finished = [trial for trial in self.sweep.trials if trial.state == "finished"]
        if finished and not any(trial.history for trial in self.sweep.trials):
            where = self.folder / finished[0].folder
            raise self.unlogged(logged.read(where, self.file.metric).columns)

    def unlogged(self, columns: tuple[str, ...]) -> ValueError:
        """What is wrong with the metric."""
        has = ", ".join(columns) or "nothing, or is missing"
        said = f"metric.name: {self.file.metric} is logged by no trial"
        return ValueError(f"{said}; it must be in their metrics.csv, which has {has}")

    def write(self) -> None:
        """The tables and the picture of all that has ended."""
        results.write(self.sweep, self.file, self.folder)


def carry_out(file: SweepFile, folder: Path, seed: int, limit: int | None) -> Sweep:
    """Begin a sweep or go on with it, until so many trials have ended, or none is left.

    Raises:
        ValueError: another search was begun there, another sweep is at work there, or nothing in
            the file works.
        SystemExit: a signal came.
    """
    with alone(folder):
        given = Sweep(file.search, seed)
        sweep = load(folder) or given
        check_same(sweep, given, folder)
        with no_trial(folder) as lock:
            loop = Loop(file, folder, sweep, lock)
            loop.settle()
            loop.write()
            loop.check_metric()
            for trial in until(loop, limit):
                one(loop, trial)
        return loop.sweep


def until(loop: Loop, limit: int | None) -> Iterator[Trial]:
    """The trials to make now.

    Raises:
        ValueError: the first ones have all failed, or the first one has for good.
    """
    before = loop.sweep.n_ended
    while (limit is None or loop.sweep.n_ended < limit) and not is_reached(loop):
        trial = loop.next()
        if trial is None:
            return
        yield trial
        ended = loop.sweep.trials
        # A misspelt key is misspelt in every trial.
        enough = 1 if MISSPELT in (ended[-1].reason or "") else AT_FIRST
        if len(ended) - before >= enough and all(each.state == "failed" for each in ended):
            which = f"the first {len(ended)} trials failed; the last" if ended[1:] else "trial 1"
            raise ValueError(f"{which}: {ended[-1].reason}")


def is_reached(loop: Loop) -> bool:
    """Whether a trial is as good as the file wants it."""
    target, sign = loop.file.config["metric"].get("target"), loop.file.sign
    values = [value for trial in loop.sweep.trials for value in trial.history]
    return target is not None and any(sign * value <= sign * target for value in values)


def one(loop: Loop, trial: Trial) -> None:
    """Make a trial, and say so.

    Raises:
        SystemExit: a signal came; the trial is kept, to be gone on with.
    """
    is_new = trial.number > len(loop.sweep.trials)
    print(f"trial {trial.number}{'' if is_new else ' goes on'}: {words(trial)}", flush=True)
    loop.keep(trial)
    trial, ended = loop.make(trial)
    loop.keep(trial)
    loop.write()
    print(f"trial {trial.number}: {outcome(trial, loop.file)}", flush=True)
    if trial.state == "interrupted" or ended.exit_code:
        print("the same command goes on", flush=True)
        raise SystemExit(ended.exit_code or from_outside(ended.code))
    loop.check_metric()


def words(trial: Trial) -> str:
    """What a trial tries."""
    return ", ".join(f"{name} {shown(value)}" for name, value in trial.parameters.items())


def shown(value: object) -> str:
    """A value, without more digits than a person reads."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def outcome(trial: Trial, file: SweepFile) -> str:
    """What became of it, in words."""
    if trial.state == "failed":
        return f"failed after {trial.seconds:.0f} s ({trial.reason})"
    best = file.best(trial.history)
    value = f"{file.metric} not logged" if best is None else f"{file.metric} {best:.4f}"
    state = "" if trial.state == "finished" else f"{trial.state}, "
    return f"{state}{value}, {trial.steps:,} steps, {trial.seconds:.0f} s"
