"""Error classes with their exit codes, and one-line messages: key, value, expected values."""

import difflib
import os
import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, is_dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from types import UnionType
from typing import Any, ClassVar, Literal, TextIO, Union, get_args, get_origin, get_type_hints

TYPE_WORDS = {
    "int": "a whole number", "float": "a number", "bool": "true or false", "str": "a text",
    "tuple": "a list", "list": "a list", "NoneType": "null", "Path": "a path",
    "timedelta": 'a duration as "DD:HH:MM:SS", with quotes in YAML', "dict": "settings by name",
}  # fmt: skip
LISTS = ("Iterable", "Sequence", "list", "tuple")
PLURALS = {int: "whole numbers", float: "numbers", str: "texts"}
# Memory of the host or a device, or a size that no address or integer can express.
ALLOCATION_ERRORS = (MemoryError, RuntimeError, TypeError, OverflowError)
OUT_OF_MEMORY = re.compile(
    "can't allocate memory|out of memory|size calculation overflow|unpacking long|without overflow"
)
# Escapes, line ends, and characters that reverse text.
CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
MAX_VALUE_LENGTH = 200
MAX_LINE_LENGTH = 1000
COPIES: dict[str, str] = {}  # names by path of files that stand for others
IGNORED_WARNINGS = (
    ".*(LeafSpec|The `srun` command is available|exists and is not empty|"
    "infer the batch indices|used to create the checkpoint).*"
)
"""Warnings of Lightning to its own developers, about loaders other than ours, and on every machine
that has SLURM."""


class DataError(ValueError):
    """Text, vocabulary or corpus that cannot be used."""

    exit_code = 3


class ClassError(ValueError):
    """A class of another package that may not be imported, or is missing."""

    exit_code = 2


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
    is_listed = isinstance(error, ALLOCATION_ERRORS) and OUT_OF_MEMORY.search(str(error))
    return isinstance(error, MemoryError) or bool(is_listed)


@contextmanager
def explain_out_of_memory(settings: Mapping[str, Any]) -> Iterator[None]:
    """Name the settings of a run that decide how much memory it needs."""
    try:
        yield
    except ALLOCATION_ERRORS as error:
        if not is_out_of_memory(error):
            raise
        keys = ("data.batch_size", "data.tgt_len", "model.net.mem_len")
        listed = ", ".join(f"{key} {settings[key]}" for key in keys)
        raise OutOfMemoryError(
            f"out of memory with {listed}; lower one of them, or set data.micro_batches 2, "
            "model.recompute true, trainer.precision bf16-mixed"
        ) from error


def invalid(key: str, value: object, expected: str) -> ValueError:
    """Return the error of a setting: "KEY: invalid VALUE; expected ..."."""
    return ValueError(f"{key}: invalid {shorten(value)}; expected {expected}")


def require(condition: bool, key: str, value: object, expected: str) -> None:
    """Raise the error of an invalid setting, unless the condition is true."""
    if not condition:
        raise invalid(key, value, expected)


def require_path(key: str, paths: str | os.PathLike | list) -> None:
    """Refuse an empty path, which would be the current folder; also among several."""
    for path in paths if isinstance(paths, list) else [paths]:
        is_path = os.fspath(path).strip() != ""
        require(is_path, key, repr(path), "a path, not an empty text")


def invalid_text(where: object, error: UnicodeDecodeError | UnicodeEncodeError) -> DataError:
    """Return the error of a text with bytes, or halves of surrogate pairs, that are no UTF-8."""
    is_byte = isinstance(error, UnicodeDecodeError)
    place = f"byte {error.start}" if is_byte else f"character {error.start + 1}"
    return DataError(f"{where}: {place} is not UTF-8 text")


def require_finite_nats(are_finite: bool) -> None:
    if not are_finite:
        raise NonFiniteError("the nats are not finite: the weights of the network are invalid")


def require_positive(**numbers: int | None) -> None:
    """Raise the error of the first number below 1; None is valid."""
    for key, number in numbers.items():
        require(number is None or number >= 1, key, number, "at least 1")


def require_at_least(config: object, **minima: int) -> None:
    """Raise ValueError if a field of `config` is below its minimum; None is valid."""
    for key, minimum in minima.items():
        value = getattr(config, key)
        require(value is None or value >= minimum, key, value, f"at least {minimum}")


