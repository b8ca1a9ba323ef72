"""Defaults of fit on a text, a store or ids of one's own: a recipe by the text, the device and the
minutes.

The two small networks were within 1 % of the best measured (docs/engineering-log.md, "Which
settings make the best model"). Larger ones are reckoned (network_size.py). Options and configs
override each part. With a config that sets a network or an optimizer, there is no recipe.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields
from typing import Any, NamedTuple

import torch
import yaml
from jsonargparse import Namespace

from ..command_line import TEXTS, Parser
from ..data.datamodule import CorpusConfig
from ..data.encoding import SMALLEST, SUBWORDS, OwnLength
from ..errors import flatten_settings, prefix_errors
from ..files import find_configs_folder, load_yaml
from ..model import has_bfloat16_units
from .network_size import (
    CPU,
    LADDER,
    MOST_PASSES,
    Device,
    Network,
    Text,
    choose_network,
    count_parameters,
    count_passes,
    describe_card,
    find_limit,
    format_millions,
    reckon_speed,
)
from .options import TRAINER_DEFAULTS, check_settings
from .settings import WORDS, Given, Resolved, SettingsLayer, nest_settings, parse

MINUTES = 5.0  # of training; measured with 2, 5 and 30
WIDE_MINUTES = 15  # from which the network is WIDE
WIDE = 192  # its d_model
TOKEN_BYTES = 3  # of a token of ids whose text is unknown, about
BYTES_PER_TOKEN = {300: 1.0, 1024: 2.6, 2048: 2.9, math.inf: 3.4}  # by size of the vocabulary
UNKNOWN_VOCAB = 32_000  # size of a vocabulary that is not known before its text is read
NET_SIZES = [f"model.net.{name}" for name in ("n_layer", "n_head", "d_model", "d_head", "d_inner")]
PAPER_DROPOUT = 0.1  # at least, where a text is read more often than MOST_PASSES


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
"""Length and validation of a run, whatever the size of the text."""
STEPS = {"max_steps": TRAINER_DEFAULTS["max_steps"], "max_time": None, "fast_dev_run": False}
"""Options of the Trainer, with their defaults; with another value, minutes are not planned."""


def find_recipe(
    given: Given, parser: Parser | None = None, saved: Sequence[SettingsLayer] = ()
) -> SettingsLayer | None:
    """Return the recipe of a text of one's own; an empty one if the text is too short, or if words
    name another network.

    None: a config gives a network or an optimizer, or ckpt_path or no such text is given. A parser
    refuses what is given, above the layer that is saved, before the text is read: it may be large.
    """
    if not needs_recipe(given):
        return None
    if parser:
        refuse_mistakes(given, parser, saved)
    data = read_data(given)
    length = data.source.measure_own()
    if length.n_byte == 0:
        # A corpus; or a text that cannot be read, and preparing it says why.
        return None
    if given.net_class:
        name = given.net_class.rpartition(".")[2]
        return SettingsLayer(f"no recipe for the network {name}: the defaults are used", {})
    n_byte = estimate_bytes(length)
    if n_byte < SMALLEST:
        short = f"{n_byte:,} bytes, less than {SMALLEST:,}"
        return SettingsLayer(f"no recipe for a text of {short}: the defaults are used", {})
    text = estimate_text(length, data)
    accelerator = given.get_text("trainer.accelerator", "auto")
    device = find_device(accelerator)
    recipe = adapt_recipe(given, n_byte, text, device)
    if data.uses("subwords") and data.vocab is None:
        # How many there are depends on the text alone, so that prepare makes the same.
        recipe["data.vocab"] = SUBWORDS[0]
    if is_bfloat16_faster(accelerator):
        recipe["trainer.precision"] = "bf16-mixed"
    origin = f"recipe for {describe_length(length)} on {device.name}"
    return SettingsLayer(origin, nest_settings(recipe), reasons=(text, device))


def adapt_recipe(given: Given, n_byte: float, text: Text, device: Device) -> dict[str, Any]:
    """Return the recipe of a text, without what conflicts with settings that are given."""
    # Sizes that are given in part would not fit to the others of a larger network.
    ladder = LADDER[:1] if given.names(*NET_SIZES) else LADDER
    recipe = choose_recipe(n_byte, text, device, find_minutes(given), ladder)
    if given.names("trainer.val_check_interval"):
        recipe.pop("plan.validations", None)
    return recipe


def refuse_mistakes(given: Given, parser: Parser, saved: Sequence[SettingsLayer]) -> None:
    """Raise the error of what is given if it is wrong whatever the text is.

    That is without a recipe, with that of the shortest text, and with that of a long one.
    """
    problem = None
    for n_byte in (0, SMALLEST, math.inf) if given.net_class is None else (0,):
        recipe = adapt_recipe(given, n_byte, Text(SMALLEST, UNKNOWN_VOCAB), CPU)
        layers = [SettingsLayer("recipe", nest_settings(recipe if n_byte else {})), *saved]
        try:
            return check_settings(parser, parse(parser, Resolved(given, layers)))
        except ValueError as error:
            problem = error
    assert problem is not None
    raise problem


def needs_recipe(given: Given) -> bool:
    """Return True if no config or ckpt_path gives a network or an optimizer.

    Words do not count, nor a checkpoint that `resume` finds.
    """
    models = [each.tree.get("model", {}) for each in given.configs if each.origin != WORDS]
    has_model = any({"net", "optim", "class_path"} & model.keys() for model in models)
    is_new = given.get_text("ckpt_path") in (None, "last")
    return is_new and not has_model


def read_data(given: Given) -> CorpusConfig:
    """Return the settings of the text as they are given; the parser refuses what is no setting."""
    values = {key: read_value(key, value) for key, value in given.values.items()}
    settings = nest_settings(values).get("data", {})
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


def find_minutes(given: Given) -> float:
    """Return the minutes of a run; 0 if steps or another limit are given in place of them."""
    steps = {name: given.get(f"trainer.{name}", default) for name, default in STEPS.items()}
    if steps != STEPS or given.names("trainer.max_steps"):
        return 0.0
    return given.get_number("plan.minutes") or MINUTES


def estimate_bytes(length: OwnLength) -> int:
    if length.n_byte is not None:
        return length.n_byte
    assert length.n_token is not None
    return TOKEN_BYTES * length.n_token


def estimate_text(length: OwnLength, data: CorpusConfig) -> Text:
    """Return the tokens of a text, estimated from its bytes.

    Also where a store has counted them: a text and the store of it have the same network.
    """
    n_vocab = length.n_vocab or estimate_vocabulary(length, data)
    if length.n_byte is None:
        assert length.n_token is not None
        return Text(length.n_token, n_vocab)
    each = next(size for most, size in BYTES_PER_TOKEN.items() if n_vocab <= most)
    return Text(length.n_byte / each, n_vocab)


def estimate_vocabulary(length: OwnLength, data: CorpusConfig) -> int:
    """Return the size of the vocabulary of a text that is not prepared yet."""
    if data.vocab in ("bytes", "characters"):
        return 256
    is_trained = length.n_byte is not None and data.vocab in (None, *SUBWORDS)
    n_token = data.subwords.fill(length.n_byte).n_token if is_trained else None
    return n_token or UNKNOWN_VOCAB


def describe_length(length: OwnLength) -> str:
    n_byte = estimate_bytes(length)
    if length.n_byte is not None:
        return f"a text of {n_byte / 1e6:.1f} MB"
    return f"{length.n_token:,} ids of unknown bytes, taken for {n_byte / 1e6:.1f} MB"


def find_device(accelerator: str | None) -> Device:
    """Return what is expected of the device that the Trainer takes: of the first of several."""
    if accelerator == "cpu":
        return CPU
    if torch.cuda.is_available():
        return describe_card(torch.cuda.get_device_properties(0))
    is_other = accelerator not in ("auto", None) or torch.backends.mps.is_available()
    return Device("another device", None, "") if is_other else CPU


def choose_recipe(
    n_byte: float,
    text: Text,
    device: Device,
    minutes: float,
    ladder: Sequence[Network] = LADDER,
) -> dict[str, Any]:
    """Return the settings of a run of so many minutes; of 0 minutes, those without its length."""
    size = next(each for each in SIZES if n_byte <= each.largest)
    recipe = load_shared() | {"data.restart_len": RESTART_LEN, "model.net.dropout": size.dropout}
    if minutes:
        recipe |= PLAN
    if minutes >= WIDE_MINUTES and size.wide_dropout is not None:
        recipe |= {"model.net.d_model": WIDE, "model.net.dropout": size.wide_dropout}
    network = choose_network(text, device, minutes, ladder)
    if count_passes(network, text, device, minutes) > MOST_PASSES:
        recipe["model.net.dropout"] = max(recipe["model.net.dropout"], PAPER_DROPOUT)
    return recipe if network == LADDER[0] else recipe | scale_settings(recipe, network)


def scale_settings(recipe: dict[str, Any], network: Network) -> dict[str, Any]:
    """Return the settings of a network that is wider than the quick start's.

    An update of Muon has the same root mean square in each width, so that its norm grows with the
    root of the width (`muon.py`). Rates and weights are scaled so that outputs change as much as in
    the quick start's network (Yang et al. 2023).
    """
    wider = network.d_model / LADDER[0].d_model
    return {
        "model.net.n_layer": network.n_layer,
        "model.net.d_model": network.d_model,
        "model.net.n_head": network.n_head,
        "model.net.mem_len": network.mem_len,
        "model.net.init_std": recipe["model.net.init_std"] / math.sqrt(wider),
        "model.optim.lr": recipe["model.optim.lr"] / wider,
        "model.optim.muon_lr": recipe["model.optim.muon_lr"] / math.sqrt(wider),
        "data.batch_size": network.rows,
        "data.tgt_len": network.tgt_len,
        # As many segments as in the quick start's network.
        "data.restart_len": RESTART_LEN // LADDER[0].tgt_len * network.tgt_len,
    }


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
    """Return the lines about what a run with a recipe is; some of it may be given otherwise."""
    if not recipe.tree:
        return recipe.origin
    data = settings.data
    net = settings.model.net
    vocab = data.vocab or ("ids" if data.ids else "the vocabulary of the store")
    if vocab in SUBWORDS and data.subwords.n_token:
        vocab = f"{vocab} of {data.subwords.n_token:,} subwords"
    sizes = f"{net.n_layer} layers of {net.d_model}, dropout {net.dropout:g}"
    precision = settings.trainer.precision or "32-true"
    chosen = f"{vocab}; {sizes}; {settings.model.optim.name}; {precision}"
    if data.restart_len:
        chosen += f"; memories restart once in every {data.restart_len} tokens"
    line = f"{recipe.origin}: {chosen}; {describe_end(settings)}"
    reasons = explain_size(*recipe.reasons, settings) if settings.plan.minutes else ""
    return "\n".join(filter(None, [line, reasons]))


def describe_end(settings: Namespace) -> str:
    """Return what ends a run: minutes, passes or steps."""
    minutes = settings.plan.minutes
    steps = settings.trainer.max_steps
    passes = settings.trainer.max_epochs
    limit = f"{minutes:g} min, at most " if minutes else ""
    ends = [f"{passes:,} pass{'es' * (passes != 1)} over the text"] if passes >= 0 else []
    ends += [f"{steps:,} steps"] if steps >= 0 else []
    return limit + " and ".join(ends)


def explain_size(text: Text, device: Device, settings: Namespace) -> str:
    """Return the line about why the network has its size, and how much of the text it reads."""
    net = settings.model.net
    data = settings.data
    shape = net.n_layer, net.d_model, net.n_head, data.batch_size, data.tgt_len, net.mem_len
    network = Network(*shape)
    minutes = settings.plan.minutes
    size = count_parameters(network, text.n_vocab)
    reasons = (
        f"{device.name}, {minutes:g} min, about {format_millions(text.n_token)} tokens of text"
    )
    found = f"{format_millions(size)} parameters"
    if device.rate is not None:
        found += describe_reading(network, text, device, settings)
    larger = [each for each in LADDER if count_parameters(each, text.n_vocab) > size]
    limit = find_limit(larger[0], text, device, minutes) if larger else None
    return f"why: {reasons}: {found}{f'; {limit}' if limit else ''}"


def describe_reading(network: Network, text: Text, device: Device, settings: Namespace) -> str:
    """Return how much of the text is read, at the speed that is expected."""
    minutes = settings.plan.minutes
    most = settings.trainer.max_epochs
    speed = float(f"{reckon_speed(network, text.n_vocab, device):.2g}")
    n_pass = count_passes(network, text, device, minutes)
    reads = f" read it {n_pass:,.1f} times"
    if 0 <= most < n_pass:
        reads = f" read it {most:,} times, before the minutes are over,"
    if n_pass < 0.95:
        whole = f"--plan.minutes {math.ceil(minutes / n_pass):,}"
        reads = f" read {100 * n_pass:.2g} % of it ({whole} for one pass)"
    return f"{reads} at about {speed:,.0f} tokens/s ({device.source})"
