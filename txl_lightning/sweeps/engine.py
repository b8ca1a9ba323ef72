"""W&B's sweep file, with Optuna's proposals and pruning.

A proposal depends on the file, the seed, and the trials so far, so that an interrupted sweep
proposes what it would have proposed. Different from W&B's own service:

- `grid` takes the combinations in the file's order; W&B sorts the keys first.
- `random` draws other random numbers. The distributions `beta`, `inv_log_uniform` and
  `categorical_w_probabilities` are refused, and so is `q_uniform` in a grid.
- `bayes` is a tree-structured Parzen estimator (Bergstra et al. 2011) after N_RANDOM random trials,
  W&B's a Gaussian process. It leaves out failed trials: `metric.impute` has no effect.
- `early_terminate` is asynchronous successive halving (Li et al. 2020): Hyperband with one bracket,
  as W&B's. At validations min_iter * eta^k, or max_iter / eta^(s - k), a trial goes on if its best
  value so far is among the best 1/eta of all that came there; W&B compares the values of that
  validation. `strict` has no effect.
"""

import itertools
import json
import math
import os
import random
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import NormalDist
from typing import Any

import optuna
import yaml
from filelock import FileLock
from optuna import Study, Trial
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import JournalStorage, journal
from optuna.trial import TrialState

from ..errors import flatten_settings, require

METHODS = ("grid", "random", "bayes")
MACROS = ("${env}", "${interpreter}", "${args}")
SEARCH = ("method", "parameters", "metric", "command")
CHECKS = {
    "method": (lambda given: given in METHODS, f"one of {', '.join(METHODS)}"),
    "metric.name": (lambda given: isinstance(given, str), "a column of metrics.csv, as val/loss"),
    "metric.goal": (lambda given: given in (None, "minimize", "maximize"), "minimize or maximize"),
    "metric.target": (lambda given: isinstance(given, int | float | None), "a number"),
    "run_cap": (lambda given: given is None or (is_int(given) and given > 0), "a number from 1"),
    "command": (lambda given: is_command(given), f"a list of words and {', '.join(MACROS)}"),
}
KEYS = [
    *(*CHECKS, "name", "description", "project", "entity", "program"),
    *("metric.impute", "metric.impute_while_running"),
    *(f"early_terminate.{key}" for key in ("type", "min_iter", "max_iter", "s", "eta", "strict")),
]
HYPERBAND = "type hyperband, min_iter or max_iter and s, and a whole eta from 2"
PARAMETER_KEYS = {"distribution", "value", "values", "min", "max", "q", "mu", "sigma"}
PARAMETER = "value, values, or a distribution of numbers (for YAML 1e-4 is a text, 1.0e-4 a number)"
N_RANDOM = 5


@dataclass(frozen=True)
class SweepFile:
    name: str
    metric: str
    direction: str
    config: Mapping[str, Any]

    def best(self, values: Iterable[float]) -> float | None:
        return (max if self.direction == "maximize" else min)(values, default=None)


def load_sweep_file(path: str) -> SweepFile:
    """Load and check a sweep's file; an error names the file and the key."""
    text = Path(path).read_bytes()
    try:
        config = yaml.safe_load(text)
        check_config(config)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    name, metric = config.get("name", Path(path).stem), config["metric"]
    return SweepFile(name, metric["name"], metric.get("goal", "minimize"), config)


def check_config(config: Any) -> None:
    require(isinstance(config, dict), "file", config, "keys and values")
    parameters, terminate = config.get("parameters"), config.get("early_terminate")
    is_filled = isinstance(parameters, dict) and len(parameters) > 0
    require(is_filled, "parameters", parameters, "keys of fit with their values")
    settings = flatten_settings({k: v for k, v in config.items() if k != "parameters"})
    for key in settings.keys() - set(KEYS):
        raise ValueError(f"{key}: unknown key; expected one of {', '.join(KEYS)}")
    for key, (is_valid, expected) in CHECKS.items():
        require(is_valid(settings.get(key)), key, settings.get(key), expected)
    with refuse_invalid("early_terminate", terminate, HYPERBAND):
        make_pruner(terminate)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    trial = optuna.create_study(sampler=RandomSampler()).ask()
    for key, spec in parameters.items():
        # Optuna checks what it is asked to draw.
        with refuse_invalid(f"parameters.{key}", spec, PARAMETER):
            require(set(spec) <= PARAMETER_KEYS, key, spec, PARAMETER)
            suggest_value(trial, key, spec, config["method"])


