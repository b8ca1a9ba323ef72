"""The settings of a run, and where each comes from: layers of them, merged in one place.

defaults < recipe of the text < checkpoint and its run < configs < words of the command line

A layer is a mapping of plain values with its origin. `read_given` reads what the user gives, each
file once; `Resolved` has all layers; `parse` parses them, merged into one config, with the words.
"""

import os
import re
from argparse import ArgumentError
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from jsonargparse import Namespace

from ..command_line import (
    PROGRAM,
    Parser,
    format_value,
    is_option,
    keep_texts,
    read_options,
)
from ..errors import CheckpointError, flatten_settings, invalid, prefix_errors, require, shorten
from ..files import dump_yaml, expand_home, find_config, load_yaml
from ..imports import OWN, find_network_class, suggest_config
from ..model.config import CLASS

WORDS = "command line"
NET_CLASS = f"model.net.{CLASS}"
CONFIG_OPTIONS = ("-c", "--config")
SECTIONS = {
    *("model", "model.net", "model.optim", "data", "data.words", "data.subwords", "data.task"),
    *("data.id_options", "trainer", "plan", "checkpoint", "report", "wandb", "adapt"),
}
"""Settings with others below them; any other mapping, as of a class, is one value."""

Tree = dict[str, Any]


class SettingsLayer(NamedTuple):
    """Settings of one origin, by name; those of words have their whole keys."""

    origin: str
    tree: Tree
    path: Path | None = None  # of a config's file
    is_saved: bool = False  # of a checkpoint, whose settings nobody has typed now
    reasons: Any = None  # of a recipe: text and device

    @property
    def flat(self) -> dict[str, Any]:
        """Settings by whole key."""
        return flatten_settings(self.tree)


@dataclass(frozen=True)
class Given:
    """Settings that the user gives: configs, and the words that override them."""

    configs: list[SettingsLayer]
    words: list[str]

    @property
    def layers(self) -> list[SettingsLayer]:
        return [*self.configs, SettingsLayer(WORDS, read_options(self.words))]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The last value of each setting that is given, by whole key."""
        return flatten_settings(merge_layers(self.configs)) | self.layers[-1].tree

    def get(self, key: str, default: Any = None) -> Any:
        """Return the last value of a setting that is given, which the parser checks later."""
        return self.values.get(key, self.values.get(f"{key}+", default))

    def get_text(self, key: str, default: str | None = None) -> str | None:
        value = self.get(key, default)
        require(not isinstance(value, list | dict), key, format_value(value), "a text, or null")
        return value if value is None else str(value)

    def get_number(self, key: str, default: float | None = None) -> float | None:
        value = self.get(key, default)
        try:
            return None if value in (None, "null") else float(value)
        except (TypeError, ValueError) as error:
            raise invalid(key, format_value(value), "a number") from error

    def names(self, *keys: str) -> bool:
        """Return True if one of these settings, or one below it, is given and not null."""
        given = [f"{key}." for key, value in self.values.items() if value is not None]
        return any(each.startswith((f"{key}.", f"{key}+.")) for each in given for key in keys)

    @property
    def net_class(self) -> str | None:
        """The class of the network's settings, where it is not ours."""
        return self.get_text(NET_CLASS)


@dataclass(frozen=True)
class Resolved:
    """All settings that are no defaults, by origin; the last one counts."""

    given: Given
    below: list[SettingsLayer]  # of the recipe and of the checkpoint, which what is given overrides

    @property
    def layers(self) -> list[SettingsLayer]:
        return [*self.below, *self.given.layers]

    @property
    def tree(self) -> Tree:
        """All settings below the words."""
        return merge_layers([*self.below, *self.given.configs])

    @property
    def arguments(self) -> list[str]:
        """The words, after one config with all layers below them."""
        config = ["--config", dump_yaml(self.tree)] if self.tree else []
        return [*config, *self.given.words]

    @property
    def values(self) -> dict[str, Any]:
        return flatten_settings(self.tree) | self.given.layers[-1].tree

    def find_layer(self, key: str) -> SettingsLayer:
        """Return the layer that decides a setting."""
        for layer in reversed(self.layers):
            for name in layer.flat:
                each = name.removesuffix("+")
                if f"{key}.".startswith(f"{each}.") or f"{each}.".startswith(f"{key}."):
                    return layer
        return SettingsLayer("default", {})


