"""Proposals: the values of each parameter of a trial."""

import itertools
import json
import math
import random
from collections.abc import Iterable, Mapping
from statistics import NormalDist
from typing import Any

from optuna import Study, Trial
from optuna.samplers import BaseSampler, PartialFixedSampler, RandomSampler, TPESampler
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial

N_RANDOM = 5


def make_sampler(study: Study, trial: Trial, config: Mapping[str, Any], seed: int) -> BaseSampler:
    """Return a trial's own sampler, because no storage keeps the state of random numbers.

    It depends on the number of the trial, which is unique among the processes of a study.
    """
    frozen = study.trials[trial.number]
    if config["method"] == "grid":
        parameters = config["parameters"]
        points = itertools.product(*map(list_values, parameters.values()))
        point = next(itertools.islice(points, find_index(study, frozen), None))
        return PartialFixedSampler(dict(zip(parameters, point, strict=True)), RandomSampler())
    number_seed = random.Random(f"{seed} {first_number(frozen)}").getrandbits(32)
    if config["method"] == "bayes":
        return TPESampler(seed=number_seed, n_startup_trials=N_RANDOM)
    return RandomSampler(number_seed)


def first_number(trial: FrozenTrial) -> int:
    """Return the number of a trial, or of the one that it retries."""
    number = RetryHeartbeatStaleTrialCallback.retried_trial_number(trial)
    return trial.number if number is None else number


def count_first(trials: Iterable[FrozenTrial]) -> int:
    """Return the number of trials that retry no other one."""
    return sum(first_number(trial) == trial.number for trial in trials)


def find_index(study: Study, trial: FrozenTrial) -> int:
    """Return how many trials precede a trial, or the one that it retries, without retries."""
    trials = study.get_trials(deepcopy=False)
    return count_first(each for each in trials if each.number < first_number(trial))


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
