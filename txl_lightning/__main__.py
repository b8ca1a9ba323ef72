"""The door: python -m txl_lightning VERB. Exit codes: 0 done, 2 wrong settings, 3 wrong data,
4 damaged checkpoint or none to resume, 5 numbers that are not finite, 6 a place that cannot be
written, 7 out of memory, 130 interrupted (SIGINT), 141 nobody reads the output (| head), 143
terminated (SIGTERM, SIGHUP)."""

import argparse
import errno
import inspect
import io
import logging
import os
import sys
import textwrap
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from typing import get_args

import jsonargparse

from . import signals
from .errors import StorageError, explain_parser_error, innermost_error, prefix_errors
from .help import Words, example, program

UNHEARD = (
    ".*LeafSpec.*",
    ".*dirpath has changed.*",
    ".*infer the batch indices.*",
    ".*callbacks used to create the checkpoint.*",
)
"""Warnings of Lightning to its own developers, or about loaders that are not ours."""

STORAGE = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}
ECHO = 10.0
"""Seconds in which the process that started this one should have failed too."""


def plain(verb: str, options: list[str]) -> None:
    """A verb that is a function: its signature is its options."""
    function, parser = function_of(verb)
    try:
        given = parser.parse_args(options)
        check_groups(parser, given)
        given = parser.instantiate_classes(given)
    except jsonargparse.ArgumentError as error:
        known = sorted(action.dest for action in parser._actions)
        raise ValueError(explain_parser_error(str(error), known)) from error
    function(**given.as_dict())


def check_groups(parser: jsonargparse.ArgumentParser, given: jsonargparse.Namespace) -> None:
    """Let each group of options refuse what cannot be, with the whole key."""
    for name, group in parser.groups.items():
        with prefix_errors(name):
            group.group_class(**vars(given[name]))


def function_of(verb: str) -> tuple[Callable[..., None], jsonargparse.ArgumentParser]:
    """The function of a verb, and what reads its options."""
    function = getattr(import_module(f".commands.{verb}", __package__), f"{verb}_command")
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    said = inspect.cleandoc(function.__doc__).split("\n\nArgs:")[0]
    parser = jsonargparse.ArgumentParser(
        program(verb), exit_on_error=False, formatter_class=Words, description=said
    )
    parser.epilog = example(verb)
    parser.add_function_arguments(function, as_group=False, as_positional=verb in NAMELESS)
    for action in parser._actions:
        take_several(action)
    return function, parser


def take_several(action: argparse.Action) -> None:
    """Let a verb's own option of any number of values take them as words: --r 0.1 0.5."""
    kind, *more = get_args(getattr(action, "_typehint", None)) or (None,)
    if more == [...] and "." not in action.dest:
        action._typehint, action.nargs, action.metavar = kind, "+", action.dest
        action.default = list(action.default) if isinstance(action.default, tuple) else None


def by_lightning(verb: str, options: list[str]) -> None:
    """A verb that the Trainer runs; imported here, because it takes seconds."""
    import torch
    from lightning.pytorch.utilities.exceptions import MisconfigurationException
    from rich.console import Console

    from .training.cli import TxlCLI

    # After the import, which sets them.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    quieten()
    Console.on_broken_pipe = unread
    # Numbers too small to be normal slow a CPU's step several-fold.
    torch.set_flush_denormal(True)
    try:
        TxlCLI([verb, *options])
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error


VERBS = {
    "fit": (by_lightning, "train, and validate on the way"),
    "validate": (by_lightning, "measure a checkpoint on the validation text"),
    "test": (by_lightning, "measure a checkpoint on the test text"),
    "predict": (by_lightning, "write the nats of every token of the test text"),
    "evaluate": (plain, "measure a checkpoint on any text, as was published"),
    "prepare": (plain, "download and encode a corpus, or your text"),
    "generate": (plain, "continue a prompt"),
    "convert": (plain, "read other people's checkpoints, and write them"),
    "inspect": (plain, "measure what a model does with its memory, as tables and pictures"),
    "recl": (plain, "measure how much context is of use to models"),
    "speed": (plain, "time a model with its memory, and with a sliding window instead"),
    "sweep": (plain, "try many settings, one run after the other, as a file of W&B's says"),
}
NAMELESS = {"prepare", "evaluate", "convert", "inspect", "recl", "speed", "sweep"}
"""Verbs whose first word is what they are about."""


def main() -> None:
    """Run the verb; a user's mistake is one line and an exit code (TXL_DEBUG=1: a traceback)."""
    try:
        with signals.exit_on_signals():
            run(sys.argv[1:])
    except BrokenPipeError:
        # Python would write what is left when it ends, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except (ValueError, OSError) as error:
        if os.environ.get("TXL_DEBUG"):
            raise
        if not is_echo():
            print(f"error: {in_words(error)}", file=sys.stderr)
        sys.exit(exit_code(error))


def exit_code(error: Exception) -> int:
    """What tells a script the kind of mistake."""
    full_or_closed = isinstance(error, OSError) and error.errno in STORAGE
    return StorageError.exit_code if full_or_closed else getattr(error, "exit_code", 2)


def is_echo() -> bool:
    """Whether the process that started this one has failed alike, and said so.

    It waits for that: Lightning kills the first process as soon as another one fails.
    """
    if not signals.is_child():
        return False
    parent, end = os.getppid(), time.monotonic() + ECHO
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.1)
    return os.getppid() != parent


def in_words(error: Exception) -> str:
    """What is wrong; of a file, without the number that Python's own words start with."""
    if isinstance(error, OSError) and error.filename and error.strerror:
        return f"{error.filename}: {error.strerror}"
    return innermost_error(str(error))


def run(arguments: list[str]) -> None:
    """Call the verb that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return
    verb, *options = arguments
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a character (LC_ALL=C) is no reason to fail after hours.
        sys.stdout.reconfigure(errors="backslashreplace")
    if verb not in VERBS:
        raise ValueError(f"{verb}: unknown verb; it must be one of {', '.join(VERBS)}")
    quieten()
    call, _ = VERBS[verb]
    call(verb, [underscored(option) for option in options])


def underscored(option: str) -> str:
    """An option's name as ours are written, also where others write --per-token."""
    name, sign, value = option.partition("=")
    is_name = name.startswith("--") and " " not in name
    return "--" + name[2:].replace("-", "_") + sign + value if is_name else option


def usage() -> str:
    """The verbs, one in a line."""
    lines = [f"  {verb:10}{words}" for verb, (_, words) in VERBS.items()]
    codes = textwrap.fill(str(__doc__).split(". ", 1)[1], 79)
    ends = ["VERB --help lists its options.", "", codes]
    return "\n".join([f"usage: {program('VERB')} [options]", "", *lines, "", *ends])


def quieten() -> None:
    """Leave out what no user can act on."""
    # Lightning 2.6 calls methods that jsonargparse has renamed.
    os.environ.setdefault("JSONARGPARSE_DEPRECATION_WARNINGS", "off")
    for message in UNHEARD:
        warnings.filterwarnings("ignore", message=message)
    if not os.environ.get("TXL_DEBUG"):
        warnings.formatwarning = in_one_line


def unread(_: object) -> None:
    """Nobody reads any more what a console prints: rich's own would say that something failed."""
    raise


def in_one_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning without the line of code that it comes from."""
    return f"warning: {message}\n"


if __name__ == "__main__":
    main()