def read_given(words: list[str]) -> Given:
    """Read the words of a command, and the configs and sections that they name, each once."""
    configs = []
    others = []
    rest = iter(words)
    for word in rest:
        option, sign, value = word.partition("=")
        name = option.removeprefix("--")
        if option not in CONFIG_OPTIONS and not (is_option(word) and name in SECTIONS):
            others.append(word)
            continue
        value = value if sign else next(rest, "")
        is_config = option in CONFIG_OPTIONS
        configs.append(read_config(value) if is_config else read_section_option(name, value))
    if found := find_network_class(read_options(others).get(NET_CLASS)):
        configs.append(SettingsLayer(WORDS, nest_settings({NET_CLASS: found})))  # as --model.net
        others.append(f"--{NET_CLASS}={found}")
    if passes_decide([*configs, SettingsLayer(WORDS, read_options(others))]):
        configs.append(SettingsLayer("trainer.max_epochs", {"trainer": {"max_steps": -1}}))
    return Given(configs, others)


def passes_decide(layers: list[SettingsLayer]) -> bool:
    """Return True if max_epochs, other than -1, is in a later layer than max_steps, or alone."""
    for layer in reversed(layers):
        given = layer.flat
        if "trainer.max_steps" in given:
            return False
        if "trainer.max_epochs" in given:
            return str(given["trainer.max_epochs"]) != "-1"
    return False


def read_config(name: str) -> SettingsLayer:
    """Read a config: a file, the name of an included one, or YAML."""
    path = find_config(name)
    # A pipe is a file too. A long text is YAML, as a mapping with braces or over several lines.
    is_file = os.path.lexists(path)
    is_possible = not os.path.isdir(path) if is_file else bool(re.search(r"[:{\[\n]", path))
    require(is_possible, "config", name, f"a file, or a name that `{PROGRAM} configs` lists")
    with prefix_errors(shorten(name), ": "):
        tree = load_settings(Path(path).read_text(encoding="utf-8") if is_file else name)
        tree = {} if tree is None else tree
        if not isinstance(tree, dict):
            raise ValueError(f"invalid {shorten(format_value(tree))}; expected settings by name")
        inner = tree.get("config")
        expected = "--config on the command line, once for each file"
        require(inner is None, "config", format_value(inner), expected)
        return SettingsLayer(name, read_sections(tree), Path(path).absolute() if is_file else None)


def load_settings(text: str) -> Any:
    """Load YAML; a mistake is a ValueError with its line."""
    try:
        return load_yaml(text)
    except yaml.MarkedYAMLError as error:
        where = f"line {error.problem_mark.line + 1}" if error.problem_mark else "it"
        raise ValueError(f"{where} is no YAML: {error.problem}") from error
    except yaml.YAMLError as error:
        raise ValueError(str(error)) from error


def read_sections(tree: Tree, above: str = "") -> Tree:
    """Return settings with each section as a mapping, and without empty ones."""
    found = {}
    for name, value in tree.items():
        key = f"{above}{name}"
        base = str(name).removesuffix("+")
        # callbacks+ follow those of earlier configs.
        is_possible = base == str(name) or (base not in tree and value is not None)
        expected = f"a list, and no {above}{base} here"
        require(is_possible, key, format_value(value), expected)
        if key not in SECTIONS:
            found[str(name)] = value
        elif value is not None and (section := read_section(key, value)):
            found[name] = section
    return found


def read_section(key: str, value: Any) -> Tree:
    """Return a section, given as a mapping, as a file with one, or as the network's class."""
    if key == "model.net" and (name := find_network_class(value)):
        return {CLASS: name}
    content = value
    if isinstance(value, str):
        is_file = os.path.isfile(expand_home(value))
        text = Path(expand_home(value)).read_text(encoding="utf-8") if is_file else value
        try:
            content = load_yaml(text)
        except (yaml.YAMLError, ValueError):
            content = None
    others = f"; or one of {', '.join(OWN)}" if key == "model.net" else ""
    expected = f"settings by name (--{key}.NAME VALUE), or a YAML file with them{others}"
    require(isinstance(content, dict), key, format_value(value), expected)
    if name := find_network_class(content.get(CLASS)):
        content = content | {CLASS: name}
    return read_sections(content, f"{key}.")


