"""The command line: txl-lightning COMMAND. Exit codes: 0 done, 1 an internal error, 2 wrong
settings, 3 wrong data, 4 damaged checkpoint or none to resume, 5 numbers that are not finite, 6 a
file or folder that cannot be written, 7 out of memory, 130 interrupted (SIGINT), 141 output closed
(| head), 143 terminated (SIGTERM, SIGHUP)."""

import errno
import inspect
import io
import json
import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from importlib import import_module
from itertools import takewhile

import jsonargparse

from . import __version__, errors
from .command_line import (
    COMMANDS,
    PROGRAM,
    Parser,
    TrainerCommand,
    is_option,
    keep_texts,
    list_commands,
    read_options,
    take_option,
)
from .files import expand_home
from .imports import allow_imports
from .process import SAVE, exit_on_signals, is_child, limit_spinning
from .terminal import drop_unwritten, open_output

LIST_OPTIONS = ("--data.path", "--data.ids")
"""Options whose several values may be words; the others with lists are words in any case."""
OF_EVALUATE = {"rms_tokens", "adapt_across_documents"}
LACKING = {"score": OF_EVALUATE, "generate": OF_EVALUATE | {"rate", "decay", "rate_weights"}}
"""Fields of settings that are no options of a command: only evaluate measures gradients of the
training text and reads documents, and generation takes no steps."""
WRITE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS}
"""Errors that only writing causes; without a permission, reading fails too."""


def main() -> None:
    """Run the command; a user's mistake is one line and an exit code (TXL_DEBUG=1: a traceback)."""
    limit_spinning()
    # A request to save may come when all is saved, until the process is gone.
    signal.signal(SAVE, signal.SIG_IGN)
    # If a standard stream is closed (2>&-), the next file opened would get its number.
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    for name, label in {"stdout": "standard output", "stderr": "standard error"}.items():
        stream = getattr(sys, name) or open(os.devnull, "w")  # noqa: SIM115
        setattr(sys, name, open_output(stream, label))
    sys.stdin = sys.stdin or io.TextIOWrapper(io.BytesIO())
    try:
        with exit_on_signals():
            run_to_end(sys.argv[1:])
    except BrokenPipeError:
        drop_unwritten(sys.stdout, sys.stderr)
        sys.exit(141)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("TXL_DEBUG"):
            raise
        if not wait_for_parent_failure():
            with suppress(OSError):
                print(f"error: {describe_error(error)}", file=sys.stderr)
        drop_unwritten(sys.stdout, sys.stderr)
        if getattr(error, "errno", None) in WRITE_ERRORS:
            sys.exit(errors.StorageError.exit_code)
        sys.exit(getattr(error, "exit_code", 2))


def run_to_end(arguments: list[str]) -> None:
    """Run the command, and write all that it has printed."""
    try:
        run(arguments)
    except SystemExit as end:
        # A parser exits with 0 after --help and --print_config.
        if end.code:
            raise
    sys.stdout.flush()


EXTRAS = {
    **{"onnx": "export", "onnxruntime": "export", "onnxscript": "export", "optuna": "sweeps"},
    **{"transformers": "hub", "s3fs": "s3", "gcsfs": "gcs", "lm_eval": "lm-eval"},
}
"""Extras of pyproject.toml by the packages that they install."""


def describe_error(error: Exception) -> str:
    """Return the message of a user's mistake in one line."""
    message = str(error)
    if isinstance(error, OSError) and error.filename and error.strerror:
        # Without the number that Python's message starts with.
        message = f"{error.filename}: {error.strerror}"
    if isinstance(error, ModuleNotFoundError) and error.name:
        # Lightning's own error has no name: it says what to install.
        package = error.name.partition(".")[0]
        extra = EXTRAS.get(package)
        what = f"'.[{extra}]' in the clone" if extra else package
        message += f"; pip install {what}"
    return errors.format_line(message)


def wait_for_parent_failure() -> bool:
    """Return True if the process that started this one fails within 10 s, with its own message."""
    parent = os.getppid()
    deadline = time.monotonic() + 10
    # Only Lightning kills the first process as soon as another one fails.
    while is_child() and os.getppid() == parent and time.monotonic() < deadline:
        time.sleep(0.1)
    return os.getppid() != parent


