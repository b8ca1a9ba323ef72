"""Messages of jsonargparse as one line: option or key, value, and what is expected."""

import difflib
import inspect
import re
import sys
from collections.abc import Iterable

from .errors import shorten, suggest_key, suggest_option
from .imports import REFUSED

# Messages of jsonargparse. An option of the command line, or a key of a config file.
UNKNOWN_OPTION = re.compile(
    r"unrecognized arguments: (?:\S+ )*?--([\w.+-]+)|"
    r"(?:Group '([\w.]+)' does not accept o|O)ption '([\w.]+)'"
)
UNKNOWN_CLASS_OPTION = re.compile(
    r'Parser key "([\w.]+)".*?class_path \'([\w.]+)\.(\w+)\':\s+Option \'([\w.]+)\' is not', re.S
)
MISSING_VALUE = re.compile(r"argument (-[\w.-]+)\S*: expected (?:one|at least one) argument")
# A value that `ValueOption` refuses, and a class or a group that jsonargparse refuses.
INVALID_VALUE = re.compile(r'Parser key "[\w.]+": ([\w.]+: invalid .*)', re.DOTALL)
INVALID_CLASS = re.compile(
    r'Parser key "([\w.]+)".*?Subtypes: \[(.*?)\n.*Given value: (.*)', re.DOTALL
)
INVALID_GROUP = re.compile(
    r""".*Parser key "([\w.]+)":\s+(?:- )?Unable to load config ['"]?(.*?)['"]?(?:\n|$)""", re.S
)
NESTED = re.compile(r"Problem with given class_path|: invalid |Subtypes: ")
NO_SETTINGS = re.compile(r"'\w+' object has no attribute 'keys'")
INTERNALS = re.compile(r"Parser key \"([\w.]+)\":|Subtypes: .*|NSKeyError: |Namespace\(.*\)", re.S)
# Among the reasons, a name that is no class; in a list of types, the classes of packages.
UNKNOWN_CLASS = re.compile(r"Expected a dot import path string: ([A-Z]\w*)")
CLASS = re.compile(r"<class '([\w.]+)\.(\w+)'>")
# In a list of reasons, one per type: the class and its problem, or a plain message.
CLASS_ERROR = re.compile(
    r"^ +- (?:Problem with given class_path '[\w.]*?(\w+)':\s+|"
    r"(?!Expected |Does not |Not a |Problem |Parser key |a ))(.+(?:\n {8}.*)*)",
    re.MULTILINE,
)


def explain_error(message: str, names: Iterable[str]) -> str:
    """Return a message of jsonargparse in one line; an unknown name with the nearest of `names`."""
    if match := UNKNOWN_CLASS_OPTION.match(message):
        key, module, name, option = match.groups()
        own = inspect.signature(getattr(sys.modules.get(module), name, object)).parameters
        return suggest_key(f"{key}.{option}", [f"{key}.{each}" for each in own])
    if match := UNKNOWN_OPTION.search(message):
        option, *parts = match.groups()
        if option:
            return suggest_option(option, names)
        return suggest_key(".".join(filter(None, parts)), names)
    return explain_value_error(message)


def explain_value_error(message: str) -> str:
    """Return jsonargparse's message about a value in one line: KEY: invalid VALUE; expected ..."""
    if (match := INVALID_GROUP.match(message)) and not NESTED.search(message):
        key, value = match.groups()
        own = "package.Class, with --allow_imports package" if key == "model.net" else ""
        expected = own or "settings by name, or a YAML file with them"
        return f"{key}: invalid {shorten(value)}; expected {expected}"
    if match := CLASS_ERROR.search(message):
        class_name, reason = match.groups()
        reason = NO_SETTINGS.sub("init_args: invalid; expected settings by name", reason)
        if refused := re.match(r"Importing '([\w.]+)' is not allowed", reason):
            package = refused[1].partition(".")[0]
            reason = REFUSED.format(refused[1], package)
            class_name = None
        key = re.match(r'Parser key "([\w.]+)"', message)
        parts = [key and key[1], class_name, explain_value_error(reason)]
        return ": ".join(filter(None, parts))
    if match := INVALID_VALUE.search(message):
        return " ".join(match[1].split())
    if match := INVALID_CLASS.search(message):
        key, types, value = match.groups()
        if (name := UNKNOWN_CLASS.search(message)) and (near := find_near_class(name[1], types)):
            return f"{key}: {name[1]}: no such class; did you mean {near}?"
        classes = ", ".join(dict.fromkeys(name for _, name in CLASS.findall(types)))
        return f"{key}: invalid {shorten(value.strip())}; expected {classes or 'settings by name'}"
    if match := MISSING_VALUE.match(message):
        return f"{match[1]}: a value is missing"
    return " ".join(INTERNALS.sub(r"\1", message).split())


def find_near_class(name: str, types: str) -> str | None:
    """Return the most similar name of an imported class of these types, as Python prints them."""
    bases = [getattr(sys.modules.get(module), base, None) for module, base in CLASS.findall(types)]
    names = [each.__name__ for base in bases if base for each in list_subclasses(base)]
    return next(iter(difflib.get_close_matches(name, names, n=1, cutoff=0.75)), None)


def list_subclasses(base: type) -> list[type]:
    return [base, *(each for kind in base.__subclasses__() for each in list_subclasses(kind))]
