"""Sweep: trials proposed and pruned by Optuna, as a W&B sweep file specifies.

A proposal depends on the file, the seed and the earlier trials, so that an interrupted sweep
continues with the same proposals. The trials are in a journal in the sweep's folder, or in a
database that several machines share. Differences from W&B's own service:

- `grid` takes the combinations in the file's order; W&B sorts the keys first.
- `random` draws other random numbers. The distributions `beta`, `inv_log_uniform` and
  `categorical_w_probabilities` are refused, and so is `q_uniform` in a grid.
- `bayes` is a tree-structured Parzen estimator (Bergstra et al. 2011) after N_RANDOM random trials,
  W&B's a Gaussian process. It leaves out failed trials: `metric.impute` has no effect.
- `early_terminate` is asynchronous successive halving (Li et al. 2020): Hyperband with one bracket,
  as W&B's. At validations min_iter * eta^k, or max_iter / eta^(s - k), a trial continues if its
  best value so far is among the best 1/eta of all trials that got there; W&B compares the values
  of that validation. `strict` has no effect.
"""

import json
import math
import os
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import optuna
import sqlalchemy
import yaml
from filelock import FileLock
from optuna import Study, Trial
from optuna.exceptions import ExperimentalWarning, StorageInternalError, UpdateFinishedTrialError
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler
from optuna.storages import BaseStorage, JournalStorage, RDBStorage, journal
from optuna.trial import TrialState

from ..errors import StorageError, flatten_settings, format_line, invalid, require
from ..files import load_yaml
from .proposals import count_first, find_index, list_values, make_sampler, suggest_value

METHODS = ("grid", "random", "bayes")
MACROS = ("${env}", "${interpreter}", "${args}")
SEARCH = ("method", "parameters", "metric", "command")
CHECKS = {
    "method": (lambda value: value in METHODS, f"one of {', '.join(METHODS)}"),
    "metric.name": (lambda value: isinstance(value, str), "a column of metrics.csv (val/loss)"),
    "metric.goal": (lambda value: value in (None, "minimize", "maximize"), "minimize or maximize"),
    "metric.target": (lambda value: isinstance(value, int | float | None), "a number"),
    "run_cap": (lambda value: value is None or (type(value) is int and value > 0), "1 or more"),
    "command": (
        lambda value: (
            isinstance(value, list)
            and {word for word in map(str, value) if word.startswith("${")} <= set(MACROS)
        ),
        f"a list of words and {', '.join(MACROS)}",
    ),
    "parameters": (lambda value: isinstance(value, dict) and value, "keys of fit with values"),
}
KEYS = [
    *(*CHECKS, "name", "description", "project", "entity", "program"),
    *("metric.impute", "metric.impute_while_running"),
    *(f"early_terminate.{key}" for key in ("type", "min_iter", "max_iter", "s", "eta", "strict")),
]
HYPERBAND = "type hyperband, min_iter or max_iter and s, and a whole number eta of 2 or more"
PARAMETER_KEYS = {"distribution", "value", "values", "min", "max", "q", "mu", "sigma"}
PARAMETER = "value, values, or a distribution of numbers (for YAML 1e-4 is a text, 1.0e-4 a number)"
HEARTBEAT, GRACE = 60, 300
"""Seconds between heartbeats of a trial in a database, and after which its machine has died."""
MAX_RETRIES = 3  # retries of a trial whose machine has died
CONNECTIONS = 5
"""Tries to open a database, one second apart: two processes may make its tables at once."""
# Errors of Optuna from unexpected values in a sweep file or a journal.
INVALID = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError)
INVALID += (TypeError, ValueError)


@dataclass(frozen=True)
class Sweep:
    """A sweep file, and the trials in the journal of its folder, or in a database.

    Changes require the lock, which is for the processes of one machine.
    """

    config: Mapping[str, Any]
    folder: Path
    seed: int
    study: Study
    lock: FileLock
    storage: BaseStorage

    @property
    def metric(self) -> str:
        return self.config["metric"]["name"]

    @property
    def is_maximized(self) -> bool:
        return self.config["metric"].get("goal") == "maximize"

    def best(self, values: Iterable[float]) -> float | None:
        return (max if self.is_maximized else min)(values, default=None)

    def ask_trial(self, limit: int | None = None) -> Trial | None:
        """Return a trial that waits for a retry, or a new one; None if there are `limit`, or after
        the last point of a grid. Requires the lock."""
        most = math.inf if limit is None else limit
        if self.config["method"] == "grid":
            specs = self.config["parameters"].values()
            most = min(most, math.prod(len(list_values(spec)) for spec in specs))
        is_waiting = bool(self.study.get_trials(states=(TrialState.WAITING,)))
        if not is_waiting and count_first(self.study.get_trials(deepcopy=False)) >= most:
            return None
        trial = self.study.ask()
        if find_index(self.study, self.study.trials[trial.number]) < most:
            self.keep_alive(trial)
            return trial
        trial.set_user_attr("reason", "not run: another machine has taken the last one")
        self.study.tell(trial, state=TrialState.FAIL)
        return None

    def keep_alive(self, trial: Trial) -> None:
        """Record a heartbeat of a trial in a database; UpdateFinishedTrialError if too late."""
        if isinstance(self.storage, RDBStorage):
            if self.study.trials[trial.number].state.is_finished():
                raise UpdateFinishedTrialError
            # Private: Optuna's own loop runs a trial as a function, not as a process.
            self.storage.record_heartbeat(trial._trial_id)

    def suggest_parameters(self, trial: Trial) -> dict[str, Any]:
        """Return the value of each key; repeated calls return the same values."""
        self.study.sampler = make_sampler(self.study, trial, self.config, self.seed)
        parameters, method = self.config["parameters"].items(), self.config["method"]
        return {key: suggest_value(trial, key, spec, method) for key, spec in parameters}


