"""Format of --help: a usage line, each option's text and default, and an example to copy."""

import argparse
import json
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

MAX_WIDTH = 100
MARKUP = (
    (re.compile(r":\w+:`~?(?:[\w. ]*\.)?(\w+)`"), r"\1"),
    (re.compile(r"\s*Default: (``[^`]*``|\w+)\.?"), ""),
    (re.compile(r"`+"), ""),
)
"""Markup in the texts of other packages, and the defaults that we print ourselves."""
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
NEEDED = dict.fromkeys(("evaluate", "inspect", "recl"), "ckpt_path ") | {"sweep": "path "}
NEEDED |= {"convert": "source ", "speed": "source ", "prepare": "name "}
NEEDED |= {"generate": "--ckpt_path PATH "}
"""Arguments that a command cannot be called without, for its usage line."""


def program(command: str) -> str:
    """Return how a command is called."""
    return f"python -m txl_lightning {command}"


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter: one sentence per option, then choices and default, without Python's types."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self._width = min(self._width, MAX_WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        for pattern, replacement in MARKUP:
            text = pattern.sub(replacement, text)
        notes = [f"one of {', '.join(names)}"] if (names := hidden_choices(action)) else []
        if action.required and action.option_strings:
            notes.append("required")
        if action.default not in (None, argparse.SUPPRESS, (), []):
            notes.append(f"default: {format_default(action.default, action.nargs)}")
        shown = not isinstance(action.default, Namespace) and action.nargs != 0
        return f"{text} ({'; '.join(notes)})".strip() if notes and shown else text


def hidden_choices(action: argparse.Action) -> list[str]:
    """The choices of a type that allows more than them, so that they do not stand beside it."""
    parts = get_args(getattr(action, "_typehint", None))
    values = [value for part in parts if get_origin(part) is Literal for value in get_args(part)]
    return list(dict.fromkeys(map(str, values)))


def format_default(value: Any, nargs: Any) -> str:
    """A default as it would be given."""
    if isinstance(value, list | tuple) and nargs == "+":
        return " ".join(map(str, value))
    return str(value) if isinstance(value, str | float) else json.dumps(value, default=str)


def describe_command(parser: ArgumentParser, command: str, text: str) -> None:
    """Write a parser's usage, description and example."""
    parser.usage = f"{program(command)} {NEEDED.get(command, '')}[options]"
    parser.description = textwrap.fill(" ".join(text.split()), MAX_WIDTH - 20)
    parser.epilog = f"example: {program(command)} {EXAMPLES[command]}"
    # An option that is a group's name reads all of the group from a file.
    hide_options(parser, lambda name: name in parser.groups)


def hide_options(parser: ArgumentParser, is_hidden: Callable[[str], bool]) -> None:
    """Leave the options whose names fit out of the help; they are accepted as before."""
    # argparse has no public list of a parser's options.
    for action in parser._actions:
        if is_hidden(action.dest):
            action.help = argparse.SUPPRESS
