"""Messages of jsonargparse as one line: option or key, value, and what is expected."""

import re
from collections.abc import Iterable

from .errors import shorten, suggest_key
from .imports import REFUSED

# An option of the command line, or a key of a config file.
UNKNOWN_OPTION = re.compile(
    r"unrecognized arguments: (?:\S+ )*?--([\w.+-]+)|"
    r"(?:Group '([\w.]+)' does not accept o|O)ption '([\w.]+)'"
)
KEY = re.compile(r'^Parser key "([\w.]+)"')
NO_SETTINGS = re.compile(r"'\w+' object has no attribute 'keys'")
# A value that `ValueOption` refuses, and a class or a group that jsonargparse refuses.
INVALID_VALUE = re.compile(r'Parser key "[\w.]+": ([\w.]+: invalid .*)', re.DOTALL)
INVALID_CLASS = re.compile(
    r'Parser key "([\w.]+)".*?Subtypes: \[(.*?)\n.*Given value: (.*)', re.DOTALL
)
INVALID_GROUP = re.compile(
    r""".*Parser key "([\w.]+)":\s+(?:- )?Unable to load config ['"]?(.*?)['"]?(?:\n|$)""", re.S
)
NESTED = re.compile(r"Problem with given class_path|: invalid |Subtypes: ")
INTERNALS = re.compile(r"Parser key \"([\w.]+)\":|Subtypes: .*|NSKeyError: |Namespace\(.*\)", re.S)
CLASS = re.compile(r"<class '[\w.]+\.(\w+)'>")
NOT_ALLOWED = re.compile(r"Importing '((\w+)[\w.]*)' is not allowed")
# In a list of reasons, one per type: the class and its problem, or a plain message.
CLASS_ERROR = re.compile(
    r"^ +- (?:Problem with given class_path '[\w.]*?(\w+)':\s+|"
    r"(?!Expected |Does not |Not a |Problem |Parser key |a ))(.+(?:\n {8}.*)*)",
    re.MULTILINE,
)


def explain_error(message: str, names: Iterable[str]) -> str:
    """Return a message of jsonargparse in one line; an unknown name with the nearest of `names`."""
    if match := UNKNOWN_OPTION.search(message):
        option, *parts = match.groups()
        if option:
            return suggest_key(option, names, "--")
        # Of a class, whose settings are not among the names.
        of_class = KEY.findall(message)
        key = ".".join([*of_class, *filter(None, parts)])
        return suggest_key(key, () if of_class else names)
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
        if refused := NOT_ALLOWED.match(reason):
            class_name, reason = None, REFUSED.format(*refused.groups())
        parts = [*KEY.findall(message), class_name, explain_value_error(reason)]
        return ": ".join(filter(None, parts))
    if match := INVALID_VALUE.search(message):
        return " ".join(match[1].split())
    if match := INVALID_CLASS.search(message):
        key, types, value = match.groups()
        expected = ", ".join(dict.fromkeys(CLASS.findall(types))) or "settings by name"
        return f"{key}: invalid {shorten(value.strip())}; expected {expected}"
    return " ".join(INTERNALS.sub(r"\1", message).split())
