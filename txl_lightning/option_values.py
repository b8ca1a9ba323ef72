"""Values of options: texts as they are given, paths with their home folder, and plain refusals."""

import json
import os
import re
from collections.abc import Iterable
from contextlib import suppress
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import jsonargparse
import yaml

from .errors import describe_type, invalid
from .files import YamlLoader

# Private: jsonargparse has no public class of an option with a type, nor of one with the name of a
# group, nor of --logger.name in an option.
TypedOption = jsonargparse._typehints.ActionTypeHint
GroupAction = jsonargparse._actions._ActionConfigLoad
NestedArg = jsonargparse._util.NestedArg

PATHS = {
    *("args", "candidates", "ckpt_path", "config", "data_dir", "default_root_dir", "dir"),
    *("dirpath", "ids", "mirror", "out", "out_ids", "path", "per_token", "prompt_file"),
    *("prompt_ids", "prompts", "root_dir", "save_dir", "store", "vocab"),
}
"""Last parts of the names of options for a path; positional arguments are paths too."""
ALWAYS_TEXT = {"context", "prompt"}
"""Options for text to read, where `null` is a word like any other."""


class Text(str):
    """A text that jsonargparse, which loads only plain ones as YAML, leaves as it is."""


class ValueOption(TypedOption):
    """An option whose value from the command line is YAML only if its type has no text."""

    def __call__(self, *args: Any, **options: Any) -> Any:
        # With arguments it is called for a word; --trainer.logger.name is read by the logger's own.
        if args and isinstance(args[2], str) and args[3] in (None, *self.option_strings):
            args = (*args[:2], self.read_word(args[2]), args[3])
        return super().__call__(*args, **options)

    def read_word(self, word: str) -> Any:
        """Return null and a list of texts, if the type admits them; other words unchanged."""
        kinds = list_types(self._typehint)
        if word == "null" and type(None) in kinds and self.dest not in ALWAYS_TEXT:
            return None
        if is_text(self._typehint) and any(is_text_list(kind) for kind in kinds):
            # In JSON, which needs quotes: [T] and [a, b].txt are texts.
            with suppress(json.JSONDecodeError):
                texts = json.loads(word)
                if isinstance(texts, list) and all(isinstance(each, str) for each in texts):
                    return texts
        return word

    def _check_type(self, value: Any, append: bool = False, cfg: Any = None, mode: Any = None):
        # jsonargparse checks the words of --r 0.1 0.5 one by one.
        many = self.nargs == "+" and isinstance(value, list)
        checked = [
            self.check_word(each, append=append, cfg=cfg, mode=mode)
            for each in (value if many else [value])
        ]
        return checked if many else checked[0]

    def check_word(self, value: Any, **options: Any) -> Any:
        many = self.nargs == "+"
        try:
            word = self.prepare(value)
            checked = super()._check_type([word] if many else word, **options)
        except TypeError as error:
            if "class_path" in str(error):
                # Of a class, jsonargparse says which of its settings is wrong.
                raise
            shown = value if isinstance(value, str) else format_value(value)
            refusal = invalid(self.dest, shown, describe_type(self._typehint))
            raise TypeError(str(refusal)) from error
        checked = checked[0] if many else checked
        return str(checked) if isinstance(checked, Text) else checked

    def prepare(self, value: Any) -> Any:
        """Return a value with its home folder, as a Text if it is none of YAML."""
        if isinstance(value, NestedArg):
            # dict_kwargs are no option of the class: jsonargparse reads them as YAML.
            is_word = isinstance(value.val, str) and value.key != "dict_kwargs"
            return value._replace(val=Text(value.val)) if is_word else value
        if isinstance(value, Text):
            # A word for one of the settings of a class.
            value = self.read_word(str(value))
        if is_path(self):
            value = expand_home(value)
        # An Enum of texts is no word.
        if type(value) is not str:
            return make_whole(value, self._typehint)
        return Text(value) if is_text(self._typehint) else make_whole(value, self._typehint)


class GroupOption(GroupAction):
    """An option with the name of a group: settings by name, in YAML or in a file."""

    def resolve_subclass_spec(self, value: Any) -> Any:
        # Groups have no classes; jsonargparse takes the file net.yaml for one.
        return value


def list_types(kind: Any) -> list[Any]:
    """Return the types of a union, or a type alone."""
    return [*get_args(kind)] if get_origin(kind) in (Union, UnionType) else [kind]


def is_text(kind: Any) -> bool:
    """Return True for texts, paths and choices, and null or a list of texts besides: no YAML."""
    words = [each for each in list_types(kind) if is_word(each)]
    others = [each for each in list_types(kind) if not is_word(each)]
    return bool(words) and all(each is type(None) or is_text_list(each) for each in others)


def is_word(kind: Any) -> bool:
    """Return True for a text, a path or a choice."""
    is_class = isinstance(kind, type) and issubclass(kind, str | os.PathLike)
    return is_class or get_origin(kind) in (os.PathLike, Literal)


def is_text_list(kind: Any) -> bool:
    origin = get_origin(kind)
    is_list = isinstance(origin, type) and issubclass(origin, Iterable)
    return is_list and get_args(kind)[:1] == (str,)


def is_path(option: TypedOption) -> bool:
    is_named = option.dest.rpartition(".")[2] in PATHS or not option.option_strings
    kinds = [each for each in list_types(option._typehint) if isinstance(each, type)]
    return is_named or any(issubclass(each, os.PathLike) for each in kinds)


def expand_home(value: Any) -> Any:
    """Return a path, or a list of paths, with the home folder in place of ~ or ~user."""
    if isinstance(value, list | tuple):
        return type(value)(map(expand_home, value))
    return os.path.expanduser(value) if isinstance(value, str) else value


def make_whole(value: Any, kind: Any) -> Any:
    """Return 1e5, or 100000.0, as 100000 if a type has whole numbers and no others."""
    names = {each.__name__ for each in list_leaves(kind) if isinstance(each, type)}
    if "int" not in names or names & {"float", "str", "timedelta"}:
        return value
    if isinstance(value, list | tuple):
        return type(value)(make_whole(each, kind) for each in value)
    if isinstance(value, str) and value.startswith("["):
        with suppress(yaml.YAMLError, ValueError):
            return make_whole(yaml.load(value, YamlLoader), kind)
    if isinstance(value, float) or (isinstance(value, str) and re.search("[.eE]", value)):
        with suppress(ValueError):
            number = float(value)
            return int(number) if number.is_integer() else value
    return value


def list_leaves(kind: Any) -> list[Any]:
    parts = [] if get_origin(kind) is Literal else [p for p in get_args(kind) if p is not ...]
    return [leaf for part in parts for leaf in list_leaves(part)] or [kind]


def format_value(value: Any) -> str:
    """Return the word that an option takes for a value: null, true, a text as it is, a list."""
    if isinstance(value, float):
        # A number that JSON lacks has YAML's name.
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), str(value))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)
