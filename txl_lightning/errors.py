"""Error classes with their exit codes, and one-line messages: key, value, expected values."""

import difflib
import os
import re
import sys
import warnings
from argparse import ArgumentParser
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, TextIO, Union, get_args, get_origin, get_type_hints

UNKNOWN_KEY = "unknown key"
UNKNOWN = re.compile(r"unrecognized arguments: --([\w.+-]+)|does not accept option '([\w.]+)'")
REFUSED = re.compile(r'Parser key "([\w.]+)":.*Importing \'([\w.]+)\' is not allowed', re.DOTALL)
MISSING = re.compile(
    r"Parser key \"([\w.]+)\":.*class_path '[\w.]*\b(\w+)':\s+"
    r"the following arguments are required: ([\w, ]+)",
    re.DOTALL,
)
"""A key, its class, and the arguments that the class needs."""
# The last of those of which one is enough.
NOT_INSTALLED = re.compile(
    r"class_path '[\w.]*\b(\w+)':.*Requirement '([\w-]+).*' not met", re.DOTALL
)
# Of one type, or of several.
INVALID = re.compile(
    r'Parser key "([\w.]+)".*?(?:  Expected a |Subtypes: \[)(.*?)(?:\. Got|\n.*Given) value: (.*)',
    re.DOTALL,
)
# A Literal's choices, or the last word of a type's name.
TYPE = re.compile(r"Literal\[(.*?)\]|(\w+)(?:'>|\[)")
TYPE_WORDS = {"int": "a whole number", "float": "a number", "bool": "true or false"}
TYPE_WORDS |= {"str": "a text", "tuple": "a list", "list": "a list", "NoneType": "null"}
# Ours, in jsonargparse's list of all that a callback's value is not.
INNER = re.compile(r"^ +- (\S+: invalid .+; expected .+)$", re.MULTILINE)

# Of the host or a device, or for a size that is too large for an address or for an integer.
EXHAUSTED = re.compile(
    "can't allocate memory|out of memory|size calculation overflow|unpacking long|without overflow"
)

CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
"""Control characters: escapes, line ends, and those that reverse text."""
LONGEST_VALUE, LONGEST_LINE = 200, 1000

IGNORED_WARNINGS = (
    ".*(LeafSpec|exists and is not empty|infer the batch indices|used to create the checkpoint).*"
)
"""Warnings of Lightning to its own developers, or about loaders that are not ours."""


class DataError(ValueError):
    """Text, vocabulary or corpus that cannot be used."""

    exit_code = 3


class CheckpointError(ValueError):
    """A checkpoint that is damaged, missing or of an unknown format."""

    exit_code = 4


class NonFiniteError(ValueError):
    """A loss, gradient or weight that is not finite."""

    exit_code = 5


class StorageError(ValueError):
    """A file or folder that cannot be written."""

    exit_code = 6


class OutOfMemoryError(ValueError):
    """Memory that cannot be allocated."""

    exit_code = 7


