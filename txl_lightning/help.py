"""Format of --help: a usage line, each option's text and default, and an example to copy."""

import argparse
import json
import re
import textwrap
from collections.abc import Callable
from typing import Any, Literal, get_args, get_origin

from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace

MAX_WIDTH = 100
PROGRAM = "txl-lightning"
MARKUP = (
    (r":\w+:`~?(?:[\w. ]*\.)?(\w+)`", r"\1"),
    (r"\s*Default: (``[^`]*``|\w+)\.?", ""),
    (r"`+", ""),
)
"""Markup in the texts of other packages, and the defaults that we print ourselves."""
EXAMPLES = {
    "fit": "--config quickstart --data.path my.txt",
    "validate": "RUN",
    "test": "RUN --model.eval_mem_len 512",
    "predict": "RUN",
    "evaluate": "RUN --path book.txt --mem_len 512",
    "prepare": "book.txt --vocab words",
    "generate": "RUN --prompt 'Once upon' --top_p 0.9",
    "convert": "model.safetensors --args args.json --out converted",
    "inspect": "RUN --out figures",
    "recl": "RUN OTHER --r 0.1 0.5",
    "speed": "paper/enwik8_base --lengths 800 1800",
    "runs": "runs/quickstart",
    "compare": "runs/quickstart/version_0 runs/quickstart/version_1",
    "sweep": "sweeps/quickstart --count 8",
    "quickstart": "",
    "configs": "paper/enwik8_base",
    "environment": "",
}


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter: one sentence per option, then choices and default, without Python's types."""

    def __init__(self, prog: str, **options: Any) -> None:
        super().__init__(prog, **options)
        self._width = min(self._width, MAX_WIDTH)

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        for pattern, replacement in MARKUP:
            text = re.sub(pattern, replacement, text)
        if isinstance(default := action.default, Namespace) or action.nargs == 0:
            return text
        # A type that allows more than some choices has them not beside it.
        types = get_args(getattr(action, "_typehint", None))
        choices = [each for kind in types if get_origin(kind) is Literal for each in get_args(kind)]
        notes = [f"one of {', '.join(map(str, dict.fromkeys(choices)))}"] if choices else []
        notes += ["required"] if action.required and action.option_strings else []
        if default not in (None, argparse.SUPPRESS, (), []):
            values = default if action.nargs == "+" else [default]
            # As in YAML, where a text has no quotes.
            words = [v if isinstance(v, str) else json.dumps(v, default=str) for v in values]
            notes.append(f"default: {' '.join(words)}")
        return f"{text} ({'; '.join(notes)})".strip() if notes else text


def describe_command(parser: ArgumentParser, command: str, text: str) -> None:
    """Write a parser's usage, description and example."""
    needed = [a for a in parser._actions if a.required or not a.option_strings]
    words = [f"--{a.dest} {a.dest.upper()}" if a.option_strings else a.dest for a in needed]
    words = [word if a.required else f"[{word}]" for a, word in zip(needed, words, strict=True)]
    parser.usage = " ".join([PROGRAM, command, *words, "[options]"])
    parser.description = textwrap.fill(" ".join(text.split()), MAX_WIDTH - 20)
    parser.epilog = f"example: {PROGRAM} {command} {EXAMPLES[command]}".rstrip()
    # An option that is a group's name reads all of the group from a file.
    hide_options(parser, lambda name: name in parser.groups)


def hide_options(parser: ArgumentParser, is_hidden: Callable[[str], bool]) -> None:
    """Leave options out of the help; they are accepted as before."""
    # argparse has no public list of a parser's options.
    for action in parser._actions:
        if is_hidden(action.dest):
            action.help = argparse.SUPPRESS
