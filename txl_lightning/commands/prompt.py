"""The prompt of generate: an option, a file, or the standard input."""

import os
import stat
import sys
from pathlib import Path

from ..errors import DataError, require


def read_prompt(prompt: str | None, prompt_file: str | None) -> str | None:
    """Return the prompt, or None if there is none.

    Raises:
        ValueError: both are given, or the file cannot be read.
    """
    require(prompt is None or prompt_file is None, "prompt", prompt, "null with prompt_file")
    if prompt is not None:
        return prompt
    if prompt_file is None:
        # A pipe that stays empty is what many tools start a command with; it is no prompt.
        return read_text("-") or None if is_piped() else None
    return read_text(prompt_file)


def read_prompt_lines(path: str) -> list[str]:
    """Return the prompts of a file with one in each line that is not empty.

    Raises:
        ValueError: there is none.
    """
    lines = [line for line in read_text(path).splitlines() if line]
    require(len(lines) > 0, "prompts", path, "a file with a prompt in each line")
    return lines


def read_text(path: str) -> str:
    """Return the text of a file, or of the standard input for "-"."""
    raw = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        name = "the standard input" if path == "-" else path
        raise DataError(f"prompt: {name}: byte {error.start} is not UTF-8 text") from error


def is_piped() -> bool:
    """Return True if the standard input is a pipe or a file."""
    try:
        mode = os.fstat(0).st_mode
    except OSError:
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
