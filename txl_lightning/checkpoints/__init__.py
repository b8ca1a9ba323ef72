"""Weights from files: our own runs, and other people's names."""

from .files import CheckpointError
from .original import config_of_original, load_original
from .runs import load_run, read_checkpoint, trained_tgt_len

__all__ = [
    "CheckpointError",
    "config_of_original",
    "load_original",
    "load_run",
    "read_checkpoint",
    "trained_tgt_len",
]
