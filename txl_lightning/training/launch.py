"""Run a command of Lightning's Trainer, printing what is ours and mistakes in one line."""

import logging

from lightning.pytorch.utilities.exceptions import MisconfigurationException
from rich.console import Console

from ..errors import silence_warnings
from .cli import TxlCLI


def run_trainer(arguments: list[str]) -> TxlCLI:
    """Run fit, validate, test or predict, the first argument; return what it was done with."""
    # Importing Lightning sets these.
    for name in ("lightning.pytorch", "lightning.fabric"):
        logging.getLogger(name).setLevel(logging.WARNING)
    silence_warnings()
    Console.on_broken_pipe = raise_again
    try:
        return TxlCLI(arguments)
    except MisconfigurationException as error:
        raise ValueError(str(error)) from error


def raise_again(_: Console) -> None:
    # A closed pipe ends the process with 141: rich's own reaction is exit code 1.
    raise
