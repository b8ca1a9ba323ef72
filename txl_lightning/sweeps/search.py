"""A sweep file of W&B, checked, and the values that Optuna proposes for its trials.

A proposal depends on the file, the seed and the earlier trials, so that a sweep goes on with the
same ones. Differences from W&B: a grid has the file's order, `random` other numbers; `bayes` is a
tree-structured Parzen estimator (Bergstra et al. 2011) without the failed trials, not a Gaussian
process; `early_terminate` is asynchronous successive halving (Li et al. 2020), Hyperband with one
bracket: at validations min_iter * eta^k a trial continues if its best value so far is among the
best 1/eta of all trials that got there.
"""

import itertools
import json
import math
import os
import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import optuna
import yaml
from optuna import Study, Trial
from optuna.pruners import BasePruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import RandomSampler, TPESampler
from optuna.storages import BaseStorage, JournalStorage, journal
from optuna.trial import TrialState

from ..errors import flatten_settings, invalid, prefix_errors, print_notice, require
from ..files import YamlLoader
from ..runs.folder import list_versions

NAME = "sweep"  # of the study in a journal
N_RANDOM = 5  # trials before the first one of the estimator
CHECKS = {
    "method": (lambda it: it in ("grid", "random", "bayes"), "one of grid, random, bayes"),
    "metric.name": (lambda it: isinstance(it, str), "a column of metrics.csv (val/loss)"),
    "metric.goal": (lambda it: it in (None, "minimize", "maximize"), "minimize or maximize"),
    "run_cap": (lambda it: it is None or (type(it) is int and it > 0), "1 or more"),
    "command": (lambda it: isinstance(it, list), "a list of words, with ${args} among them"),
    "parameters": (lambda it: isinstance(it, dict) and it, "keys of fit with values"),
}
KEYS = [*CHECKS, "name", "description", "project", "entity", "program"]
KEYS += [f"early_terminate.{key}" for key in ("type", "min_iter", "eta")]
HALVING = "type hyperband, min_iter, and a whole number eta of 2 or more"
PARAMETER_KEYS = {"distribution", "value", "values", "min", "max"}
DISTRIBUTIONS = (None, "uniform", "int_uniform", "log_uniform_values")
PARAMETER = "value, values, or a distribution of numbers (for YAML 1e-4 is a text, 1.0e-4 a number)"
# Errors of Optuna from unexpected values in a sweep file or a journal.
INVALID = (ArithmeticError, AssertionError, AttributeError, LookupError, RecursionError)
INVALID += (TypeError, ValueError)


class SweepLoader(YamlLoader):
    """Loads a sweep file as W&B does, by YAML 1.1, in which 1e-4 is a text."""

    yaml_implicit_resolvers = yaml.SafeLoader.yaml_implicit_resolvers


def load_sweep_file(path: str) -> dict[str, Any]:
    """Load and check a sweep file; errors name the file and the key."""
    text = Path(path).read_bytes()
    try:
        config = yaml.load(text, SweepLoader)
        check_config(config)
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {' '.join(str(error).split())}") from error
    return {"name": Path(path).stem, **config}


def check_config(config: Any) -> None:
    require(isinstance(config, dict), "file", config, "keys and values")
    settings = flatten_settings({k: v for k, v in config.items() if k != "parameters"})
    parameters = config.get("parameters")
    settings["parameters"] = parameters
    for key in sorted(settings.keys() - set(KEYS)):
        raise ValueError(f"{key}: unknown key; expected one of {', '.join(KEYS)}")
    for key, (is_valid, expected) in CHECKS.items():
        require(is_valid(settings.get(key)), key, settings.get(key), expected)
    make_pruner(config)
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    trial = optuna.create_study(sampler=RandomSampler()).ask()
    for key, spec in parameters.items():
        with prefix_errors("parameters"):
            check_parameter(trial, key, spec, config["method"])
    require_effect(config)


def require_effect(config: Mapping[str, Any]) -> None:
    """Refuse settings of a `config` parameter that the words of the command would replace."""
    words = [word for word in map(str, config["command"]) if word.startswith("--")]
    names = {word.removeprefix("--").partition("=")[0] for word in words}
    spec = config["parameters"].get("config", {"values": []})
    for text in list_values(spec):
        with suppress(yaml.YAMLError):
            given = yaml.safe_load(str(text))
            for key in sorted(
                names & flatten_settings(given if isinstance(given, dict) else {}).keys()
            ):
                expected = f"a value in one place: --{key} in command counts before a config"
                raise invalid(f"parameters.config.{key}", text, expected)


def check_parameter(trial: Trial, key: str, spec: Any, method: str) -> None:
    require(isinstance(spec, dict) and set(spec) <= PARAMETER_KEYS, key, spec, PARAMETER)
    with refuse_invalid(key, spec, PARAMETER):
        # Optuna checks the rest.
        list_values(spec) if method == "grid" else suggest_value(trial, key, spec)


@contextmanager
def refuse_invalid(key: str, value: object, expected: str) -> Iterator[None]:
    try:
        yield
    except INVALID as error:
        raise invalid(key, value, expected) from error


