"""The table of commands; the parser of a command's options, its help and its messages."""

import argparse
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import yaml
from jsonargparse import ArgumentParser, DefaultHelpFormatter, Namespace, set_loader

from .errors import describe_type, invalid, require_path, suggest_key
from .files import expand_home, load_yaml
from .imports import refuse_class

# Values of options are YAML too, in which aliases can stand for endless texts.
set_loader("yaml", load_yaml, (yaml.YAMLError, ValueError))
PROGRAM = "txl-lightning"
MAX_WIDTH = 100


@dataclass(frozen=True)
class Command:
    """A function NAME_command in commands/NAME.py, described without importing it."""

    summary: str
    example: str
    arguments: str = ""
    """Positional arguments, as in the usage: those in brackets are optional."""
    memory_options: str = ""
    """Options to lower when the command runs out of memory."""
    imports: str = "PyTorch"
    """Packages that take seconds to import."""


@dataclass(frozen=True)
class TrainerCommand(Command):
    """A command of Lightning's Trainer; its options are the settings of a run."""

    arguments: str = "ckpt_path"
    imports: str = "PyTorch and Lightning"


COMMANDS = {
    "fit": TrainerCommand(
        "train a model; a text of 50 kB or more has defaults of its own, which are printed",
        "--data.path my.txt",
        "",
    ),
    "validate": TrainerCommand("measure a checkpoint on the validation text", "RUN"),
    "test": TrainerCommand("measure a checkpoint on the test text", "RUN --model.eval_mem_len 512"),
    "predict": TrainerCommand("write the nats of every token of the test text", "RUN"),
    "evaluate": Command(
        "measure a checkpoint on any text, also with a published protocol",
        "RUN --path book.txt --mem_len 512",
        "ckpt_path",
        "batch_size, tgt_len, mem_len or ext_len",
    ),
    "prepare": Command(
        "download and encode a corpus, or your text", "book.txt --vocab words", "name", imports=""
    ),
    "generate": Command(
        "continue a prompt",
        "RUN 'Once upon' --top_p 0.9",
        "ckpt_path [prompt]",
        "mem_len, num_samples, or the length of the prompt",
    ),
    "score": Command(
        "choose among candidates, with the memory of what came before",
        "RUN --candidates nbest.jsonl",
        "ckpt_path",
        "batch_size or mem_len",
    ),
    "convert": Command(
        "convert checkpoints of other code, or for other code",
        "model.safetensors --args args.json --out converted",
        "source",
    ),
    "export": Command(
        "write a network as a program for torch alone, or for ONNX Runtime",
        "RUN --to onnx --out exported",
        "ckpt_path",
    ),
    "inspect": Command(
        "measure how a model uses its memory, in tables and figures",
        "RUN --out figures",
        "ckpt_path",
        "batch_size, tgt_len, tokens or mem_lens",
    ),
    "recl": Command(
        "measure how much context models use", "RUN OTHER --r 0.1 0.5", "ckpt_path", "max_context"
    ),
    "runs": Command("list runs", "runs/quickstart", "[root]", imports=""),
    "compare": Command(
        "compare runs: settings, curves, results",
        "runs/quickstart/version_0 runs/quickstart/version_1",
        "runs",
        imports="",
    ),
    "sweep": Command(
        "run the trials of a sweep file",
        "sweeps/quickstart --count 8",
        "path",
        imports="Optuna",
    ),
    "quickstart": Command(
        "train for five minutes, then test with and without memory",
        "",
        imports=TrainerCommand.imports,
    ),
    "configs": Command(
        "list the included configs, or print one", "paper/enwik8_base", "[file]", imports=""
    ),
    "environment": Command("print versions, device, kernels and paths for a bug report", ""),
}

MARKUP = (
    (r":\w+:`~?(?:[\w. ]*\.)?(\w+)`", r"\1"),
    (r"\s*Default: (``[^`]*``|\w+)\.?", ""),
    (r"`+", ""),
)
"""Markup in the help texts of other packages, and defaults, which HelpFormatter adds itself."""
# In jsonargparse's messages: an unknown option or key of a config, the key of a value, and what is
# wrong with a class.
UNKNOWN_OPTION = re.compile(
    r"unrecognized arguments: (?:\S+ )*?--([\w.+-]+)|"
    r"(?:Group '([\w.]+)' does not accept o|O)ption '([\w.+]+)'"
)
KEY = re.compile(r'Parser key "(?!config")([\w.]+)":? *')
UNKNOWN_WORD = re.compile("unrecognized arguments: (.+)")
CLASS_PROBLEM = re.compile(r"Problem with given class_path '([\w.]+)': (.*?)(?: - |$)")
LAST_CLASS = "; an option is of the last class before it"