def run(arguments: list[str]) -> None:
    """Run the command that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        # Python -OO has removed it.
        exit_codes = textwrap.fill((__doc__ or "").partition(". ")[2], 79)
        print(f"{list_commands()}\n\n{exit_codes}")
        return
    if arguments[0] == "--version":
        print(f"{PROGRAM} {__version__}")
        return
    name, *words = arguments
    if name not in COMMANDS:
        raise ValueError(f"{name}: unknown command; expected one of {', '.join(COMMANDS)}")
    command = COMMANDS[name]
    if command.imports and sys.stderr.isatty():
        print(f"{name}: loading {command.imports} ...", file=sys.stderr)
    for word in words:
        require_utf8(word)
    errors.silence_warnings()
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a character (LC_ALL=C) is no reason to fail after hours.
        sys.stdout.reconfigure(errors="backslashreplace")
    packages, words = take_option(underscore_names(words), "--allow_imports")
    allow_imports(packages)
    words = name_first_words(name, words)
    call = run_trainer_command if isinstance(command, TrainerCommand) else run_function
    try:
        with redirect_stdout(errors.PrintableStream(sys.stdout)):
            call(name, words)
    except errors.ALLOCATION_ERRORS as error:
        if not errors.is_out_of_memory(error):
            raise
        advice = f"; lower {command.memory_options}" if command.memory_options else ""
        raise errors.OutOfMemoryError(f"{name}: out of memory{advice}") from error


def require_utf8(word: str) -> None:
    """Refuse a word that is not UTF-8: its bytes would be neither text nor the name of a file."""
    try:
        word.encode()
    except UnicodeEncodeError as error:
        raise errors.DataError(
            f"{word[: error.start]}: character {error.start + 1} is not UTF-8 text; "
            "expected words, names of files and folders in UTF-8"
        ) from error


def run_trainer_command(name: str, words: list[str]) -> None:
    # Importing Lightning takes seconds.
    from .training.cli import run_trainer

    flush_denormals()
    run_trainer([name, *words])


def run_function(name: str, words: list[str]) -> None:
    """Run a command that is a function: its signature is its options."""
    function, parser = make_parser(name)
    given = read_options(words)
    try:
        settings = parser.parse_args(words)
        keep_texts(settings, given)
        for key, group in parser.groups.items():
            # A dataclass refuses invalid values; here the message has the whole key.
            with errors.prefix_errors(key):
                group.group_class(**vars(settings[key]))
        settings = parser.instantiate(settings).as_dict()
        for key, kind in find_setting_groups(function).items():
            names = [field.name for field in fields(kind) if field.name in settings]
            settings[key] = kind(**{name: settings.pop(name) for name in names})
    except jsonargparse.ArgumentError as error:
        raise ValueError(parser.explain_error(str(error), given)) from error
    flush_denormals()
    function(**settings)


def make_parser(name: str) -> tuple[Callable[..., None], Parser]:
    """Return the function of a command and the parser of its options."""
    function = getattr(import_module(f".commands.{name}", __package__), f"{name}_command")
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    description = (inspect.getdoc(function) or "").split("\n\nArgs:")[0]
    parser = Parser(command=name, description=description)
    found = find_setting_groups(function)
    parser.add_function_arguments(function, as_group=False, as_positional=True, skip={*found})
    for kind in found.values():
        parser.add_class_arguments(kind, as_group=False, skip=LACKING.get(name))
    return function, parser


def find_setting_groups(function: Callable[..., None]) -> dict[str, type]:
    """Return the parameters of a function that are settings, whose fields are its options."""
    kinds = {name: each.annotation for name, each in inspect.signature(function).parameters.items()}
    return {name: kind for name, kind in kinds.items() if is_dataclass(kind)}


def flush_denormals() -> None:
    """Treat denormal numbers as 0: with them, a step on a CPU takes several times as long."""
    # A command that has not imported torch does not compute.
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(True)


def split_words(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first option together with those after `--`, and the others."""
    words, rest = split_at(words, words.index("--") if "--" in words else len(words))
    options = [number for number, word in enumerate(words) if is_option(word)]
    first, others = split_at(words, options[0] if options else len(words))
    return [*first, *rest[1:]], others


def split_at(words: list[str], index: int) -> tuple[list[str], list[str]]:
    return words[:index], words[index:]


def underscore_names(words: list[str]) -> list[str]:
    """Return words with underscores in options before `--`: --per_token for --per-token."""
    words, rest = split_at(words, words.index("--") if "--" in words else len(words))
    return [*map(underscore_name, words), *rest]


def underscore_name(word: str) -> str:
    name, sign, value = word.partition("=")
    return name[:2] + name[2:].replace("-", "_") + sign + value if is_option(word) else word


def join_lists(words: list[str]) -> list[str]:
    """Return words with several values of an option as one list: --data.path a.txt b.txt c.txt."""
    joined: list[str] = []
    while words:
        word, *words = words
        values = [*takewhile(lambda each: not is_option(each), words)]
        if word in LIST_OPTIONS and len(values) > 1:
            word = f"{word}={json.dumps(values)}"
            words = words[len(values) :]
        joined.append(word)
    return joined


def name_first_words(name: str, words: list[str]) -> list[str]:
    """Return words with the checkpoint as the command's parser takes it, first or --ckpt_path, and
    an optional second word by its name: --prompt."""
    command = COMMANDS[name]
    refuse_both(command.arguments, words)
    if isinstance(command, TrainerCommand):
        first, others = split_words(words)
        if command.arguments and first:
            first[0] = f"--ckpt_path={first[0]}"
        return join_lists([*first, *others])
    words = [word.removeprefix("--ckpt_path=") for word in words if word != "--ckpt_path"]
    first, others = split_words(words)
    second = command.arguments.partition(" [")[2].rstrip("]")
    if second and len(first) > 1:
        others.insert(0, f"--{second}={first.pop(1)}")
    first = [*map(expand_home, first)]
    # After `--`, a name may start with a dash.
    return [*others, "--", *first] if "--" in words else [*first, *others]


def refuse_both(arguments: str, words: list[str]) -> None:
    """Refuse a first word that is empty, and words that are also given as options by their names:
    one of the two would not count."""
    names = [each.strip("[]") for each in arguments.split()]
    first, _ = split_words(words)
    options = read_options(words)
    for nth, (name, word) in enumerate(zip(names, first, strict=False)):
        if nth == 0:
            errors.require_path(name, word)
        expected = f"one of {word} and --{name} {options.get(name)}"
        errors.require(name not in options, name, "two values", expected)


if __name__ == "__main__":
    main()