def load_sweep_file(path: str) -> dict[str, Any]:
    """Load and check a sweep file; errors name the file and the key."""
    text = Path(path).read_bytes()
    try:
        config = load_yaml(text)
        check_config(config)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    return {"name": Path(path).stem, **config}


def check_config(config: Any) -> None:
    require(isinstance(config, dict), "file", config, "keys and values")
    settings = flatten_settings({k: v for k, v in config.items() if k != "parameters"})
    settings["parameters"] = parameters = config.get("parameters")
    for key in sorted(settings.keys() - set(KEYS)):
        raise ValueError(f"{key}: unknown key; expected one of {', '.join(KEYS)}")
    for key, (is_valid, expected) in CHECKS.items():
        require(is_valid(settings.get(key)), key, settings.get(key), expected)
    make_pruner(config)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(sampler=RandomSampler()).ask()
    for key, spec in parameters.items():
        # Optuna checks the distributions.
        with refuse_invalid(f"parameters.{key}", spec, PARAMETER):
            require(set(spec) <= PARAMETER_KEYS, key, spec, PARAMETER)
        check_range(key, spec)
        with refuse_invalid(f"parameters.{key}", spec, PARAMETER):
            suggest_value(trial, key, spec, config["method"])


def check_range(key: str, spec: Mapping[str, Any]) -> None:
    """Refuse min above max, and a min that has no logarithm."""
    low, high, name = spec.get("min"), spec.get("max"), spec.get("distribution", "")
    if not (isinstance(low, int | float) and isinstance(high, int | float)):
        return
    require(low <= high, f"parameters.{key}.min", low, f"at most max ({high})")
    is_positive = low > 0 or not str(name).endswith("log_uniform_values")
    require(is_positive, f"parameters.{key}.min", low, f"above 0 for {name}")


@contextmanager
def refuse_invalid(key: str, value: object, expected: str) -> Iterator[None]:
    try:
        yield
    except INVALID as error:
        raise invalid(key, value, expected) from error


def open_sweep(config: Mapping[str, Any], folder: Path, seed: int, url: str | None = None) -> Sweep:
    """Open or create the journal of a sweep, or its study in a database; refuse that of a sweep
    with other settings."""
    # Heartbeats and retries are experimental; a trial here is a process, not a function.
    warnings.filterwarnings("ignore", category=ExperimentalWarning)
    warnings.filterwarnings("ignore", "Heartbeat of storage is supposed")
    path = folder / "journal.log"
    # Optuna's own lock files stay after kill -9; the kernel releases this one.
    lock = FileLock(f"{path}.lock")
    name, goal = config["name"] if url else "sweep", config["metric"].get("goal", "minimize")
    options = {"study_name": name, "direction": goal, "pruner": make_pruner(config)}
    with lock:
        database = open_database(url) if url else None
        where = ("storage", name) if url else ("out", path)
        with refuse_invalid(*where, "the journal or the study of a sweep"):
            storage = database or open_journal(path, lock)
            study = optuna.create_study(storage=storage, load_if_exists=True, **options)
            search = {key: config.get(key) for key in SEARCH} | {"seed": seed}
            search = json.loads(json.dumps(search))
            saved = study.user_attrs.get("search", search)
            changed = ", ".join(key for key in search if saved[key] != search[key])
        if changed:
            message = f"{changed}: changed since the sweep in {folder} began"
            raise ValueError(f"{message}; expected no change, or another folder as out")
        study.set_user_attr("search", search)
    return Sweep(config, folder, seed, study, lock, storage)


def open_journal(path: Path, lock: FileLock) -> JournalStorage:
    if path.exists():
        # Remove an incomplete line (disk full), with which the next one would merge.
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    return JournalStorage(journal.JournalFileBackend(str(path), lock_obj=lock))


def open_database(url: str) -> RDBStorage:
    """Open or create Optuna's tables in a database; StorageError if that is impossible."""
    options = {"heartbeat_interval": HEARTBEAT, "grace_period": GRACE}
    retry = optuna.storages.RetryHeartbeatStaleTrialCallback(MAX_RETRIES)
    options["heartbeat_stale_trial_callback"] = retry
    try:
        # Without the password.
        name = sqlalchemy.make_url(url).render_as_string()
        for _ in range(CONNECTIONS - 1):
            with suppress(sqlalchemy.exc.SQLAlchemyError, StorageInternalError):
                return RDBStorage(url, {"pool_pre_ping": True}, **options)
            time.sleep(1)
        return RDBStorage(url, {"pool_pre_ping": True}, **options)
    except sqlalchemy.exc.ArgumentError as error:
        raise ValueError("storage: not a URL; expected postgresql://USER@HOST/NAME") from error
    except ImportError as error:
        hint = "pip install 'txl-lightning[postgres]', or the driver of another database"
        raise ValueError(f"storage: {name}: its driver is missing; {hint}") from error
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        reason = str(error.__cause__ or error)
        raise StorageError(format_line(f"storage: {name}: cannot be opened ({reason})")) from error


def make_pruner(config: Mapping[str, Any]) -> BasePruner:
    spec = config.get("early_terminate")
    if spec is None:
        return NopPruner()
    with refuse_invalid("early_terminate", spec, HYPERBAND):
        eta = spec.get("eta", 3)
        first = spec["max_iter"] // eta ** spec["s"] if "max_iter" in spec else spec["min_iter"]
        if spec["type"] != "hyperband" or not all(isinstance(n, int) for n in (first, eta)):
            raise ValueError
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=eta)
