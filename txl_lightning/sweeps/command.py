"""The command of a trial: what W&B's agent would run."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def command_of(config: Mapping[str, Any], parameters: Mapping[str, Any], folder: Path) -> list[str]:
    """The file's command with its macros replaced; the trial's folder and --resume follow.

    Raises:
        ValueError: it has a macro that W&B's agent does not know.
    """
    given = expanded(config, parameters, folder / "args.json")
    return [*given, f"--trainer.default_root_dir={folder}", "--resume=auto"]


def expanded(
    config: Mapping[str, Any], parameters: Mapping[str, Any], args_file: Path
) -> list[str]:
    """The file's command, by W&B's own functions, but for the interpreter, which is this one."""
    # It takes a second, and only who makes a trial needs it.
    from wandb.sdk.launch.sweeps.utils import create_sweep_command, create_sweep_command_args

    given = {"args": {name: {"value": value} for name, value in parameters.items()}}
    macros = create_sweep_command_args(given)
    macros |= {"env": ["/usr/bin/env"], "interpreter": [sys.executable]}
    macros |= {"program": [config.get("program")], "args_json_file": [str(args_file)]}
    words: list[str] = []
    # A copy: it is changed in place.
    for word in map(str, create_sweep_command(list(config.get("command") or []))):
        is_macro = word.startswith("${") and word.endswith("}")
        words += replaced(word, macros) if is_macro else [word]
    if "${args_json_file}" in (config.get("command") or []):
        args_file.write_text(json.dumps(dict(parameters)))
    return words


def replaced(word: str, macros: Mapping[str, Any]) -> list[str]:
    """What stands for a macro."""
    found = macros.get(word[2:-1])
    if found is None or None in found:
        known = ", ".join(f"${{{name}}}" for name in macros)
        raise ValueError(f"command: invalid {word}; expected one of {known}")
    return list(found)
