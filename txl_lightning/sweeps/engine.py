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

import itertools
import json
import math
import os
import random
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import optuna
import sqlalchemy
import yaml
from filelock import FileLock
from optuna import Study, Trial
from optuna.distributions import BaseDistribution
from optuna.exceptions import (
    ExperimentalWarning,
    StorageInternalError,
    UpdateFinishedTrialError,
)
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.storages import (
    BaseStorage,
    JournalStorage,
    RDBStorage,
    RetryHeartbeatStaleTrialCallback,
    fail_stale_trials,
    journal,
)
from optuna.trial import FrozenTrial, TrialState

from ..errors import StorageError, flatten_settings, format_line, invalid, require
from ..files import load_yaml

METHODS = ("grid", "random", "bayes")
MACROS = ("${env}", "${interpreter}", "${args}")
SEARCH = ("method", "parameters", "metric", "command")
CHECKS = {
    "method": (lambda value: value in METHODS, f"one of {', '.join(METHODS)}"),
    "metric.name": (lambda value: isinstance(value, str), "a column of metrics.csv (val/loss)"),
    "metric.goal": (lambda value: value in (None, "minimize", "maximize"), "minimize or maximize"),
    "metric.target": (lambda value: isinstance(value, int | float | None), "a number"),
    "run_cap": (lambda value: value is None or (isinstance(value, int) and value > 0), "1 or more"),
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
N_RANDOM = 5
HEARTBEAT, GRACE = 60, 300
"""Seconds between two signs of life of a trial in a database, and after which it is dead."""
MAX_RETRIES = 3
"""Retries of a trial whose machine has died."""
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
        """Record a sign of life of a trial in a database; UpdateFinishedTrialError if too late."""
        if isinstance(self.storage, RDBStorage):
            if self.study.trials[trial.number].state.is_finished():
                raise UpdateFinishedTrialError
            # Private: Optuna's own loop runs a trial as a function, not as a process.
            self.storage.record_heartbeat(trial._trial_id)

    def retry_dead_trials(self) -> None:
        """Fail the trials without a sign of life for GRACE seconds, and queue each again."""
        fail_stale_trials(self.study)

    def suggest_parameters(self, trial: Trial) -> dict[str, Any]:
        """Return the value of each key; repeated calls return the same values."""
        parameters, method = self.config["parameters"].items(), self.config["method"]
        return {key: suggest_value(trial, key, spec, method) for key, spec in parameters}


class NumberedSampler(BaseSampler):
    """Proposes by the number of a trial, which is unique among the processes of a study.

    Each trial has its own sampler, because no storage keeps the state of random numbers.
    """

    def __init__(self, config: Mapping[str, Any], seed: int) -> None:
        self.config, self.seed = config, seed

    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        seed = random.Random(f"{self.seed} {first_number(trial)}").getrandbits(32)
        bayes = TPESampler(seed=seed, n_startup_trials=N_RANDOM)
        self.sampler = bayes if self.config["method"] == "bayes" else RandomSampler(seed)

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        return self.sampler.infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self.sampler.sample_relative(study, trial, search_space)

    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, distribution: BaseDistribution
    ) -> Any:
        if self.config["method"] != "grid":
            return self.sampler.sample_independent(study, trial, param_name, distribution)
        parameters = self.config["parameters"]
        points = itertools.product(*map(list_values, parameters.values()))
        point = next(itertools.islice(points, find_index(study, trial), None))
        return dict(zip(parameters, point, strict=True))[param_name]


def first_number(trial: FrozenTrial) -> int:
    """Return the number of a trial, or of the dead one that it retries."""
    number = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if number is None else number


def count_first(trials: Iterable[FrozenTrial]) -> int:
    """Return the number of trials that retry no other one."""
    return sum(first_number(trial) == trial.number for trial in trials)


def find_index(study: Study, trial: FrozenTrial) -> int:
    """Return how many trials precede a trial, or the one that it retries, without retries."""
    trials = study.get_trials(deepcopy=False)
    return count_first(each for each in trials if each.number < first_number(trial))


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
    for key in settings.keys() - set(KEYS):
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
            suggest_value(trial, key, spec, config["method"])


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
    options = {"study_name": config["name"] if url else "sweep", "load_if_exists": True}
    options |= {"direction": config["metric"].get("goal", "minimize")}
    options |= {"sampler": NumberedSampler(config, seed), "pruner": make_pruner(config)}
    with lock:
        database = open_database(url) if url else None
        where = ("storage", options["study_name"]) if url else ("out", path)
        with refuse_invalid(*where, "the journal or the study of a sweep"):
            storage = database or open_journal(path, lock)
            study = optuna.create_study(storage=storage, **options)
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
    options["heartbeat_stale_trial_callback"] = RetryHeartbeatStaleTrialCallback(MAX_RETRIES)
    try:
        # Without the password.
        name = sqlalchemy.make_url(url).render_as_string()
        for attempt in range(CONNECTIONS):
            try:
                return RDBStorage(url, {"pool_pre_ping": True}, **options)
            except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError):
                if attempt == CONNECTIONS - 1:
                    raise
                time.sleep(1)
    except sqlalchemy.exc.ArgumentError as error:
        raise ValueError("storage: not a URL; expected postgresql://USER@HOST/NAME") from error
    except ImportError as error:
        hint = "pip install 'txl-lightning[postgres]', or the driver of another database"
        raise ValueError(f"storage: {name}: its driver is missing; {hint}") from error
    except (sqlalchemy.exc.SQLAlchemyError, StorageInternalError) as error:
        reason = str(error.__cause__ or error)
        raise StorageError(format_line(f"storage: {name}: cannot be opened ({reason})")) from error
    raise AssertionError


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


def suggest_value(trial: Trial, key: str, spec: Mapping[str, Any], method: str) -> Any:
    low, high = spec.get("min"), spec.get("max")
    is_whole = isinstance(low, int) and isinstance(high, int)
    name = spec.get("distribution", "int_uniform" if is_whole else "uniform")
    if method == "grid" or "values" in spec or "value" in spec:
        return trial.suggest_categorical(key, list_values(spec))
    match name.removeprefix("q_"):
        case "int_uniform" if is_whole:
            return trial.suggest_int(key, low, high)
        case "uniform":
            value = trial.suggest_float(key, low, high)
        case "log_uniform":
            value = trial.suggest_float(key, math.exp(low), math.exp(high), log=True)
        case "log_uniform_values":
            value = trial.suggest_float(key, low, high, log=True)
        case "normal" | "log_normal":
            quantile = trial.suggest_float(key, 1e-6, 1 - 1e-6)
            value = NormalDist(spec.get("mu", 0), spec.get("sigma", 1)).inv_cdf(quantile)
            value = math.exp(value) if "log" in name else value
        case _:
            raise ValueError
    step = spec.get("q", 1)
    return round(value / step) * step if name.startswith("q_") else value


def list_values(spec: Mapping[str, Any]) -> list[Any]:
    """Return all values of a parameter with a list of values; lists and mappings become JSON."""
    if spec.get("distribution", "int_uniform") == "int_uniform" and "min" in spec:
        return list(range(spec["min"], spec["max"] + 1))
    values = spec["values"] if "values" in spec else [spec["value"]]
    return [json.dumps(each) if isinstance(each, list | dict) else each for each in values]