PATHS = {
    *("args", "candidates", "ckpt_path", "data_dir", "default_root_dir", "ids", "mirror", "out"),
    *("out_ids", "path", "per_token", "prompt_file", "prompt_ids", "prompts", "store", "vocab"),
}
"""Last parts of the names of options for a path, in which ~ is the home folder."""
ALWAYS_TEXT = {"context", "prompt"}
"""Options for text to read, where `null` is a word like any other."""
TEXTS = {*PATHS, *ALWAYS_TEXT, "stop", "text_key", "id_key"}
"""Options for a text: jsonargparse would read `# a` as null, and `[a]` as a list."""


class Parser(ArgumentParser):
    """Parser of a command's options, with plain help; a list of values is given as words."""

    def __init__(
        self,
        *args: Any,
        command: str = "",
        description: str = "",
        texts: Mapping[str, str] | None = None,
        is_hidden: Callable[[str], bool] = lambda name: False,
        **options: Any,
    ) -> None:
        # Without a command: jsonargparse makes such parsers for the arguments of a class.
        self.command = COMMANDS.get(command)
        self.texts = texts or {}
        self.is_hidden = is_hidden
        self.names = set[str]()
        self.types: dict[str, Any] = {}
        if self.command:
            usage = f"{PROGRAM} {command} {self.command.arguments} [options]".replace("  ", " ")
            options["usage"] = usage
            options["description"] = textwrap.fill(" ".join(description.split()), MAX_WIDTH - 20)
            options["epilog"] = f"example: {PROGRAM} {command} {self.command.example}".rstrip()
        defaults = {"exit_on_error": False, "allow_abbrev": False, "formatter_class": HelpFormatter}
        super().__init__(*args, **defaults | options)

    def add_argument(self, *names: str, **options: Any) -> Any:
        # jsonargparse copies this method into a class for groups, which have a `parser`.
        parser = getattr(self, "parser", self)
        name = names[-1].strip("-+")
        parser.names.add(name)
        names, options = parser.adapt_option(name, names, options)
        action = super().add_argument(*names, **options)
        # Private: jsonargparse has put the type into an action.
        parser.types[name] = getattr(action, "_typehint", None)
        action.help = parser.texts.get(name, action.help)
        # Without flags, which leave out settings of the run.
        action.nargs = 0 if name == "print_config" else action.nargs
        # An option with the name of a group reads the whole group from a file.
        if parser.is_hidden(name) or name in (parser.groups or ()):
            action.help = argparse.SUPPRESS
        return action

    def adapt_option(
        self, name: str, names: tuple[str, ...], options: dict[str, Any]
    ) -> tuple[tuple[str, ...], dict[str, Any]]:
        """Return names and options of an optional positional argument, and of a list."""
        if self.command and f"[{name}]" == self.command.arguments:
            names = (name,)
            options["nargs"] = "?"
        item_type, *others = get_args(getattr(options.get("action"), "_typehint", None)) or (None,)
        if self.command and others == [...] and "." not in name:
            # Words, as in --r 0.1 0.5; jsonargparse expects a list in YAML.
            options |= {"action": None, "type": item_type, "nargs": "+", "metavar": name}
            if "default" in options:
                options["default"] = list(options["default"])
        return names, options

    def explain_error(self, message: str, given: Mapping[str, Any]) -> str:
        """Return a message of jsonargparse in one line: the value that is given for a key, or an
        unknown name with the nearest one."""
        message = " ".join(message.split())
        key = next(iter(KEY.findall(message)), "")
        if match := CLASS_PROBLEM.search(message):
            name, reason = match.groups()
            if "is not allowed" in reason:
                return f"{key}: {refuse_class(name)}"
            hint = LAST_CLASS if "callbacks" in key and UNKNOWN_OPTION.search(reason) else ""
            return f"{key}: {name.rpartition('.')[2]}: {self.explain_error(reason, {})}{hint}"
        if match := UNKNOWN_OPTION.search(message):
            option, *parts = match.groups()
            known = ".".join(filter(None, parts))
            return suggest_key(option or known, self.names, "--" if option else "")
        if self.command and (match := UNKNOWN_WORD.search(message)):
            named = {"data.path", "path"} & (self.names - {self.command.arguments})
            hint = f"did you mean --{min(named)} {match[1]}?" if named else "expected options"
            return f"unknown word {match[1]}; {hint}"
        name = f"{key}+" if f"{key}+" in given else key
        if name in given and (kind := self.types.get(key)):
            return str(invalid(name, format_value(given[name]), describe_type(kind)))
        return KEY.sub(r"\1: ", message)


