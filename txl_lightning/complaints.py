"""What the command line says about a mistake: the key, the value, what is allowed; in one line."""

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

UNKNOWN = re.compile(r"unrecognized arguments: --([\w.+-]+)|does not accept option '([\w.]+)'")
REFUSED = re.compile(r'Parser key "([\w.]+)":.*Importing \'([\w.]+)\' is not allowed', re.DOTALL)
EXPECTED = re.compile(
    r'Parser key "([\w.]+)"(?: element \d+)?:\s+Expected a (.+)\. Got value: (.*)', re.DOTALL
)
UNION = re.compile(r'Parser key "([\w.]+)":.*Subtypes: \[(.*?)\]\n.*Given value: (.*)', re.DOTALL)
INNER = re.compile(r"^ +- (.+ is not possible; .+)$", re.MULTILINE)
KIND = re.compile(r"typing\.Literal\[(.*?)\](?:, |$)|(.+?)(?:, |$)")
MISSPELT = "unknown key"
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "a text",
    "NoneType": "null",
    "tuple": "a list",
}


def explain(message: str, known: Iterable[str]) -> str:
    """jsonargparse's message as one line; an unknown key comes with the nearest of `known`."""
    if found := UNKNOWN.search(message):
        return unknown_key(found[1] or found[2], list(known))
    if found := REFUSED.search(message):
        return (
            f"{found[1]}: a config may not import {found[2]}; see CONTRIBUTING.md for what it may"
        )
    if found := EXPECTED.search(message):
        key, kind, value = found.groups()
        return f"{key}: {value.strip()} is not possible; it must be {allowed(kind)}"
    if found := UNION.search(message):
        key, kinds, value = found.groups()
        return f"{key}: {value.strip()} is not possible; it must be {any_of(kinds)}"
    return " ".join(message.split())


@contextmanager
def keys_under(prefix: str) -> Iterator[None]:
    """Put the prefix before the field that an error starts with."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{prefix}.{error}") from error


def dotted(settings: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings by dotted key, as they are named to people."""
    found: dict[str, Any] = {}
    for name, value in settings.items():
        inner = isinstance(value, Mapping)
        found |= dotted(value, f"{prefix}{name}.") if inner else {f"{prefix}{name}": value}
    return found


def innermost(message: str) -> str:
    """What we refused, in jsonargparse's list of all that a callback's or plugin's value is not."""
    found = INNER.search(message)
    return found[1] if found else message


def unknown_key(key: str, known: list[str]) -> str:
    """Say which key was meant: the nearest one, or one with the same last word."""
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.75)
    same = [name for name in known if name.split(".")[-1] == key.split(".")[-1]]
    meant = (same or near)[:1]
    hint = f"did you mean {meant[0]}?" if meant else "see --help for those there are"
    return f"{key}: {MISSPELT}; {hint}"


def any_of(kinds: str) -> str:
    """A union's types in words; choices stand beside the others."""
    words: list[str] = []
    for choices, kind in KIND.findall(kinds):
        words += choices.replace("'", "").split(", ") if choices else [allowed(kind)]
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def allowed(kind: str) -> str:
    """A type in words."""
    if choices := re.match(r"typing\.Literal\[(.*)\]", kind):
        return "one of " + choices[1].replace("'", "")
    if named := re.match(r"<class '(\w+)'>", kind):
        return KINDS.get(named[1], named[1])
    return kind
