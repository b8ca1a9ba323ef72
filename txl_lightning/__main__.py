"""The command line: txl-lightning COMMAND. Exit codes: 0 done, 2 wrong settings, 3 wrong
data, 4 damaged checkpoint or none to resume, 5 numbers that are not finite, 6 a file or folder that
cannot be written, 7 out of memory, 130 interrupted (SIGINT), 141 output closed (| head), 143
terminated (SIGTERM, SIGHUP)."""

import errno
import inspect
import io
import os
import sys
import textwrap
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from importlib import import_module
from typing import get_args

import jsonargparse

from . import __version__, errors, signals
from .files import check_yaml
from .help import PROGRAM, HelpFormatter, describe_command

COMMANDS = {
    "fit": "train, and validate on the way",
    "validate": "measure a checkpoint on the validation text",
    "test": "measure a checkpoint on the test text",
    "predict": "write the nats of every token of the test text",
    "evaluate": "measure a checkpoint on any text, as was published",
    "prepare": "download and encode a corpus, or your text",
    "generate": "continue a prompt",
    "convert": "read other people's checkpoints, and write them",
    "inspect": "measure what a model does with its memory, as tables and pictures",
    "recl": "measure how much context is of use to models",
    "speed": "time a model with its memory, and with a sliding window instead",
    "runs": "list runs",
    "compare": "lay runs over each other: settings, curves, results",
    "sweep": "try many settings, one run after the other, as a sweep file says",
    "quickstart": "train for five minutes, and see what memory is worth",
    "configs": "list the given configs, or print one",
    "environment": "print versions, device, kernels and paths, for a report of a bug",
}
LIGHTNING = ("fit", "validate", "test", "predict")
"""Commands that Lightning's Trainer runs; each of the others is a function."""
LOADED = dict.fromkeys((*LIGHTNING, "quickstart"), "PyTorch and Lightning")
LOADED |= {"sweep": "Optuna"} | dict.fromkeys(("prepare", "configs", "runs", "compare"), "")
"""What takes seconds to import, where it is not PyTorch alone."""
LEFT_OUT = {"root": "runs", "file": ""}
"""Words of a command that may be left out, and what they are then."""
TO_LOWER = {
    "evaluate": "batch_size, tgt_len, mem_len or ext_len",
    "generate": "mem_len, num_samples, num_beams, or the length of the prompt",
    "inspect": "batch_size, tgt_len, tokens or mem_lens",
    "recl": "max_context",
    "speed": "lengths, tgt_len, batches, or the sizes of the network",
}
"""What needs less memory, of the commands whose options have a say in it."""
STORAGE_ERRORS = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM}


def main() -> None:
    """Run the command; a user's mistake is one line and an exit code (TXL_DEBUG=1: a traceback)."""
    open_closed_streams()
    try:
        with signals.exit_on_signals():
            run(sys.argv[1:])
    except BrokenPipeError:
        # Python would write what is left when it ends, and fail once more.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(141)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        if os.environ.get("TXL_DEBUG"):
            raise
        if not has_parent_failed():
            # Of a file, without the number that Python's own words start with.
            is_of_file = isinstance(error, OSError) and error.filename and error.strerror
            words = f"{error.filename}: {error.strerror}" if is_of_file else str(error)
            if isinstance(error, ModuleNotFoundError) and error.name:
                # Without a name it is Lightning's, who says what to install.
                words += f"; pip install {error.name.partition('.')[0]}"
            print(f"error: {errors.format_line(errors.innermost_error(words))}", file=sys.stderr)
        is_storage = getattr(error, "errno", None) in STORAGE_ERRORS
        sys.exit(errors.StorageError.exit_code if is_storage else getattr(error, "exit_code", 2))