def is_int(number: Any) -> bool:
    return isinstance(number, int)


def is_command(words: Any) -> bool:
    macros = {word for word in map(str, words or ()) if word.startswith("${")}
    return isinstance(words, list) and macros <= set(MACROS)


@contextmanager
def refuse_invalid(key: str, value: object, expected: str) -> Iterator[None]:
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError):
        require(False, key, value, expected)


def open_study(file: SweepFile, folder: Path, seed: int) -> Study:
    """Open the journal of a sweep, or begin one; refuse another search's."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    path = folder / "journal.log"
    # Optuna's own locks are files, which outlive kill -9; the kernel releases this one.
    lock = FileLock(f"{path}.lock")
    with lock:
        if path.exists():
            # A line that was not written to its end (disk full) would join with the next one.
            os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    with refuse_invalid("out", path, "the journal of a sweep"):
        storage = JournalStorage(journal.JournalFileBackend(str(path), lock_obj=lock))
    pruner = make_pruner(file.config.get("early_terminate"))
    options = {"storage": storage, "pruner": pruner, "direction": file.direction}
    study = optuna.create_study(study_name="sweep", load_if_exists=True, **options)
    search = json.loads(json.dumps({key: file.config.get(key) for key in SEARCH} | {"seed": seed}))
    known = study.user_attrs.get("search", search)
    if changed := ", ".join(key for key in search if known[key] != search[key]):
        message = f"{changed}: not as when the sweep in {folder} began"
        raise ValueError(f"{message}; expected the same, or another folder as out")
    study.set_user_attr("search", search)
    return study


def make_pruner(spec: Mapping[str, Any] | None) -> BasePruner:
    if spec is None:
        return NopPruner()
    eta = spec.get("eta", 3)
    first = spec["max_iter"] // eta ** spec["s"] if "max_iter" in spec else spec["min_iter"]
    if spec["type"] != "hyperband" or not is_int(first) or not is_int(eta):
        raise ValueError
    return SuccessiveHalvingPruner(min_resource=first, reduction_factor=eta)


def ask_trial(study: Study, file: SweepFile, seed: int) -> Trial | None:
    """Return a new trial, or None after a grid's last; one process may ask at a time."""
    number, method = len(study.get_trials(deepcopy=False)), file.config["method"]
    # Each trial has a sampler of its own, because a sampler's random state is not stored.
    own_seed = random.Random(f"{seed} {number}").getrandbits(32)
    bayes = TPESampler(seed=own_seed, n_startup_trials=N_RANDOM)
    study.sampler = bayes if method == "bayes" else RandomSampler(own_seed)
    # A trial that waits was queued by a process that was killed before it asked.
    if method == "grid" and not study.get_trials(states=(TrialState.WAITING,)):
        parameters = file.config["parameters"]
        points = itertools.product(*map(list_values, parameters.values()))
        point = next(itertools.islice(points, number, None), None)
        if point is None:
            return None
        study.enqueue_trial(dict(zip(parameters, point, strict=True)))
    return study.ask()


def suggest_parameters(trial: Trial, file: SweepFile) -> dict[str, Any]:
    """Return the value of each key; asked once more, the same."""
    parameters, method = file.config["parameters"].items(), file.config["method"]
    return {key: suggest_value(trial, key, spec, method) for key, spec in parameters}


def suggest_value(trial: Trial, key: str, spec: Mapping[str, Any], method: str) -> Any:
    low, high = spec.get("min"), spec.get("max")
    is_whole = is_int(low) and is_int(high)
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
    """Return all values of a parameter that has a list of them; lists among them as JSON."""
    if spec.get("distribution", "int_uniform") == "int_uniform" and "min" in spec:
        return list(range(spec["min"], spec["max"] + 1))
    values = spec["values"] if "values" in spec else [spec["value"]]
    return [json.dumps(each) if isinstance(each, list | dict) else each for each in values]
