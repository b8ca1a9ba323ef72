"""How --help is written: what an option is in words, its default once, and no types of Python's."""

import argparse
import json
import re
import textwrap
from collections.abc import Iterator
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from jsonargparse import DefaultHelpFormatter, Namespace

WIDEST = 100
"""Columns of a line at most: longer ones are hard to read."""
NARROW = 36
"""Columns in which choices may stand beside an option; more are told in its text."""
LETTERS = {int: "N", float: "X", bool: "BOOL"}
PLACES = re.compile(r"^.*_(?=(PATH|FILE|DIR)$)")
"""What is left out of the names of files and folders."""
NO_OPTIONS = {"_ActionConfigLoad", "ActionLink"}
"""jsonargparse's: a group's settings from a file, and values that are taken from another key."""
MARKUP = (
    (re.compile(r":\w+:`~?(?:[\w. ]*\.)?(\w+)`"), r"\1"),
    (re.compile(r"\s*Default: (``[^`]*``|\w+)\.?"), ""),
    (re.compile(r"`+"), ""),
)
"""What other people's documents have in their texts, and the defaults that we say ourselves."""
EXAMPLES = {
    "fit": "--config configs/quickstart.yaml --data.path my.txt",
    "validate": "--ckpt_path RUN/checkpoints/best.ckpt",
    "test": "--ckpt_path RUN/checkpoints/best.ckpt --model.eval_mem_len 512",
    "predict": "--ckpt_path RUN/checkpoints/best.ckpt",
    "evaluate": "RUN/checkpoints/best.ckpt --path book.txt --mem_len 512",
    "prepare": "book.txt --vocab words",
    "generate": "--ckpt_path RUN/checkpoints/best.ckpt --prompt 'Once upon' --top_p 0.9",
    "convert": "model.safetensors --args args.json --out converted",
    "inspect": "RUN/checkpoints/best.ckpt --out figures",
    "recl": "A/checkpoints/best.ckpt B/checkpoints/best.ckpt --r 0.1 0.5",
    "speed": "configs/paper/enwik8_base.yaml --lengths 800 1800",
    "sweep": "configs/sweeps/quickstart.yaml --count 8",
}
"""Options of each verb, as somebody may give them."""


def program(verb: str) -> str:
    """How the verb is called."""
    return f"python -m txl_lightning {verb}"


def example(verb: str) -> str | None:
    """The last line of a verb's help."""
    return f"example: {program(verb)} {EXAMPLES[verb]}" if verb in EXAMPLES else None


class Words(DefaultHelpFormatter):
    """Says of each option what it is, and in parentheses what its text and its letter do not."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self._width = min(self._width, WIDEST)

    def add_usage(self, usage: str | None, actions: Any, groups: Any, prefix: Any = None) -> None:
        """What must be given, the nameless first."""
        needed = [each for each in actions if each.required or not each.option_strings]
        needed.sort(key=lambda each: bool(each.option_strings))
        words = [self._format_action_invocation(each) for each in needed if is_told(each)]
        self._add_item(lambda: f"usage: {' '.join([self._prog, *words, '[options]'])}\n\n", [])

    def start_section(self, heading: str | None) -> None:
        """A group's title, in lines as wide as its options."""
        super().start_section(textwrap.fill(heading, self._width - 1) if heading else heading)

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        fill = super()._fill_text
        parts = text.split("\n\n")
        # A command stays in one line: it is to be copied.
        filled = (p if p.startswith("example:") else fill(p, width, indent) for p in parts)
        return "\n\n".join(filled)

    def _format_action(self, action: argparse.Action) -> str:
        return super()._format_action(action) if is_told(action) else ""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        default = self._get_default_metavar_for_optional(action) if action.option_strings else None
        values = self._format_args(action, default or action.dest) if action.nargs != 0 else ""
        names = ", ".join(name for name in action.option_strings if not name.endswith("+"))
        return f"{names} {values}".replace(" \b", "").strip()

    def _metavar_formatter(self, action: argparse.Action, default_metavar: str) -> Any:
        word = "NAME" if action.dest.endswith(".help") else letters(action, default_metavar or "")
        if word is None or not action.option_strings:
            return super()._metavar_formatter(action, default_metavar)
        return lambda size: (word,) * size

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if isinstance(action, argparse._HelpAction):
            return text[:1].upper() + text[1:].rstrip(".") + "."
        for found, instead in MARKUP:
            text = found.sub(instead, text)
        more = "; ".join(facts(action))
        return f"{text} ({more})".strip() if more else text


def is_told(action: argparse.Action) -> bool:
    """Whether help speaks of an option."""
    return type(action).__name__ not in NO_OPTIONS and not getattr(action, "untold", False)


def facts(action: argparse.Action) -> Iterator[str]:
    """What is allowed, if the letter does not say so, and the default, if there is one."""
    if action.required and action.option_strings:
        yield "required"
    kinds = list(kinds_of(getattr(action, "_typehint", None)))
    choices = choices_of(kinds)
    if choices and in_braces(choices) is None:
        yield f"one of {', '.join(choices)}"
    default = action.default
    if default in (None, argparse.SUPPRESS, (), []) or isinstance(default, Namespace):
        return
    yield f"default: {written(default, action.nargs)}"


def kinds_of(hint: Any) -> Iterator[Any]:
    """The types that a value may have, and the values of those that are choices."""
    if get_origin(hint) is Literal or get_origin(hint) in (list, tuple) or not get_args(hint):
        yield hint
        return
    for part in get_args(hint):
        yield from kinds_of(part)


def choices_of(kinds: list[Any]) -> list[str]:
    """All that a value may be, if it is one of a few."""
    kinds = [kind for kind in kinds if kind is not NoneType]
    if not kinds or not all(kind is bool or get_origin(kind) is Literal for kind in kinds):
        return []
    values = [("true", "false") if kind is bool else get_args(kind) for kind in kinds]
    return list(dict.fromkeys(str(value) for few in values for value in few))


def in_braces(choices: list[str]) -> str | None:
    """The choices as they stand beside an option, if they are short."""
    said = "{" + ",".join(choices) + "}"
    return said if len(said) <= NARROW else None


def letters(action: argparse.Action, name: str) -> str | None:
    """What stands for the value: N a whole number, X a number, else the option's name."""
    hint = getattr(action, "_typehint", None)
    if hint is None:
        return None
    kinds = [kind for kind in kinds_of(hint) if kind is not NoneType]
    if choices := choices_of(kinds):
        return in_braces(choices) or name
    if len(kinds) == 1 and get_origin(kinds[0]) in (list, tuple):
        return f"[{LETTERS.get(get_args(kinds[0])[0], 'TEXT')},...]"
    # What else may be given, its text says.
    numbers = [kind for kind in (float, int) if kind in kinds]
    only_numbers = numbers and {*kinds} <= {int, float, bool}
    return LETTERS[numbers[0]] if only_numbers else PLACES.sub("", name)


def written(value: Any, nargs: Any = None) -> str:
    """A default as it would be given."""
    if isinstance(value, list | tuple) and nargs == "+":
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | float) else json.dumps(value, default=str)