def open_study(config: Mapping[str, Any], folder: Path, seed: int) -> Study:
    """Open or create the journal of a sweep; refuse that of a sweep with other settings, unless
    nothing of it is of use."""
    path = folder / "journal.log"
    if path.exists():
        # Remove an incomplete line (disk full), with which the next one would merge.
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)
    search = {key: config.get(key) for key in ("method", "parameters", "metric", "command")}
    search = json.loads(json.dumps(search | {"seed": seed}))
    with refuse_invalid("out", path, "the journal of a sweep"):
        # Optuna's own lock files stay after kill -9; one process at a time is in this folder.
        backend = journal.JournalFileBackend(str(path), lock_obj=threading.Lock())
        storage = JournalStorage(backend)
        options = {"storage": storage, "pruner": make_pruner(config)}
        options |= {"direction": config["metric"].get("goal", "minimize")}
        study = optuna.create_study(study_name=NAME, load_if_exists=True, **options)
        saved = study.user_attrs.get("search", search)
        changed = [key for key in search if saved[key] != search[key]]
    if changed and is_useless(study, folder, changed, config):
        path.unlink()
        print_notice(f"{', '.join(changed)} changed, and no trial has a value: all begin again")
        return open_study(config, folder, seed)
    for key in changed:
        expected = f"that with which the sweep in {folder} began, or another folder as out"
        raise invalid(key, search[key], expected)
    study.set_user_attr("search", search)
    requeue_trials(study, storage)
    return study


def is_useless(study: Study, folder: Path, changed: list[str], config: Mapping[str, Any]) -> bool:
    """Return True if trials have ended without values, as with a mistyped option or metric. Their
    runs, which trials continue, are only of use with the same settings."""
    ended = (TrialState.COMPLETE, TrialState.PRUNED)
    has_values = any(each.state in ended or each.intermediate_values for each in study.trials)
    # Also those of an earlier journal.
    names = [each.name for each in folder.iterdir() if list_versions(each)]
    # With values, the estimator proposes others than without.
    is_random = config["method"] != "bayes" or max(names, default="") < f"{N_RANDOM:03}"
    return not has_values and (not names or (changed == ["metric"] and is_random))


def requeue_trials(study: Study, storage: BaseStorage) -> None:
    """Let each trial that was interrupted wait: Optuna, which resumes none, then runs it first."""
    study_id = storage.get_study_id_from_name(NAME)
    for trial in study.get_trials(states=(TrialState.RUNNING,)):
        trial_id = storage.get_trial_id_from_study_id_trial_number(study_id, trial.number)
        storage.set_trial_state_values(trial_id, TrialState.WAITING)


def make_pruner(config: Mapping[str, Any]) -> BasePruner:
    spec = config.get("early_terminate")
    if spec is None:
        return NopPruner()
    with refuse_invalid("early_terminate", spec, HALVING):
        first = spec["min_iter"]
        eta = spec.get("eta", 3)
        if spec["type"] != "hyperband" or not all(isinstance(n, int) for n in (first, eta)):
            raise ValueError
        return SuccessiveHalvingPruner(min_resource=first, reduction_factor=eta)


def suggest_parameters(study: Study, trial: Trial, config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value of each key; repeated calls return the same values.

    A trial has a sampler of its own, because a journal has no state of random numbers.
    """
    specs = config["parameters"]
    if config["method"] == "grid":
        points = itertools.product(*map(list_values, specs.values()))
        point = next(itertools.islice(points, trial.number, None))
        return dict(zip(specs, point, strict=True))
    seed = random.Random(f"{study.user_attrs['search']['seed']} {trial.number}").getrandbits(32)
    study.sampler = RandomSampler(seed)
    if config["method"] == "bayes":
        study.sampler = TPESampler(seed=seed, n_startup_trials=N_RANDOM)
    return {key: suggest_value(trial, key, spec) for key, spec in specs.items()}


def suggest_value(trial: Trial, key: str, spec: Mapping[str, Any]) -> Any:
    if "values" in spec or "value" in spec:
        return trial.suggest_categorical(key, list_values(spec))
    name = spec.get("distribution")
    limits = spec["min"], spec["max"]
    is_whole = all(isinstance(limit, int) for limit in limits)
    if name not in DISTRIBUTIONS or (name == "int_uniform" and not is_whole):
        raise ValueError
    if name == "int_uniform" or (name is None and is_whole):
        return trial.suggest_int(key, *limits)
    return trial.suggest_float(key, *limits, log=name == "log_uniform_values")


def list_values(spec: Mapping[str, Any]) -> list[Any]:
    """Return all values of a parameter with a list of values; lists and mappings become JSON."""
    if spec.get("distribution", "int_uniform") == "int_uniform" and "min" in spec:
        return list(range(spec["min"], spec["max"] + 1))
    values = spec["values"] if "values" in spec else [spec["value"]]
    return [json.dumps(each) if isinstance(each, list | dict) else each for each in values]


def count_points(config: Mapping[str, Any]) -> int | None:
    """Return the number of trials of a grid; None for a method without an end."""
    specs = config["parameters"].values() if config["method"] == "grid" else ()
    return math.prod(len(list_values(spec)) for spec in specs) if specs else None