def is_out_of_memory(error: BaseException) -> bool:
    """Return True for a failed allocation; for host memory torch raises a plain RuntimeError."""
    is_of_torch = isinstance(error, RuntimeError | TypeError | OverflowError)
    return isinstance(error, MemoryError) or (is_of_torch and bool(EXHAUSTED.search(str(error))))


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise ValueError "KEY: invalid VALUE; expected ...", unless the condition is true."""
    if not condition:
        raise ValueError(f"{key}: invalid {shorten(value)}; expected {expected}")


def require_types(config: object) -> None:
    """Refuse a field of a dataclass whose value is of another type than it is annotated with."""
    for key, kind in resolve_types(type(config)).items():
        is_union, value = get_origin(kind) in (Union, UnionType), getattr(config, key)
        kinds = get_args(kind) if is_union else (kind,)
        if not any(is_of_type(value, each) for each in kinds):
            require(False, key, repr(value), describe_types(", ".join(map(str, kinds))))


# It takes longer than all checks.
resolve_types = cache(get_type_hints)


def is_of_type(value: object, kind: Any) -> bool:
    """Tell whether a value is of a type, a whole number also of float, and a list of tuple."""
    if get_origin(kind) is Literal:
        return isinstance(value, str) and value in get_args(kind)
    if get_origin(kind) in (list, tuple):
        is_list = isinstance(value, list | tuple)
        return is_list and all(is_of_type(each, get_args(kind)[0]) for each in value)
    # numpy's numbers too, but true is no number.
    abstract = {int: Integral, float: Real}.get(kind, kind)
    return isinstance(value, abstract) and (kind is bool or not isinstance(value, bool))


def shorten(value: object, limit: int = LONGEST_VALUE) -> str:
    """Return a value as one printable line; the middle of a long value is left out."""
    text = str(value)
    if len(text) > limit:
        left_out = f" ... ({len(text) - limit:,} characters) ... "
        text = text[: limit // 2] + left_out + text[-limit // 2 :]
    return show_controls(text)


def format_line(message: str) -> str:
    """Return a message as one printable line of limited length."""
    return shorten(" ".join(message.splitlines()), LONGEST_LINE)


def show_controls(text: str, kept: str = "") -> str:
    """Return a text with its control characters escaped, except those in `kept`."""
    return CONTROL.sub(lambda at: at[0] if at[0] in kept else repr(at[0])[1:-1], text)


class PrintableStream:
    """A stream that escapes control characters; `unfiltered` does not."""

    def __init__(self, unfiltered: TextIO) -> None:
        self.unfiltered = unfiltered

    def write(self, text: str) -> int:
        return self.unfiltered.write(show_controls(text, kept="\n\t"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def print_notice(text: str) -> None:
    """Print lines on stderr, with control characters escaped."""
    print(text, file=PrintableStream(sys.stderr))


def silence_warnings() -> None:
    """Leave out warnings that concern no user; print the others as one line (TXL_DEBUG=1: all)."""
    # Lightning 2.6 calls methods that jsonargparse has renamed.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    warnings.filterwarnings("ignore", message=IGNORED_WARNINGS)
    if not os.environ.get("TXL_DEBUG"):
        warnings.formatwarning = lambda text, *_, **__: f"warning: {format_line(str(text))}\n"


def require_at_least(config: object, **least: int) -> None:
    """Raise ValueError if a field of `config` is below its minimum in `least`; None is valid."""
    for key, minimum in least.items():
        value = getattr(config, key)
        require(value is None or value >= minimum, key, value, f"at least {minimum}")


def explain_parser_error(message: str, parsers: Iterable[ArgumentParser]) -> str:
    """Return jsonargparse's message in one line, an unknown key with the nearest known one."""
    if found := UNKNOWN.search(message):
        known = sorted({action.dest for parser in parsers for action in parser._actions})
        return suggest_key(found[1] or found[2], known)
    if found := REFUSED.search(message):
        package = found[2].partition(".")[0]
        allow = f"if it is your own, add --allow_imports {package} to the command"
        return f"{found[1]}: a config may not import {found[2]}; {allow}"
    if found := MISSING.search(message):
        key, kind, needed = found.groups()
        value = "val/nats" if needed == "monitor" else "VALUE"
        hint = f"add --{key}.{needed.partition(',')[0]} {value}"
        return f"{key}: {kind} needs {needed}; {hint}"
    if found := INVALID.search(message):
        key, types, value = found.groups()
        return f"{key}: invalid {shorten(value.strip())}; expected {describe_types(types)}"
    return " ".join(message.split())


@contextmanager
def prefix_errors(prefix: str, joint: str = ".") -> Iterator[None]:
    """Put a prefix before the field that a ValueError starts with."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{prefix}{joint}{error}") from error


@contextmanager
def strip_prefix(prefix: str, names: Iterable[str]) -> Iterator[None]:
    """Name settings in a ValueError as a command does whose own options they are."""
    own = re.compile(rf"(?<![\w./]){re.escape(prefix)}({'|'.join(names)})\b")
    try:
        yield
    except ValueError as error:
        if own.search(str(error)):
            raise type(error)(own.sub(r"\1", str(error))) from error
        raise


def flatten_settings(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested settings by dotted key."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        key, is_group = f"{prefix}{name}", isinstance(value, Mapping)
        found |= flatten_settings(value, f"{key}.") if is_group else {key: value}
    return found


def innermost_error(message: str) -> str:
    """Return our own error within a message of jsonargparse, or else the message."""
    if found := NOT_INSTALLED.search(message):
        return f"{found[1]} needs a package; pip install {found[2]}"
    found = INNER.search(message)
    return found[1] if found else message


def suggest_key(key: str, known: list[str]) -> str:
    # One with the same last word is nearer than one that is spelled alike.
    meant = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    meant += difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    hint = f"did you mean {meant[0]}?" if meant else "see --help for those there are"
    return f"{key}: {UNKNOWN_KEY}; {hint}"


def describe_types(types: str) -> str:
    words: list[str] = []
    for choices, name in TYPE.findall(types):
        words += choices.replace("'", "").split(", ") if choices else [TYPE_WORDS.get(name, name)]
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last