def convert_fields(config: object) -> None:
    """Convert the fields of a new dataclass to plain values of their annotated types.

    Numbers of numpy and torch become Python's, because a checkpoint with others cannot be loaded;
    paths become texts, lists tuples, and dicts dataclasses. Any other value is refused.
    """
    types = resolve_types(type(config))
    for key in [field.name for field in fields(config)]:
        kind = types[key]
        is_union = get_origin(kind) in (Union, UnionType)
        original = getattr(config, key)
        kinds = get_args(kind) if is_union else (kind,)
        value = original
        if is_dataclass(kind) and isinstance(original, dict):
            known = [f"{key}.{each.name}" for each in fields(kind)]
            if unknown := [f"{key}.{name}" for name in original if f"{key}.{name}" not in known]:
                raise ValueError(suggest_key(unknown[0], known))
            default = getattr(type(config), key, None)
            is_default = default is not None and original == asdict(default)
            with prefix_errors(key):
                value = default if is_default else kind(**original)
        if not any(is_of_type(value, each) for each in kinds):
            value = to_plain(original)
        if not any(is_of_type(value, each) for each in kinds):
            raise invalid(key, repr(original), describe_type(kind))
        is_tuple = isinstance(value, list) and tuple in map(get_origin, kinds)
        object.__setattr__(config, key, tuple(value) if is_tuple else value)


@dataclass(frozen=True)
class Settings:
    """A group of settings: a dataclass whose fields are converted and checked when it is made."""

    minima: ClassVar[Mapping[str, int]] = {}  # of fields that are numbers, or None

    def __post_init__(self) -> None:
        convert_fields(self)
        require_at_least(self, **self.minima)


# Cached: resolving the annotations takes longer than all checks.
resolve_types = cache(get_type_hints)


def to_plain(value: Any) -> Any:
    """Return numbers and arrays of numpy and torch, and paths, as Python's numbers and texts."""
    if isinstance(value, list | tuple):
        return [to_plain(each) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    return value.tolist() if hasattr(value, "tolist") else value


def is_of_type(value: object, kind: Any) -> bool:
    """Return True if a value is of a type; a whole number is also a float, and a list a tuple."""
    if get_origin(kind) is Literal:
        return type(value) is str and value in get_args(kind)
    if get_origin(kind) in (list, tuple):
        is_list = type(value) in (list, tuple)
        return is_list and all(is_of_type(each, get_args(kind)[0]) for each in value)
    # Not of a derived class, such as numpy's float64: a checkpoint cannot contain one.
    if kind in (bool, int, float, str):
        return type(value) is kind or (kind is float and type(value) is int)
    return isinstance(value, kind)


def describe_type(kind: Any) -> str:
    """Return a type as plain English: "a whole number or null", "a list of 3 numbers"."""
    kinds = get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)
    # Lightning also takes a duration as a text of this form, and as a dict.
    others = (str, dict) if timedelta in kinds else ()
    kinds = [each for each in kinds if (get_origin(each) or each) not in others]
    words = [word for each in kinds for word in name_type(each)]
    *others, last = dict.fromkeys(words)
    return f"{', '.join(others)} or {last}" if others else last


def name_type(kind: Any) -> list[str]:
    """Return the words for a type that is no union; several for a choice."""
    origin = get_origin(kind) or kind
    items = [item for item in get_args(kind) if item is not ...]
    if origin is Literal:
        return [*map(str, items)]
    name = getattr(origin, "__name__", str(origin))
    word = "a list" if name in LISTS else TYPE_WORDS.get(name, name)
    if word != "a list" or not items or type(items[0]) is not type or items[0] not in PLURALS:
        return [word]
    count = f"{len(items)} " if name == "tuple" and ... not in get_args(kind) else ""
    return [f"a list of {count}{PLURALS[items[0]]}"]


