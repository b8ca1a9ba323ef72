"""Defaults of fit on a text, a store or ids of one's own: a recipe by size, within 2 % of the best
measured.

docs/engineering-log.md has the table ("Which settings make the best model"). Options and configs
override each part; a config that sets a network or an optimizer has a recipe of its own.
"""

import math
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

import torch
import yaml
from jsonargparse import Namespace

from ..command_line import TEXTS
from ..data.datamodule import CorpusConfig
from ..data.encoding import SUBWORDS
from ..errors import flatten_settings, prefix_errors
from ..files import find_configs_folder, load_yaml
from ..model import has_bfloat16_units
from .options import TRAINER_DEFAULTS
from .settings import Given, SettingsLayer, nest

MINUTES = 5.0  # of training; measured with 2, 5 and 30
WIDE_MINUTES = 15  # from which the network is WIDE
WIDE = 192  # its d_model
SMALLEST = 50_000  # bytes of the shortest text with a recipe; shorter ones were not measured


class Size(NamedTuple):
    """Recipe of texts up to a size."""

    largest: float  # in bytes; measured up to 70 MB
    dropout: float
    wide_dropout: float | None  # of the wide network; None if the text is too short for it


SIZES = (
    Size(500_000, 0.3, None),
    Size(3_000_000, 0.1, 0.2),
    Size(math.inf, 0.0, 0.0),
)
RESTART_LEN = 512  # memories begin anew at a random place in each so many tokens
PLAN = {
    "plan.minutes": MINUTES,
    "plan.validations": 10,
    "trainer.limit_val_batches": 50,
    "trainer.max_epochs": 30,  # on 0.1 MB, 74 passes were worse
    "trainer.max_steps": -1,
}
"""How long a run is and how it is validated, whatever the size of the text."""
STEPS = {"max_steps": TRAINER_DEFAULTS["max_steps"], "max_time": None, "fast_dev_run": False}
"""Options of the Trainer, with their defaults; with another value, minutes are not planned."""


def find_recipe(given: Given) -> SettingsLayer | None:
    """Return the recipe of a text of one's own, by its length; an empty one if it is too short.

    None: a config gives a network or an optimizer, or ckpt_path or no such text is given.
    """
    if not needs_recipe(given):
        return None
    data = read_data(given)
    n_byte = data.source.count_own_bytes()
    if n_byte == 0:
        # A corpus; or a text that cannot be read, and preparing it says why.
        return None
    if n_byte < SMALLEST:
        length = f"{n_byte:,} bytes, less than {SMALLEST:,}"
        return SettingsLayer(f"no recipe for a text of {length}: the defaults are used", {})
    steps = {name: given.get(f"trainer.{name}", default) for name, default in STEPS.items()}
    is_planned = steps == STEPS and not given.names("trainer.max_steps")
    size = next(each for each in SIZES if n_byte <= each.largest)
    minutes = (given.get_number("plan.minutes") or MINUTES) if is_planned else 0
    recipe = choose_recipe(size, minutes)
    if data.uses("subwords") and data.vocab is None:
        # How many there are depends on the text alone, so that prepare makes the same.
        recipe["data.vocab"] = SUBWORDS[0]
    if is_planned:
        recipe |= PLAN
    if given.names("trainer.val_check_interval"):
        recipe.pop("plan.validations", None)
    if is_bfloat16_faster(given.get_text("trainer.accelerator", "auto")):
        recipe["trainer.precision"] = "bf16-mixed"
    return SettingsLayer(f"recipe for a text of {n_byte / 1e6:.1f} MB", nest(recipe))


def needs_recipe(given: Given) -> bool:
    """Return True if no config, class or ckpt_path gives a network or an optimizer.

    Single settings of them in words do not count, nor a checkpoint that `resume` finds.
    """
    models = [layer.tree.get("model", {}) for layer in given.configs]
    has_model = any({"net", "optim", "class_path"} & model.keys() for model in models)
    is_new = given.get_text("ckpt_path") in (None, "last")
    return is_new and not has_model and given.net_class is None


def read_data(given: Given) -> CorpusConfig:
    """Return the settings of the text as they are given; the parser refuses what is no setting."""
    values = {key: read_value(key, value) for key, value in given.values.items()}
    settings = nest(values).get("data", {})
    names = {field.name for field in fields(CorpusConfig)}
    with prefix_errors("data"):
        return CorpusConfig(**{name: settings[name] for name in names & settings.keys()})


def read_value(key: str, value: Any) -> Any:
    """Return a value as the parser will read it: a word that is no text is YAML."""
    if not isinstance(value, str) or key.rpartition(".")[2] in TEXTS:
        return value
    with suppress(yaml.YAMLError, ValueError):
        return load_yaml(value)
    return value


def choose_recipe(size: Size, minutes: float) -> dict[str, Any]:
    """Return settings of the network and the optimizer for a size of texts."""
    recipe = load_shared() | {"data.restart_len": RESTART_LEN, "model.net.dropout": size.dropout}
    if minutes >= WIDE_MINUTES and size.wide_dropout is not None:
        recipe |= {"model.net.d_model": WIDE, "model.net.dropout": size.wide_dropout}
    return recipe


def load_shared() -> dict[str, Any]:
    """Return what all recipes share: the network and the optimizer of the quickstart."""
    config = load_yaml((find_configs_folder() / "quickstart.yaml").read_text())
    clip = {"gradient_clip_val": config["trainer"]["gradient_clip_val"]}
    return flatten_settings({"model": config["model"], "trainer": clip})


def is_bfloat16_faster(accelerator: str) -> bool:
    if accelerator != "cpu" and torch.cuda.is_available():
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return has_bfloat16_units(torch.device("cpu"))


def describe_recipe(recipe: SettingsLayer, settings: Namespace) -> str:
    """Return the line about what a run with a recipe is; some of it may be given otherwise."""
    if not recipe.tree:
        return recipe.origin
    data = settings.data
    net = settings.model.net
    minutes = settings.plan.minutes
    vocab = data.vocab or ("ids" if data.ids else "the vocabulary of the store")
    if vocab in SUBWORDS and data.subwords.n_token:
        vocab = f"{vocab} of {data.subwords.n_token:,} subwords"
    limit = f"{minutes:g} min, at most " if minutes else ""
    steps = settings.trainer.max_steps
    passes = settings.trainer.max_epochs
    ends = [f"{passes:,} pass{'es' * (passes != 1)} over the text"] if passes >= 0 else []
    ends += [f"{steps:,} steps"] if steps >= 0 else []
    duration = limit + " and ".join(ends)
    sizes = f"{net.n_layer} layers of {net.d_model}, dropout {net.dropout:g}"
    precision = settings.trainer.precision or "32-true"
    chosen = f"{vocab}; {sizes}; {settings.model.optim.name}; {precision}"
    if data.restart_len:
        chosen += f"; memories restart once in every {data.restart_len} tokens"
    return f"{recipe.origin}: {chosen}; {duration}"
