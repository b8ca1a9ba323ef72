"""Runs in groups that differ in some settings, and the best of the other settings in each group.

A key names a setting, or all settings below it: model.net is a whole network.
"""

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from statistics import fmean
from typing import Any

from ..errors import require
from ..imports import NETWORKS
from ..model.config import CLASS
from .listing import Run
from .metrics_table import find_differences, format_setting

SEED = "seed_everything"
NET = "model.net"
NET_CLASS = f"{NET}.{CLASS}"
OURS = "TransformerXL"  # the network of a config without a class
# Settings that decide where things are and what is printed, and nothing of a result.
NO_RESULT = (
    *("checkpoint", "ckpt_path", "data.data_dir", "report", "resume", "wandb"),
    *("trainer.default_root_dir", "trainer.enable_progress_bar", "trainer.logger"),
    "trainer.log_every_n_steps",
)


def check_keys(runs: Sequence[Run], by: str) -> list[str]:
    """Return the keys that `by` lists; a seed, and a key that no run has, are a ValueError."""
    keys = by.split(",")
    for key in keys:
        expected = "another setting: seeds are paired, and never compared"
        require(not is_seed(key), "by", key, expected)
        is_known = key == NET_CLASS or any(select_settings(run, [key]) for run in runs)
        require(is_known, "by", key, "a setting of these runs, as model.net.mem_len, or model.net")
    return keys


def group_runs(runs: Sequence[Run], keys: Sequence[str]) -> dict[str, list[Run]]:
    """Return the runs by the name of their group, in the order of the names.

    The order of the folders is that in which runs ended: two trials of a sweep may change places.

    Raises:
        ValueError: all runs are of one group.
    """
    names = name_groups(runs, keys)
    expected = "a setting with two values or more in these runs"
    require(len({*names}) > 1, "by", f"{','.join(keys)} (the same in all runs)", expected)
    groups: dict[str, list[Run]] = {}
    for run, name in zip(runs, names, strict=True):
        groups.setdefault(name, []).append(run)
    return {name: groups[name] for name in sorted(groups, key=split_numbers)}


def split_numbers(name: str) -> list[tuple[bool, float, str]]:
    """Return the words of a name so that they sort with numbers by their value, before texts."""
    words = re.split(r"[\s,()]+", name)
    numbers = [read_number(word) for word in words]
    return [(n is None, n or 0.0, word) for n, word in zip(numbers, words, strict=True)]


def read_number(word: str) -> float | None:
    try:
        number = float(word)
    except ValueError:
        return None
    return number if math.isfinite(number) else None


def choose_runs(name: str, runs: Sequence[Run], keys: Sequence[str]) -> Sequence[Run]:
    """Return a group's runs; if seeds occur twice, those with the best choice of other settings.

    The best one has the lowest mean of the best validations, over the seeds that all choices have.

    Raises:
        ValueError: no seed has been trained with each of the choices.
    """
    if len({run.settings.get(SEED) for run in runs}) == len(runs):
        return runs
    choices = list_choices(runs, keys)
    shared = set.intersection(*({run.settings.get(SEED) for run in each} for each in choices))
    expected = "a seed that all of them have, to choose the best by validation"
    require(bool(shared), "runs", f"{len(choices)} choices of settings of {name}", expected)

    def average(choice: Sequence[Run]) -> float:
        return fmean(find_best(run) for run in choice if run.settings.get(SEED) in shared)

    return min(choices, key=average)


def list_choices(runs: Iterable[Run], keys: Sequence[str]) -> list[list[Run]]:
    """Return the runs of each choice of the other settings."""
    choices: dict[str, list[Run]] = {}
    for run in runs:
        # To lack a key is no difference from null.
        others = {name: v for name, v in select_others(run, keys).items() if v is not None}
        text = json.dumps(others, default=str, sort_keys=True)
        choices.setdefault(text, []).append(run)
    return [*choices.values()]


def find_best(run: Run) -> float:
    """Return the best validation of a run, or infinity if it has none."""
    best = run.metrics.best or {}
    return best.get("bits_per_byte", best.get("nats", math.inf))


def list_other_keys(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Return the other settings that differ; those of networks of several classes are one key."""
    names = find_differences([select_others(run, keys) for run in runs])
    has_classes = NET_CLASS in {*names, *keys}
    return [*dict.fromkeys(NET if has_classes and is_part(n, [NET]) else n for n in names)]


def name_groups(runs: Sequence[Run], keys: Sequence[str]) -> list[str]:
    """Return for each run the name of its group: of one setting, the value."""
    if len(keys) == 1 and any(keys[0] in run.settings for run in runs) and keys[0] != NET_CLASS:
        return [format_setting(run.settings.get(keys[0])) for run in runs]
    return describe_settings(runs, keys)


def describe_settings(runs: Sequence[Run], keys: Iterable[str]) -> list[str]:
    """Return for each run the settings of the keys that differ among the runs, as text."""
    columns = [describe_key(runs, key) for key in keys]
    return [", ".join(filter(None, cells)) for cells in zip(*columns, strict=True)]


def describe_key(runs: Sequence[Run], key: str) -> list[str]:
    if key == NET:
        return name_networks(runs)
    if key == NET_CLASS:
        return [name_network_class(run) for run in runs]
    return describe_differences(runs, key)


def name_networks(runs: Sequence[Run]) -> list[str]:
    """Return the class of each network, and the settings that differ among those of its class."""
    classes = [name_network_class(run) for run in runs]
    names = classes.copy()
    for kind in {*classes}:
        places = [n for n, each in enumerate(classes) if each == kind]
        texts = describe_differences([runs[n] for n in places], NET)
        for n, text in zip(places, texts, strict=True):
            names[n] = f"{kind} ({text})" if text else kind
    return names


def name_network_class(run: Run) -> str:
    value = run.settings.get(NET_CLASS)
    names = {path: name for name, path in NETWORKS.items()}
    return OURS if value is None else names.get(value, str(value))


def describe_differences(runs: Sequence[Run], key: str) -> list[str]:
    """Return for each run its settings of a key that differ among the runs, as text."""
    columns = find_differences([select_settings(run, [key]) for run in runs])
    parent = key.rpartition(".")[0]
    short = {n: n.removeprefix(f"{parent if n == key else key}.") for n in columns}
    # A run of an earlier release may lack what others have as null.
    nullable = {n for n in columns if any(run.settings.get(n, 0) is None for run in runs)}
    return [
        ", ".join(
            f"{short[n]} {columns[n][row] or 'null'}"
            for n in columns
            if n in run.settings or n in nullable
        )
        for row, run in enumerate(runs)
    ]


def select_settings(run: Run, keys: Iterable[str]) -> Mapping[str, Any]:
    return {name: run.settings[name] for name in run.settings if is_part(name, keys)}


def select_others(run: Run, keys: Iterable[str]) -> Mapping[str, Any]:
    """Return the settings on which a result may depend, apart from the keys and seeds."""
    apart = [*keys, *NO_RESULT]
    names = [n for n in run.settings if not is_part(n, apart) and not is_seed(n)]
    return {name: run.settings[name] for name in names}


def is_part(name: str, keys: Iterable[str]) -> bool:
    """Return True for a setting that is one of the keys, or below one of them."""
    return any(f"{name}.".startswith(f"{key}.") for key in keys)


def is_seed(name: str) -> bool:
    return name.rpartition(".")[2] in ("seed", SEED)