def open_closed_streams() -> None:
    """Open standard streams that are closed (2>&-): the next file would get a stream's number."""
    while (number := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(number, True)
    os.close(number)
    sys.stderr = sys.stderr or open(os.devnull, "w")  # noqa: SIM115


def run(arguments: list[str]) -> None:
    """Call the command that the first argument names."""
    if not arguments or arguments[0] in ("-h", "--help"):
        print(usage())
        return
    if arguments[0] == "--version":
        print(f"{PROGRAM} {__version__}")
        return
    command, *options = arguments
    if command not in COMMANDS:
        raise ValueError(f"{command}: unknown command; expected one of {', '.join(COMMANDS)}")
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A locale that lacks a character (LC_ALL=C) is no reason to fail after hours.
        sys.stdout.reconfigure(errors="backslashreplace")
    tell_what_is_loaded(command)
    errors.silence_warnings()
    limit_yaml()
    call = run_lightning if command in LIGHTNING else run_function
    is_printable = sys.stdout is not None and (command != "generate" or sys.stdout.isatty())
    try:
        with redirect_stdout(errors.PrintableStream(sys.stdout) if is_printable else sys.stdout):
            call(command, name_checkpoint(command, [*map(underscore_name, options)]))
    except Exception as error:
        if not errors.is_out_of_memory(error):
            raise
        advice = f"; lower {TO_LOWER[command]}" if command in TO_LOWER else ""
        raise errors.OutOfMemoryError(f"{command}: out of memory{advice}") from error


def tell_what_is_loaded(command: str) -> None:
    """Say on a terminal why nothing happens for some seconds."""
    packages = LOADED.get(command, "PyTorch")
    if packages and sys.stderr is not None and sys.stderr.isatty():
        print(f"{command}: loading {packages} ...", file=sys.stderr)


def run_lightning(command: str, options: list[str]) -> None:
    """Run a command of Lightning's Trainer; imported here, because it takes seconds."""
    from .training.cli import run_trainer

    flush_denormals()
    run_trainer([command, *options])


def run_function(command: str, options: list[str]) -> None:
    """Run a command that is a function: its signature is its options."""
    function, parser = make_parser(command)
    try:
        config = parser.parse_args(options)
        for name, group in parser.groups.items():
            with errors.prefix_errors(name):
                # So that a dataclass refuses what it does not allow, with the whole key.
                group.group_class(**vars(config[name]))
        config = parser.instantiate_classes(config)
    except jsonargparse.ArgumentError as error:
        raise ValueError(errors.explain_parser_error(str(error), [parser])) from error
    flush_denormals()
    # What fit calls data.path is path here, and prepare's NAME.
    with errors.strip_prefix("data.", ["path", *(action.dest for action in parser._actions)]):
        function(**config.as_dict())


def make_parser(command: str) -> tuple[Callable[..., None], jsonargparse.ArgumentParser]:
    """Return the function of a command and the parser of its options."""
    function = getattr(import_module(f".commands.{command}", __package__), f"{command}_command")
    jsonargparse.set_parsing_settings(docstring_parse_attribute_docstrings=True)
    parser = jsonargparse.ArgumentParser(exit_on_error=False, formatter_class=HelpFormatter)
    parser.add_function_arguments(function, as_group=False, as_positional=True)
    for action in parser._actions:
        kind, *more = get_args(getattr(action, "_typehint", None)) or (None,)
        if more == [...] and "." not in action.dest:
            # Any number of values are given as words: --r 0.1 0.5. jsonargparse wants a list.
            action._typehint, action.nargs, action.metavar = kind, "+", action.dest
            action.default = list(action.default) if isinstance(action.default, tuple) else None
        if action.dest in LEFT_OUT:
            action.nargs, action.default, action.required = "?", LEFT_OUT[action.dest], False
    describe_command(parser, command, str(inspect.getdoc(function)).split("\n\nArgs:")[0])
    return function, parser


def limit_yaml() -> None:
    """Let jsonargparse check YAML, of configs and options, before it reads it."""
    # Private: its loaders can be replaced for files only, not for texts within them.
    usual = jsonargparse._loaders_dumpers.get_yaml_default_loader()
    if not hasattr(usual, "is_limited"):

        class Loader(usual):
            is_limited = True

            def __init__(self, text: str) -> None:
                if "*" in text or len(text) > 200:
                    check_yaml(text)
                super().__init__(text)

        jsonargparse._loaders_dumpers.yaml_default_loader = Loader


def flush_denormals() -> None:
    """Compute with 0 for numbers too small to be normal: they slow a CPU's step several-fold."""
    # A command that has not imported torch does not compute.
    if torch := sys.modules.get("torch"):
        torch.set_flush_denormal(True)


def has_parent_failed() -> bool:
    """Wait 10 s for the process that started this one: if it fails too, it has said why."""
    parent, end = os.getppid(), time.monotonic() + 10
    # Only Lightning kills the first process as soon as another one fails.
    while signals.is_child() and os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.1)
    return os.getppid() != parent


def underscore_name(option: str) -> str:
    # Others write --per-token.
    name, sign, value = option.partition("=")
    is_name = name.startswith("--") and " " not in name
    return "--" + name[2:].replace("-", "_") + sign + value if is_name else option


def name_checkpoint(command: str, options: list[str]) -> list[str]:
    """Return options with the checkpoint as its parser has it: the first word, or --ckpt_path."""
    if command not in LIGHTNING:
        return [word.removeprefix("--ckpt_path=") for word in options if word != "--ckpt_path"]
    is_first = command != "fit" and options[:1] and not options[0].startswith("-")
    return [f"--ckpt_path={options[0]}", *options[1:]] if is_first else options


def usage() -> str:
    commands = "".join(f"\n  {command:13}{text}" for command, text in COMMANDS.items())
    head = f"usage: {PROGRAM} COMMAND [options]\n{commands}\n\nCOMMAND --help lists its options."
    return f"{head}\n\n{textwrap.fill(str(__doc__).split('. ', 1)[1], 79)}"


if __name__ == "__main__":
    main()