class HelpFormatter(DefaultHelpFormatter, argparse.RawDescriptionHelpFormatter):
    """Help formatter: one sentence per option, then choices and default, without Python's types."""

    def __init__(self, prog: str, **options: Any) -> None:
        width = min(shutil.get_terminal_size().columns - 2, MAX_WIDTH)
        super().__init__(prog, width=width, **options)

    def _get_help_string(self, action: argparse.Action) -> str:
        # Private: a formatter has no public method for the text of one option.
        text = action.help or ""
        for pattern, replacement in MARKUP:
            text = re.sub(pattern, replacement, text)
        if isinstance(default := action.default, Namespace) or action.nargs == 0:
            return text
        # jsonargparse lists the choices of a type only if it has no others. Private: the type.
        types = get_args(getattr(action, "_typehint", None))
        choices = [each for kind in types if get_origin(kind) is Literal for each in get_args(kind)]
        notes = [f"one of {', '.join(map(str, dict.fromkeys(choices)))}"] if choices else []
        notes += ["required"] if action.required and action.option_strings else []
        if default not in (None, argparse.SUPPRESS, (), []):
            values = default if action.nargs == "+" else [default]
            # As in YAML, where a text has no quotes.
            words = [v if isinstance(v, str) else json.dumps(v, default=str) for v in values]
            notes.append(f"default: {' '.join(words)}")
        note = f"({'; '.join(notes)})" if notes else ""
        # jsonargparse asks again with the result for an option that has no text.
        return text if text.endswith(note) else f"{text} {note}".strip()


def take_option(words: list[str], *names: str) -> tuple[list[str], list[str]]:
    """Return all values of an option, and the words without it."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    parser.add_argument(*names, dest="values", action="append", default=[])
    try:
        settings, others = parser.parse_known_args(words)
    except argparse.ArgumentError as error:
        raise ValueError(f"{names[-1].lstrip('-')}: {error.message}") from error
    return settings.values, others


def is_option(word: str) -> bool:
    """Return True for --name and --name=value; "-5 degrees" and "-- he said" are texts."""
    name = word.partition("=")[0]
    return word in ("-h", "-c") or (name.startswith("--") and len(name) > 2 and " " not in name)


def read_options(words: list[str]) -> dict[str, Any]:
    """Return the last value of each option before `--`, by its name; "" where it has none."""
    words = words[: words.index("--")] if "--" in words else words
    values = {}
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if is_option(word):
            name, sign, value = word.removeprefix("--").partition("=")
            has_next = not sign and not is_option(following)
            values[name] = read_word(name, following if has_next else value)
    return values


def read_word(name: str, word: str) -> Any:
    """Return null, a list in JSON, a number and true as such, and any other word as it is."""
    last = name.rpartition(".")[2].removesuffix("+")
    if last in ALWAYS_TEXT:
        return word
    try:
        value = json.loads(word)
    except (json.JSONDecodeError, RecursionError):
        return word
    if last in TEXTS:
        # [T] and [a, b].txt are texts, and so are 1 and {}.
        return value if value is None or (isinstance(value, list) and is_text(value)) else word
    # 1e2 stays as it is written, also in a refusal.
    return value if isinstance(value, list) or format_value(value) == word else word


def keep_texts(settings: Any, given: Mapping[str, Any]) -> None:
    """Set the options for texts and paths in parsed settings to what was given."""
    for key, value in given.items():
        name = key.rpartition(".")[2]
        if name not in TEXTS or key not in settings or not is_text(value):
            continue
        # An option of another network may have such a name, and be a number.
        if settings[key] is None or is_text(settings[key]):
            if name in PATHS:
                require_path(key, value)
            settings[key] = expand_home(value) if name in PATHS else value


def is_text(value: Any) -> bool:
    values = value if isinstance(value, list) else [value]
    return all(isinstance(each, str) for each in values)


def format_value(value: Any) -> str:
    """Return the word that an option takes for a value: null, true, a text as it is, a list."""
    if isinstance(value, float):
        # A number that JSON lacks has YAML's name.
        return {"inf": ".inf", "-inf": "-.inf", "nan": ".nan"}.get(str(value), str(value))
    return value if isinstance(value, str) else json.dumps(value, default=str, ensure_ascii=False)


FIRST_STEPS = {
    "quickstart": "train for five minutes on the source of this Python, and test",
    "fit --data.path my.txt": "train on a text of yours; prints the run's folder, RUN",
    'generate RUN "Once upon"': "continue a prompt",
}


def list_commands() -> str:
    """Return the usage of the program: what to do first, and a line for each command."""
    first = [f"  {PROGRAM} {command:25} {text}" for command, text in FIRST_STEPS.items()]
    lines = [f"  {name:13}{command.summary}" for name, command in COMMANDS.items()]
    usage = f"usage: {PROGRAM} COMMAND [options]\n\nBegin with:"
    own = "--allow_imports PACKAGE lets settings and checkpoints name classes of your package."
    options = "\nCOMMAND --help lists its options."
    return "\n".join([usage, *first, "\nCommands:", *lines, options, own])
