"""What a sweep has done so far: a value, and its file."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from ..files import explain_write_errors, flush_to_disk, temporary_path

ENDED = ("finished", "stopped", "failed")
"""States in which a trial stays; the others are running, stopping and interrupted."""

FILE = "sweep.json"


@dataclass(frozen=True)
class Trial:
    """One run of a sweep."""

    number: int
    parameters: dict[str, Any]
    state: str = "running"
    history: tuple[float, ...] = ()
    """The metric, each time that it was logged."""
    steps: int = 0
    tokens: int | None = None
    seconds: float = 0.0
    """How long it was at work, in all."""
    exit_code: int | None = None
    reason: str | None = None
    """Why it failed."""

    @property
    def folder(self) -> str:
        """Its name in the folder of the sweep."""
        return f"{self.number:03}"

    @property
    def has_ended(self) -> bool:
        """Whether nothing more comes of it."""
        return self.state in ENDED


@dataclass(frozen=True)
class Sweep:
    """What is searched, and the trials in their order."""

    search: dict[str, Any]
    """What the trials depend on: method, parameters, metric, command."""
    seed: int
    trials: tuple[Trial, ...] = field(default=())

    @property
    def n_ended(self) -> int:
        """How many trials are done."""
        return sum(trial.has_ended for trial in self.trials)

    @property
    def open(self) -> Trial | None:
        """The trial that was begun and has not ended."""
        return next((trial for trial in self.trials if not trial.has_ended), None)

    def with_trial(self, trial: Trial) -> "Sweep":
        """The same with a trial in its place, or after the last."""
        at = trial.number - 1
        return replace(self, trials=(*self.trials[:at], trial, *self.trials[at + 1 :]))


def save(sweep: Sweep, folder: Path) -> None:
    """Write all of it or nothing.

    Raises:
        StorageError: it cannot be written; what was there is as it was.
    """
    path = folder / FILE
    with explain_write_errors(path):
        with temporary_path(path).open("w", encoding="utf-8") as file:
            json.dump(asdict(sweep), file, indent=1)
        flush_to_disk(temporary_path(path))
        os.replace(temporary_path(path), path)


def load(folder: Path) -> Sweep | None:
    """What was saved; None where no sweep was begun.

    Raises:
        ValueError: what is there is something else.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        trials = tuple(trial_of(each) for each in known.pop("trials"))
        return Sweep(**known, trials=trials)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"out: {path} is not a sweep's; give another folder") from error


def trial_of(known: Mapping[str, Any]) -> Trial:
    """A trial as it was saved."""
    return Trial(**{**known, "history": tuple(known["history"])})


def check_same(begun: Sweep, given: Sweep, folder: Path) -> None:
    """Refuse to go on with another search.

    Raises:
        ValueError: with what has changed.
    """
    changed = [key for key in given.search if begun.search.get(key) != given.search[key]]
    changed += ["seed"] * (begun.seed != given.seed)
    if changed:
        said = f"{', '.join(changed)}: not as when the sweep in {folder} began"
        is_lost = all(trial.state == "failed" for trial in begun.trials)
        hint = f" (no trial of it ended well: rm -r {folder})" if is_lost else ""
        raise ValueError(f"{said}; it must be the same, or out another folder{hint}")
