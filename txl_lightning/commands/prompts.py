"""The text that a command is given: as an option, in a file, or piped in."""

import os
import stat
import sys
from pathlib import Path

from ..errors import DataError, require


def given(prompt: str | None, prompt_file: str | None) -> str | None:
    """The prompt; None where there is none.

    Raises:
        ValueError: there are two, or its file cannot be read.
    """
    require(prompt is None or prompt_file is None, "prompt", prompt, "null with prompt_file")
    if prompt is not None:
        return prompt
    if prompt_file is None:
        # Something may have started this command with a pipe into which it writes nothing.
        return text_of("-") or None if is_piped() else None
    return text_of(prompt_file)


def text_of(path: str) -> str:
    """What a file holds, or what is piped in."""
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        name = "what is piped in" if path == "-" else path
        raise DataError(f"prompt: {name}: byte {error.start} is not UTF-8 text") from error


def is_piped() -> bool:
    """Whether the standard input is a pipe or a file: not a terminal, and not nothing."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