def suggest_key(key: str, known: Iterable[str], dashes: str = "") -> str:
    """Return the message for an unknown key, or an option with its dashes, with the nearest one."""
    # A group, such as trainer of trainer.a, is no hint.
    names = sorted(name for name in known if not f"{key}.".startswith(f"{name}."))
    group, _, last = key.rpartition(".")
    # The first name with each last part: an equal one is a better hint than a similar spelling.
    lasts = {name.rpartition(".")[2]: name for name in reversed(names)}
    of_group = {name.rpartition(".")[2]: name for name in names if name.rpartition(".")[0] == group}
    # --seed is seed_everything rather than data.seed.
    near = [name for name in names if name.startswith(f"{key}_")]
    # Of the last parts alone, because an equal group makes no two names alike.
    for lasts_of in (of_group, lasts):
        close = [last] if last in lasts_of else difflib.get_close_matches(last, lasts_of, 1, 0.8)
        near = near or [lasts_of[each] for each in close]
    near = near or [of_group[each] for each in of_group if last.endswith(f"_{each}")]
    hint = f"did you mean {dashes}{near[0]}?" if near else "see --help for the known ones"
    return f"unknown option {dashes}{key}; {hint}" if dashes else f"{key}: unknown key; {hint}"


@contextmanager
def prefix_errors(prefix: str, joint: str = ".") -> Iterator[None]:
    """Prepend a prefix to the key that the message of a ValueError starts with."""
    try:
        yield
    except ValueError as error:
        # Keep the exit code; a class of another package may need other arguments.
        kind = type(error) if hasattr(error, "exit_code") else ValueError
        raise kind(f"{prefix}{joint}{error}") from error


def flatten_settings(
    settings: Mapping[str, Any], prefix: str = "", options: Collection[str] = ()
) -> dict[str, Any]:
    """Return nested settings by dotted key; an option may have a mapping as its value."""
    flat: dict[str, Any] = {}
    for name, value in settings.items():
        key = f"{prefix}{name}"
        is_option = key in options and not any(each.startswith(f"{key}.") for each in options)
        is_group = isinstance(value, Mapping) and not is_option
        flat |= flatten_settings(value, f"{key}.", options) if is_group else {key: value}
    return flat


def shorten(value: object, limit: int = MAX_VALUE_LENGTH) -> str:
    """Return a value as one printable line, without the middle of a long value."""
    text = str(value)
    if len(text) > limit:
        omitted = f" ... ({len(text) - limit:,} characters) ... "
        text = text[: limit // 2] + omitted + text[-limit // 2 :]
    return show_controls(text)


def format_line(message: str) -> str:
    """Return a message as one printable line of limited length."""
    return shorten(" ".join(replace_copies(message).splitlines()), MAX_LINE_LENGTH)


def show_controls(text: str, kept: str = "") -> str:
    """Return a text with its control characters escaped, except those in `kept`."""
    return CONTROL.sub(lambda m: m[0] if m[0] in kept else repr(m[0])[1:-1], text)


class PrintableStream:
    """Writes to a stream, `unfiltered`, with control characters escaped."""

    def __init__(self, unfiltered: TextIO) -> None:
        self.unfiltered = unfiltered

    def write(self, text: str) -> int:
        return self.unfiltered.write(show_controls(text, kept="\n\t"))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unfiltered, name)


def unfiltered_stdout() -> TextIO:
    """Return the standard output for text whose control characters the terminal shall obey."""
    return getattr(sys.stdout, "unfiltered", sys.stdout)


def print_notice(text: str) -> None:
    """Print lines on stderr, with control characters escaped, and copies named by `name_copy`."""
    print(replace_copies(text), file=PrintableStream(sys.stderr))


@contextmanager
def name_copy(path: Path, name: str) -> Iterator[None]:
    """Show the path of a copy as what it is a copy of.

    In errors of the block, and in notices and lines from now on, as texts are read later, too.
    """
    COPIES[str(path)] = name
    try:
        yield
    except ValueError as error:
        kind = type(error) if hasattr(error, "exit_code") else ValueError
        raise kind(replace_copies(str(error))) from error


def replace_copies(text: str) -> str:
    # The last one may be a copy of the one before.
    for path, name in reversed(COPIES.items()):
        text = text.replace(path, name)
    return text


def silence_warnings() -> None:
    """Ignore warnings that no user needs; print others as one line (TXL_DEBUG=1: in full)."""
    warnings.filterwarnings("ignore", message=IGNORED_WARNINGS)
    if not os.environ.get("TXL_DEBUG"):
        warnings.formatwarning = lambda text, *_, **__: f"warning: {format_line(str(text))}\n"