def read_section_option(key: str, value: str) -> SettingsLayer:
    """Return the layer of a word such as --data text.yaml."""
    origin = value if os.path.isfile(expand_home(value)) else WORDS
    return SettingsLayer(origin, nest_settings({key: read_section(key, value)}))


def nest_settings(flat: Mapping[str, Any]) -> Tree:
    """Return settings by whole key as a tree."""
    tree: Tree = {}
    for key, value in flat.items():
        *above, last = key.split(".")
        place = tree
        for name in above:
            if not isinstance(place.get(name), dict):
                place[name] = {}
            place = place[name]
        place[last] = value
    return tree


def merge_layers(layers: Iterable[SettingsLayer]) -> Tree:
    """Return the tree of all layers; of two values the later one counts."""
    tree: Tree = {}
    for layer in layers:
        tree = override_settings(tree, layer.tree)
    return tree


def override_settings(before: Tree, after: Tree, above: str = "") -> Tree:
    """Return settings with later ones; a list of `name+` follows that of `name`."""
    both = dict(before)
    for name, value in after.items():
        base = name.removesuffix("+")
        old = before.get(base)
        if base != name:
            added = [*as_list(before.get(name)), *as_list(value)]
            both |= {name: added} if old is None else {base: [*as_list(old), *as_list(value)]}
            continue
        both.pop(f"{name}+", None)
        is_part = isinstance(old, dict) and isinstance(value, dict)
        if is_part and f"{above}{name}" in SECTIONS:
            both[name] = join_section(old, value, f"{above}{name}.")
        elif is_part and ("init_args" in value or CLASS in value):
            both[name] = join_class(old, value)
        else:
            both[name] = value
    return both


def join_section(before: Tree, after: Tree, above: str) -> Tree:
    """Return a section with later settings; those of another class replace all of it."""
    is_other = CLASS in before and not is_same_class(before, after)
    return after if is_other else override_settings(before, after, above)


def join_class(before: Tree, after: Tree) -> Tree:
    """Return a class with later arguments; another class has none of those of the one before."""
    if not is_same_class(before, after):
        return after
    arguments = {**(before.get("init_args") or {}), **(after.get("init_args") or {})}
    return {**before, **after, "init_args": arguments}


def is_same_class(before: Tree, after: Tree) -> bool:
    """Return True if `after` names no other class; one may be named without its module."""
    old = str(before.get(CLASS))
    new = str(after.get(CLASS, old))
    return new == old or new.rpartition(".")[2] == old or old.rpartition(".")[2] == new


def as_list(value: Any) -> list[Any]:
    if value is None:
        return []
    return value if isinstance(value, list) else [value]


def parse(parser: Parser, resolved: Resolved) -> Namespace:
    """Return the settings of all layers; a mistake is a ValueError of one line with its origin."""
    try:
        # Without the text of the layers, which is no setting.
        settings = parser.parse_args(resolved.arguments).clone(with_meta=False)
    except ArgumentError as error:
        raise explain_refusal(parser, resolved, str(error)) from error
    settings.config = None
    keep_texts(settings, resolved.values)
    return settings


def explain_refusal(parser: Parser, resolved: Resolved, message: str) -> ValueError:
    """Return the error of a setting that the parser refuses, with where it comes from."""
    line = parser.explain_error(message, resolved.values)
    key = line.partition(":")[0]
    layer = resolved.find_layer(key)
    if layer.is_saved:
        reason = f"it has a setting that this release does not know ({line})"
        return CheckpointError(f"ckpt_path: {layer.origin}: {reason}")
    is_file = layer.origin not in (WORDS, "default")
    net_class = resolved.given.net_class
    if is_file and net_class and key.startswith("model.net.") and NET_CLASS not in layer.flat:
        line = f"{key}: a setting of another network; {suggest_config(net_class)}"
    return ValueError(f"{shorten(layer.origin)}: {line}" if is_file else line)


def list_origins(
    settings: Tree, defaults: Mapping[str, Any], resolved: Resolved
) -> Iterator[tuple[str, str, str]]:
    """Yield each setting that is no default, its value and its origin."""
    for key, value in flatten_settings(settings).items():
        # The default of the class is the one that is given.
        if value != defaults.get(key) or key == NET_CLASS:
            yield key, format_value(value), resolved.find_layer(key).origin
