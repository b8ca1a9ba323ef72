"""Weights from files: our own runs, and other people's names."""

from .files import CheckpointError
from .folder import load_folder, save_folder
from .huggingface import load_huggingface, save_huggingface
from .nvidia import load_nvidia, load_nvidia_state
from .original import config_of_original, load_original
from .runs import digest_of, load_readable, load_run, read_checkpoint, trained_tgt_len
from .sources import load_any

__all__ = [
    "CheckpointError",
    "config_of_original",
    "digest_of",
    "load_any",
    "load_folder",
    "load_huggingface",
    "load_nvidia",
    "load_nvidia_state",
    "load_original",
    "load_readable",
    "load_run",
    "read_checkpoint",
    "save_folder",
    "save_huggingface",
    "trained_tgt_len",
]
